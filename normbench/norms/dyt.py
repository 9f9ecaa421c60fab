"""Functions of single values in the place of normalization.

Dynamic tanh (Zhu, Chen, He, LeCun and Liu 2025, eq. 1), with one learned scalar alpha, initially
0.5:

    y = tanh(alpha * x),   z = act(weight * y + bias)

Dynamic erf (Chen, Lu, Zhu, Sun and Liu 2025, arXiv 2512.10938) with a second scalar s, initially 0:

    y = erf(alpha * x + s),   z = act(weight * y + bias)

There are no statistics; nothing differs in evaluation.

Placement: that of batch normalization. The papers replace layer normalization in transformers, and
the first reports a loss of accuracy for ResNets.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from normbench.norms.base.layer import NormAct, Normalizer, Normalizing, Role
from normbench.norms.base.options import positive
from normbench.norms.base.tensors import upcast


@dataclass(frozen=True)
class DynamicTanh(Normalizer):
    """An elementwise tanh with a learned scale.

    Args:
        alpha: initial scale.
    """

    alpha: float = positive(0.5)  # the papers'
    batch_independent: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return DynamicTanhAct(channels, act, self.alpha)


@dataclass(frozen=True)
class DynamicErf(DynamicTanh):
    """An elementwise error function with a learned scale and a learned offset, which starts at 0.

    Args:
        alpha: initial scale.
    """

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return DynamicErfAct(channels, act, self.alpha)


class DynamicTanhAct(Normalizing):
    batch_independent = True
    roles: ClassVar[dict[str, Role]] = {**Normalizing.roles, "alpha": "scalar"}

    def __init__(self, channels: int, act: str | None, alpha: float) -> None:
        super().__init__(channels, act)
        self.alpha = nn.Parameter(torch.full((1,), alpha))

    def normalize(self, x: Tensor) -> Tensor:
        return torch.tanh(self.alpha * upcast(x))

    def reference_normalize(self, x: Tensor) -> Tensor:
        # Of |x|, so that the exponential does not overflow.
        exponential = torch.exp(-2 * self.alpha.double() * x.abs())
        return x.sign() * (1 - exponential) / (1 + exponential)


class DynamicErfAct(DynamicTanhAct):
    roles: ClassVar[dict[str, Role]] = {**DynamicTanhAct.roles, "offset": "scalar"}

    def __init__(self, channels: int, act: str | None, alpha: float) -> None:
        super().__init__(channels, act, alpha)
        self.offset = nn.Parameter(torch.zeros(1))

    def normalize(self, x: Tensor) -> Tensor:
        return torch.erf(self.alpha * upcast(x) + self.offset)

    def reference_normalize(self, x: Tensor) -> Tensor:
        u = self.alpha.double() * x + self.offset.double()
        # By the distribution function of the normal distribution, which erf rescales.
        probability: Tensor = torch.special.ndtr(u * 2**0.5)
        return 2 * probability - 1
