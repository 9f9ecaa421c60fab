"""Residual schemes: how a branch joins its shortcut. A normalizer chooses, the network provides.

    plain       x + f(x)                          He et al. 2016
    skipinit    x + g * f(x)                      De and Smith 2020; g a learned scalar, initially 0
    nf          x + alpha * g * f(x / beta)       Brock, De and Smith 2021, section 3
    fixup       x + s * f(x) + b                  Zhang, Dauphin and Ma 2019; s, b learned scalars,
                                                  initially 1 and 0

In nf beta is the standard deviation of x at initialization, which follows from the architecture: a
block adds alpha^2 to the variance, and a transition block, whose shortcut convolution takes the
scaled input, starts again at 1. As in the paper, this leaves out g. The paper's equations do not
cover networks that mix blocks with and without shortcut (`deviations_of_blocks`).
"""

# ruff: noqa: ARG002 (no scheme initializes everything that it could)

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn

Branches = Sequence[Sequence[nn.Conv2d]]


class Residual:
    """Shortcut plus branch."""

    kind: ClassVar[str] = "plain"

    @property
    def gate_gain(self) -> float:
        """Factor of squeeze-excite gates in a branch."""
        return 1.0

    def join(self) -> "Join":
        """Return a module (shortcut, branch) -> their sum, with its learned scalars."""
        return Join()

    def before_conv(self) -> nn.Module:
        """Return the module before every convolution of a branch and before the classifier."""
        return nn.Identity()

    def deviations(self, depths: Sequence[int]) -> list[list[float]]:
        """Return the divisor of each block's input, for stages of `depths` blocks."""
        return [[1.0] * depth for depth in depths]

    def deviations_of_blocks(self, shortcuts: Sequence[bool]) -> list[float]:
        """Return the divisor of each block's input; `shortcuts` says which blocks have one."""
        return [1.0] * len(shortcuts)

    def initialize(self, network: nn.Module, branches: Branches, head: nn.Linear) -> None:
        """Initialize a network for the scheme, after the architecture's initialization.

        `branches` are the convolutions of every residual branch in order, `head` is the classifier.
        """

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class SkipInit(Residual):
    """The branch times a learned scalar, initially 0."""

    kind: ClassVar[str] = "skipinit"

    def join(self) -> "Join":
        return ScaledSum(factor=1.0)

    def initialize(self, network: nn.Module, branches: Branches, head: nn.Linear) -> None:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)


@dataclass(frozen=True)
class NormalizerFree(Residual):
    """Branches of known variance."""

    kind: ClassVar[str] = "nf"
    alpha: float = 0.2  # factor of every branch, the paper's
    skip_gain: bool = True  # multiply every branch by a learned scalar as well, initially 0
    gate: float = 2.0  # factor of squeeze-excite gates, which are 1/2 on average

    @property
    def gate_gain(self) -> float:
        return self.gate

    def join(self) -> "Join":
        return ScaledSum(self.alpha, learned=self.skip_gain)

    def initialize(self, network: nn.Module, branches: Branches, head: nn.Linear) -> None:
        """Draw convolutions from N(0, 1 / fan-in) and the classifier from N(0, 0.01^2)."""
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)

    def deviations(self, depths: Sequence[int]) -> list[list[float]]:
        """Return beta of every block; the first of a stage is a transition.

        The stem's output, the input of the first block, has variance 1.
        """
        betas, var = [], 1.0
        for depth in depths:
            stage = []
            for block in range(depth):
                stage.append(sqrt(var))
                # Both paths of a transition start from variance 1.
                var = (1.0 if block == 0 else var) + self.alpha**2
            betas.append(stage)
        return betas

    def deviations_of_blocks(self, shortcuts: Sequence[bool]) -> list[float]:
        """Return beta of every block, if a block without shortcut is its branch alone.

        Such a block's output, like the stem's, has variance 1.
        """
        betas, var = [], 1.0
        for shortcut in shortcuts:
            betas.append(sqrt(var))
            var = var + self.alpha**2 if shortcut else 1.0
        return betas


@dataclass(frozen=True)
class FixUp(Residual):
    """Scalars around convolutions, and an initialization that depends on depth."""

    kind: ClassVar[str] = "fixup"
    rate: float = 0.1  # learning rate of scalars, relative to all else, as in the authors' code

    def join(self) -> "Join":
        return ShiftedSum(self.rate)

    def before_conv(self) -> nn.Module:
        return ScalarShift(self.rate)

    def initialize(self, network: nn.Module, branches: Branches, head: nn.Linear) -> None:
        """Apply rules 1 and 2 of section 3.

        Of the m convolutions of a branch, the last is 0, and so is the classifier; the others are
        N(0, 2 / fan-out) times L^(-1 / (2m - 2)), L the number of branches. As in the authors'
        code, the classifier's bias learns at the rate of the scalars.
        """
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        head.rates = {"bias": self.rate}  # type: ignore[assignment]
        for convs in branches:
            factor = len(branches) ** (-1 / (2 * len(convs) - 2))
            for conv, _next in pairwise(convs):  # all but the last
                fan_out = conv.out_channels * conv.kernel_size[0] * conv.kernel_size[1]
                nn.init.normal_(conv.weight, std=sqrt(2 / fan_out) * factor)
            nn.init.zeros_(convs[-1].weight)  # so every branch starts at 0


class Join(nn.Module):
    """The end of a residual branch: shortcut + branch."""

    def forward(self, shortcut: Tensor, branch: Tensor) -> Tensor:
        return shortcut + branch


class ScaledSum(Join):
    """shortcut + factor * gain * branch, with or without the learned scalar `gain`, initially 0."""

    roles: ClassVar[dict[str, str]] = {"gain": "residual"}
    gain: nn.Parameter | None

    def __init__(self, factor: float, *, learned: bool = True) -> None:
        super().__init__()
        self.factor = factor
        self.register_parameter("gain", nn.Parameter(torch.zeros(())) if learned else None)

    def forward(self, shortcut: Tensor, branch: Tensor) -> Tensor:
        factor = self.factor if self.gain is None else self.factor * self.gain
        return shortcut + factor * branch


class ScalarShift(nn.Module):
    """x + bias, a learned scalar."""

    roles: ClassVar[dict[str, str]] = {"bias": "residual"}

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rates = {"bias": rate}
        self.bias = nn.Parameter(torch.zeros(()))  # of no dimension, so it promotes no dtype

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class ShiftedSum(Join):
    """shortcut + scale * branch + bias, two learned scalars."""

    roles: ClassVar[dict[str, str]] = {"scale": "residual", "bias": "residual"}

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rates = {"scale": rate, "bias": rate}
        self.scale = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, shortcut: Tensor, branch: Tensor) -> Tensor:
        return shortcut + self.scale * branch + self.bias
