"""Ghost batch normalization (Hoffer, Hubara and Soudry 2017; Summers and Dinneen 2020, 3.2).

    training    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

as batch normalization, but the images of a worker are divided into groups of `ghost` images, and
mean and (biased) var are those of a group. Of a worker's images the j-th belongs to group
j mod (batch / ghost), so that ghost batch normalization is batch normalization of more and smaller
workers. The running statistics take mean and biased variance of all images of the worker at once,
independent of the grouping, as the code of Summers and Dinneen does.

    evaluation  the running statistics take the place of mean and var: a fixed affine map

Placement: that of batch normalization.

Elsewhere:

- Summers and Dinneen's eq. 4 prints the groups the other way round, `ghost` groups of
  batch / ghost images; their text and code have groups of `ghost` images, as here.
- Their code takes consecutive images for a group; in a shuffled batch that is the same.
- Their running statistics move by 0.01 a step, and they keep E[x^2] instead of the variance, which
  adds the variance between steps.
- Hoffer et al. let every group move the running statistics, one after the other.
- timm's `SplitBatchNorm2d` is another layer: its splits have gains, shifts and running statistics
  of their own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from normbench.norms.base.layer import NormAct, require_positive, upcast
from normbench.norms.base.moments import set_moments
from normbench.norms.batch import BatchNorm, BatchNormAct


@dataclass(frozen=True)
class GhostBatchNorm(BatchNorm):
    """Statistics over groups of a worker's images.

    Args:
        ghost: images of a group, fewer than `batch` and a divisor of it.
        momentum: weight of a step's statistics in the running ones.
        eps: added to the variance, inside the square root.
    """

    ghost: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(ghost=self.ghost)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return GhostBatchNormAct(channels, act, self.momentum, self.eps, self.ghost)


class GhostBatchNormAct(BatchNormAct):
    """The layer."""

    def __init__(
        self, channels: int, act: str | None, momentum: float, eps: float, ghost: int
    ) -> None:
        super().__init__(channels, act, momentum, eps)
        self.ghost = ghost

    def sets(self, images: int) -> int:
        return images // self.ghost

    def refusal(self, shape: torch.Size) -> str:
        own = shape[0] // self.workers
        if self.training and (own <= self.ghost or own % self.ghost):
            return (
                f"norm.ghost={self.ghost}: a group has fewer images than a worker, and divides "
                f"them; a worker has {own} here"
            )
        return super().refusal(shape)

    def norm_act(self, x: Tensor) -> Tensor:
        if self.training:
            mean, var = set_moments(upcast(x), self.workers)
            self.track(mean=mean, var=var)
            return self.activation(self._fused(x, (self.weight, self.bias), track=False))
        return super().norm_act(x)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, ghost={self.ghost}"
