"""How a residual branch meets its shortcut: what a normalizer may ask of an architecture.

    plain       x + f(x)                          He et al. 2016
    skipinit    x + g * f(x)                      De and Smith 2020; g a learned scalar, at first 0
    nf          x + alpha * g * f(x / beta)       Brock, De and Smith 2021, section 3
    fixup       x + s * f(x) + b                  Zhang, Dauphin and Ma 2019; s, b learned scalars,
                                                  at first 1 and 0

In nf beta is the standard deviation that x has at initialization, which is known beforehand: a
block adds alpha^2 to the variance, and a transition block, whose shortcut convolution sees the
scaled input, starts again at 1. g is left out of the reckoning, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn


class Residual:
    """Shortcut plus branch."""

    kind: ClassVar[str] = "plain"

    @property
    def gate_gain(self) -> float:
        """Factor of squeeze-excite's gates in a branch."""
        return 1.0

    def join(self) -> "Join":
        """A module (shortcut, branch) -> their sum, with whatever is learned about it."""
        return Sum()

    def before_conv(self) -> nn.Module:
        """What stands before every convolution of a branch and before the classifier."""
        return nn.Identity()

    def deviations(self, depths: Sequence[int]) -> list[list[float]]:
        """What each block of stages with `depths` blocks divides its input by."""
        return [[1.0] * depth for depth in depths]

    def initialize(
        self, network: nn.Module, branches: Sequence[Sequence[nn.Conv2d]], head: nn.Linear
    ) -> None:
        """Give a network that has its architecture's own weights those of the scheme.

        Args:
            network: all of it.
            branches: the convolutions of every residual branch, in order.
            head: the classifier.
        """

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class SkipInit(Residual):
    """The branch times a scalar that starts at 0."""

    kind: ClassVar[str] = "skipinit"

    def join(self) -> "Join":
        return ScaledSum(1.0)

    def initialize(
        self,
        network: nn.Module,  # noqa: ARG002
        branches: Sequence[Sequence[nn.Conv2d]],  # noqa: ARG002
        head: nn.Linear,
    ) -> None:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)


@dataclass(frozen=True)
class NormalizerFree(Residual):
    """Branches of known variance.

    Args:
        alpha: factor of every branch.
        skip_gain: a learned scalar, at first 0, multiplies every branch as well.
        gate: factor of squeeze-excite's gates, which on average are 1/2.
    """

    kind: ClassVar[str] = "nf"
    alpha: float = 0.2
    skip_gain: bool = True
    gate: float = 2.0

    @property
    def gate_gain(self) -> float:
        return self.gate

    def join(self) -> "Join":
        return ScaledSum(self.alpha, learned=self.skip_gain)

    def initialize(
        self,
        network: nn.Module,
        branches: Sequence[Sequence[nn.Conv2d]],  # noqa: ARG002
        head: nn.Linear,
    ) -> None:
        """As in the authors' code: fan-in for convolutions, N(0, 0.01^2) for the classifier."""
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)

    def deviations(self, depths: Sequence[int]) -> list[list[float]]:
        """beta of every block; the first of a stage is a transition.

        The very first block's input, which comes from the stem, has variance 1.
        """
        betas, var = [], 1.0
        for depth in depths:
            stage = []
            for block in range(depth):
                stage.append(sqrt(var))
                # After a transition both of its paths start from a variance of 1.
                var = (1.0 if block == 0 else var) + self.alpha**2
            betas.append(stage)
        return betas


@dataclass(frozen=True)
class FixUp(Residual):
    """Scalars around convolutions, and an initialization that knows the depth.

    Args:
        rate: learning rate of the scalars, and of the classifier's bias, over that of all else.
    """

    kind: ClassVar[str] = "fixup"
    rate: float = 0.1

    def join(self) -> "Join":
        return ShiftedSum(self.rate)

    def before_conv(self) -> nn.Module:
        return ScalarShift(self.rate)

    def initialize(
        self,
        network: nn.Module,  # noqa: ARG002
        branches: Sequence[Sequence[nn.Conv2d]],
        head: nn.Linear,
    ) -> None:
        """Section 3, rules 1 and 2.

        All but the last of the m convolutions of a branch: N(0, 2 / fan-out) times
        L^(-1 / (2m - 2)), L the number of branches; the last, and the classifier: 0. The bias of
        the classifier learns as the scalars do, as in the authors' code.
        """
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        head.rates = {"bias": self.rate}  # type: ignore[assignment]
        for convs in branches:
            factor = len(branches) ** (-1 / (2 * len(convs) - 2))
            for conv, _next in pairwise(convs):
                fan_out = conv.out_channels * conv.kernel_size[0] * conv.kernel_size[1]
                nn.init.normal_(conv.weight, std=sqrt(2 / fan_out) * factor)
            nn.init.zeros_(convs[-1].weight)


class Join(nn.Module):
    """Where a residual branch ends: (shortcut, branch) -> what goes on."""


class Sum(Join):
    """shortcut + branch."""

    def forward(self, shortcut: Tensor, branch: Tensor) -> Tensor:
        return shortcut + branch


class ScaledSum(Join):
    """shortcut + factor * gain * branch, with a learned scalar `gain`, at first 0, or none."""

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
    """x + bias, one scalar."""

    roles: ClassVar[dict[str, str]] = {"bias": "residual"}

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rates = {"bias": rate}
        self.bias = nn.Parameter(torch.zeros(()))  # a number, which widens no dtype

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class ShiftedSum(Join):
    """shortcut + scale * branch + bias, two scalars."""

    roles: ClassVar[dict[str, str]] = {"scale": "residual", "bias": "residual"}

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rates = {"scale": rate, "bias": rate}
        self.scale = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, shortcut: Tensor, branch: Tensor) -> Tensor:
        return shortcut + self.scale * branch + self.bias
