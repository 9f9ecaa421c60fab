"""Batch renormalization (Ioffe 2017, algorithm 1), per worker.

    training    y = (x - mean) / sigma_b * r + d,   z = act(weight * y + bias)
                r = clip(sigma_b / sigma, 1 / r_max, r_max),  d = clip((mean - mu) / sigma, +-d_max)

sigma_b = sqrt(var + eps), mean and (biased) var over the images of one worker, axes (n, h, w); mu
and sigma are the running mean and standard deviation before the step. r and d are constants to the
gradient. Then mu and sigma move towards mean and sigma_b by `momentum`; the buffer running_var is
sigma^2 - eps.

    evaluation  y = (x - mu) / sigma

Early in training r = 1 and d = 0, plain batch normalization; then the limits open linearly. The
paper does this from step 5,000 to 25,000 (d) and 40,000 (r); here `start`, `d_open` and `r_open`
are fractions of the training. A run of normbench sets the progress; in your own loop call
`normbench.norms.base.progress.set_progress`. Until then the limits of a layer are open.

Placement: that of batch normalization.

Elsewhere: the port ludvb/batchrenorm adds eps = 1e-3 to the standard deviation. In Keras 2 it is
`BatchNormalization(renorm=True)`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import NormAct
from normbench.norms.base.moments import Moments, expand_sets, set_moments
from normbench.norms.base.options import positive, share
from normbench.norms.base.tensors import per_channel, upcast
from normbench.norms.batch import BatchNorm, BatchNormAct


@dataclass(frozen=True)
class BatchRenorm(BatchNorm):
    """Batch normalization corrected towards the running statistics.

    Other options as in `BatchNorm`.

    Args:
        r_max: limit of the scale correction, at least 1.
        d_max: limit of the mean correction, in standard deviations.
        start: fraction of the training before which nothing is corrected.
        r_open: fraction at which the limit of r reaches `r_max`.
        d_open: fraction at which the limit of d reaches `d_max`.
    """

    momentum: float = share(0.01)  # momentum and limits are the paper's
    r_max: float = 3.0
    d_max: float = positive(5.0)
    start: float = 0.04  # fractions of ours, in place of the paper's steps
    r_open: float = 0.3
    d_open: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.r_max < 1:
            raise ValueError(f"r_max={self.r_max}: it must be at least 1")
        for name in ("r_open", "d_open"):
            if not 0 <= self.start < getattr(self, name) <= 1:
                raise ValueError(
                    f"start={self.start}: it must be at least 0 and below "
                    f"norm.{name}={getattr(self, name)}, which is at most 1"
                )

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return BatchRenormAct(channels, act, self)


class BatchRenormAct(BatchNormAct):
    """The layer; `set_progress` sets the progress of the training."""

    progress: Tensor
    read_in_training = True

    def __init__(self, channels: int, act: str | None, options: BatchRenorm) -> None:
        super().__init__(channels, act, options)
        self.options = options
        # A tensor, so that torch.compile does not recompile the layer at every step.
        self.register_buffer("progress", torch.ones(()), persistent=False)

    def norm_act(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().norm_act(x)
        scale, shift, (mean, var) = self._scale_and_shift(x)
        # The standard deviation moves, not the variance.
        sigma, sigma_b = (torch.sqrt(v + self.eps) for v in (self.running_var, var.detach()))
        sigma = torch.lerp(sigma, sigma_b.mean(0).to(sigma.dtype), self.momentum)
        # A new tensor: after an update in place, a compiled backward pass (torch 2.15) would read
        # the updated values in r.
        self.running_var = sigma.square() - self.eps
        self.track(mean=mean)
        return self.map_scaled(x, scale, shift)

    def normalize(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().normalize(x)
        scale, shift, _ = self._scale_and_shift(x)
        return upcast(x) * per_channel(scale) + per_channel(shift)

    def linear_statistics(self) -> list[Tensor]:
        # The standard deviation moves linearly, its square does not.
        return [self.running_mean, torch.sqrt(self.running_var + self.eps)]

    def load_linear_statistics(self, values: Sequence[Tensor]) -> None:
        mean, sigma = values
        self.running_mean.copy_(mean)
        self.running_var = sigma.square() - self.eps

    def _scale_and_shift(self, x: Tensor) -> tuple[Tensor, Tensor, Moments]:
        """Return scale and shift (N, C) of the maps, and the moments (W, C) of the workers."""
        mean, var = set_moments(x, self.workers)
        r, d = self.corrections(mean.detach(), var.detach())  # constants to the gradient
        # (x - mean) / sigma_b * r + d as one multiplication and one addition on the map.
        scale = torch.rsqrt(var + self.eps) * r
        scale, shift = (expand_sets(each, len(x)) for each in (scale, d - mean * scale))
        return scale, shift, (mean, var)

    def corrections(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return r and d (W, C) for the moments of the workers."""
        r_max, d_max = self.limits()
        sigma = torch.sqrt(self.running_var + self.eps)
        r = torch.sqrt(var + self.eps) / sigma
        d = (mean - self.running_mean) / sigma
        return r.clamp(1 / r_max, r_max), d.clamp(-d_max, d_max)

    def limits(self) -> tuple[Tensor, Tensor]:
        """Return r_max and d_max at the current progress."""
        o = self.options
        r = 1 + (self.progress - o.start) / (o.r_open - o.start) * (o.r_max - 1)
        d = (self.progress - o.start) / (o.d_open - o.start) * o.d_max
        return r.clamp(1, o.r_max), d.clamp(0, o.d_max)

    def reference_normalize(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().reference_normalize(x)
        return reference_ops.by_set(x, self.workers, self._reference_of_worker)

    def _reference_of_worker(self, x: Tensor) -> Tensor:
        sigma = per_channel(torch.sqrt(self.running_var.double() + self.eps))
        mu = per_channel(self.running_mean.double())
        mean = reference_ops.mean(x, reference_ops.BATCH)
        sigma_b = torch.sqrt(reference_ops.variance(x, reference_ops.BATCH) + self.eps)
        r_max, d_max = self.limits()
        with torch.no_grad():  # stop_gradient in the paper
            r = torch.minimum(torch.maximum(sigma_b / sigma, 1 / r_max), r_max)
            d = torch.minimum(torch.maximum((mean - mu) / sigma, -d_max), d_max)
        return (x - mean) / sigma_b * r + d
