"""Ghost batch normalization (Hoffer, Hubara and Soudry 2017; Summers and Dinneen 2020, 3.2).

    training    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var per channel over a group of `ghost` images of a worker, axes (n, h, w).
Image j of a worker belongs to group j mod (batch / ghost), so ghost batch normalization is batch
normalization with more and smaller workers. The running statistics take mean and biased variance
of all images of the worker, independent of the grouping, as in the code of Summers and Dinneen.

    evaluation  the running statistics replace mean and var: a fixed affine map

Placement: that of batch normalization.

Elsewhere:

- Summers and Dinneen's eq. 4 has `ghost` groups of batch / ghost images; their text and code have
  groups of `ghost` images, as here.
- Their groups are consecutive images, which in a shuffled batch is equivalent.
- Their momentum is 0.01, and they store E[x^2] instead of the variance, which adds the variance
  between steps.
- Hoffer et al. let every group move the running statistics, one after the other.
- timm's `SplitBatchNorm2d` is another layer: each split has its own gain, shift and running
  statistics.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from normbench.norms.base.layer import NormAct
from normbench.norms.base.moments import set_moments
from normbench.norms.base.options import positive
from normbench.norms.batch import BatchNorm, BatchNormAct


@dataclass(frozen=True)
class GhostBatchNorm(BatchNorm):
    """Batch normalization over groups of a worker's images; other options as in `BatchNorm`.

    Args:
        ghost: images per group, a divisor of `batch` and less than it.
    """

    ghost: int = positive(4)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return GhostBatchNormAct(channels, act, self)


class GhostBatchNormAct(BatchNormAct):
    shown: ClassVar[tuple[str, ...]] = ("act", "ghost", "example_weight")

    def __init__(self, channels: int, act: str | None, options: GhostBatchNorm) -> None:
        super().__init__(channels, act, options)
        self.ghost = options.ghost

    def sets(self, images: int) -> int:
        return images // self.ghost  # of all workers

    def refusal(self, shape: torch.Size) -> str:
        batch = shape[0] // self.workers
        if self.training and (batch <= self.ghost or batch % self.ghost):
            return (
                f"norm.ghost={self.ghost}: it must divide a worker's images and be fewer; "
                f"a worker has {batch} here"
            )
        return super().refusal(shape)

    def norm_act(self, x: Tensor) -> Tensor:
        if self.training:
            mean, var = set_moments(x, self.workers)
            self.track(mean=mean, var=var)
            return self.activation(self._fused(x, (self.weight, self.bias), track=False))
        return super().norm_act(x)
