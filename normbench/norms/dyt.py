"""Dynamic tanh, a layer in place of normalization (Zhu, Chen, He, LeCun and Liu 2025, eq. 1).

    y = tanh(alpha * x),   z = act(weight * y + bias)

with one learned scalar alpha, initially 0.5. There are no statistics; nothing differs in
evaluation.

Placement: that of batch normalization. The paper replaces layer normalization in transformers with
it, and reports a loss of accuracy for ResNets.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from normbench.norms.base.layer import NormAct, Normalizer, Normalizing, Role, upcast
from normbench.norms.base.options import positive


@dataclass(frozen=True)
class DynamicTanh(Normalizer):
    """An elementwise tanh with a learned scale.

    Args:
        alpha: initial scale.
    """

    alpha: float = positive(0.5)  # the paper's
    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return DynamicTanhAct(channels, act, self.alpha)


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
