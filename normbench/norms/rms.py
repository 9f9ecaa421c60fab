"""Root-mean-square normalization over the channels of each position (Zhang and Sennrich 2019).

    y = x / sqrt(mean(x^2) + eps),   z = act(weight * y)

with the mean square over all channels at each position of an image, axis (c). There is a gain and,
as in the paper's eq. 4, no shift. Nothing differs in evaluation.

Placement: that of batch normalization.

Elsewhere: timm's `RmsNorm2d` is this layer; its `SimpleNorm2d` has the variance instead of the mean
square; torch's `RMSNorm` normalizes the last axis, with the dtype's epsilon as eps.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import NormAct, Normalizer, Normalizing, upcast
from normbench.norms.base.moments import root_mean_square
from normbench.norms.base.options import positive


@dataclass(frozen=True)
class RmsNorm(Normalizer):
    """Division by the root mean square over the channels of each position.

    Args:
        eps: added to the mean square, inside the square root.
    """

    eps: float = positive(1e-6)  # timm's RmsNorm2d
    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return RmsNormAct(channels, act, self.eps)


class RmsNormAct(Normalizing):
    batch_independent = True

    def __init__(self, channels: int, act: str | None, eps: float) -> None:
        super().__init__(channels, act, shift=False)  # eq. 4 has none
        self.eps = eps

    def normalize(self, x: Tensor) -> Tensor:
        x = upcast(x)
        return x / root_mean_square(x, self.eps, 1)

    def reference_normalize(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(reference_ops.mean(x**2, (1,)) + self.eps)
