"""Batch normalization (Ioffe and Szegedy 2015, algorithms 1 and 2), per worker.

    training    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var over the images of one worker and all positions, axes (n, h, w), for each
channel. Each step moves the running statistics towards the batch's by `momentum`, the weight of
the *new* value; running_var takes the unbiased variance, as torch does (E[var] * m/(m-1) in the
paper, algorithm 2 line 10). With several workers they are the mean over the workers.

    evaluation  the running statistics take the place of mean and var: a fixed affine map

Synchronized batch normalization is the same over all images of the optimizer step, one worker of
them all, whichever device they are on.

Placement: between a convolution without bias and its activation (v1), or before the convolution,
with a last layer before the final mean (v2). Before a residual addition without activation.

Elsewhere:

- Google's TPU and EfficientNet code calls the weight of the *old* value momentum (0.9, 0.97), and
  keeps the biased variance, as all TensorFlow and JAX code does.
- Goyal et al. 2017 start the last gain of every residual branch at 0; here every gain starts at 1.
- timm's `convert_sync_batchnorm` exists because torch's drops the activation of fused layers.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional as F

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import (
    NormAct,
    Normalizer,
    Normalizing,
    per_channel,
    require_positive,
    require_share,
    saves_only_output,
    upcast,
)
from normbench.norms.base.moments import normalize_by, set_moments
from normbench.norms.base.running import RunningStatistics, weighted_moments
from normbench.norms.workers import PerWorker

Pair = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class BatchNorm(Normalizer):
    """Statistics over the images of a worker.

    Args:
        momentum: weight of a step's statistics in the running ones.
        eps: added to the variance, inside the square root.
    """

    momentum: float = 0.1
    eps: float = 1e-5
    batch_independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive(eps=self.eps)
        require_share(momentum=self.momentum)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return BatchNormAct(channels, act, self.momentum, self.eps)

    def inherit_options(self, old: nn.Module) -> Self:
        """With momentum and eps of a batch normalization, where its own are the usual ones."""
        usual = BatchNorm()
        theirs = {name: getattr(old, name, None) for name in ("momentum", "eps")}
        if not isinstance(old, nn.modules.batchnorm._BatchNorm):
            return self
        unset = {
            name: value
            for name, value in theirs.items()
            if value is not None and getattr(self, name) == getattr(usual, name)
        }
        return replace(self, **unset)


class BatchNormAct(PerWorker, RunningStatistics, Normalizing):
    """The layer; with one worker bit for bit `torch.nn.BatchNorm2d` and the activation."""

    batch_independent = False

    def __init__(self, channels: int, act: str | None, momentum: float, eps: float) -> None:
        super().__init__(channels, act)
        self.eps = eps
        self.register_running(channels, momentum)

    def adopt(self, old: nn.Module) -> None:
        """Start with gain, shift and running statistics of `old`."""
        super().adopt(old)
        self._copy(old, "running_mean", "running_var")

    def refusal(self, shape: torch.Size) -> str:
        images, _, height, width = shape
        if not self.training or images // self.sets(images) * height * width != 1:
            return ""
        return (
            "batch normalization of a single value per channel: a worker has 1 image, and the "
            "map is 1x1 there; batch=2 or a larger map works"
        )

    @property
    def worth_recomputing(self) -> bool:
        return not saves_only_output(self.act)

    def norm_act(self, x: Tensor) -> Tensor:
        if self.example_weight and not self.training:
            return super().norm_act(x)
        return self.activation(self._fused(x, (self.weight, self.bias), track=True))

    def normalize(self, x: Tensor) -> Tensor:
        if not self.example_weight or self.training:
            return self._fused(x, (None, None), track=False)
        x = upcast(x)
        return normalize_by(
            x, weighted_moments(self, x, self.channels, self.example_weight), self.eps
        )

    def _fused(self, x: Tensor, affine: Pair, *, track: bool) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if not self.training:
            return F.batch_norm(x, mean, var, *_repeat(affine, 1), eps=self.eps)
        sets = self.sets(len(x))
        # (C,) -> (S*C,), a copy for each set; gain and shift are shared, so theirs are repeats.
        running = _repeat((mean, var), sets) if track else (None, None)
        weight, bias = _repeat(affine, sets)
        # (N/S, S*C, H, W'): to batch_norm each set's channel is a channel of its own.
        y = F.batch_norm(self.fold(x), *running, weight, bias, True, self.momentum, self.eps)
        for buffer, copies in zip((mean, var), running, strict=True):
            if copies is not None and not self.recomputing:
                # Each copy has moved towards one set's statistics; moving is linear, so the
                # mean of the copies has moved towards the mean of the sets'.
                # (S*C,) -> (S, C) -> (C,)
                buffer.copy_(copies.view(sets, -1).mean(0))
        return y.reshape(x.shape)

    def reference_normalize(self, x: Tensor) -> Tensor:
        if self.training:
            mean = reference_ops.by_set(x, self.sets(len(x)), lambda s: s.mean((0, 2, 3), True))
            var = reference_ops.by_set(
                x, self.sets(len(x)), lambda s: reference_ops.variance(s, reference_ops.BATCH)
            )
        else:
            mean, var = (
                per_channel(self.running_mean.double()),
                per_channel(self.running_var.double()),
            )
        return (x - mean) / torch.sqrt(var + self.eps)


@dataclass(frozen=True)
class SyncBatchNorm(BatchNorm):
    """Statistics over all images of an optimizer step; options as in `BatchNorm`."""

    @property
    def worker_independent(self) -> bool:
        return True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return SyncBatchNormAct(channels, act, self.momentum, self.eps)


class SyncBatchNormAct(BatchNormAct):
    """The layer; across processes the devices' moments are merged, and gradients flow back."""

    whole_step = True

    @property
    def worker_independent(self) -> bool:
        return True

    def sets(self, images: int) -> int:  # noqa: ARG002 (one set, however many there are)
        return 1

    @property
    def worth_recomputing(self) -> bool:
        return _devices() > 1 or super().worth_recomputing  # then no kernel of torch's does it

    def refusal(self, shape: torch.Size) -> str:
        return super().refusal(torch.Size((shape[0] * _devices(), *shape[1:])))

    def _fused(self, x: Tensor, affine: Pair, *, track: bool) -> Tensor:
        if not self.training or _devices() == 1:
            return super()._fused(x, affine, track=track)
        y = upcast(x)
        own_mean, own_var = set_moments(y, 1)  # (1, C); every device has as many images
        mean = all_reduce(own_mean) / _devices()
        # Within the devices and between them: the law of total variance.
        var = all_reduce(own_var + (own_mean - mean).square()) / _devices()
        if track:
            values = x.numel() // self.channels * _devices()
            self.track(mean=mean, var=var * (values / (values - 1)))
        y = normalize_by(y, (mean, var), self.eps)
        weight, bias = affine
        y = y if weight is None else y * per_channel(weight)
        return y if bias is None else y + per_channel(bias)


def _devices() -> int:
    """Processes that share the images of an optimizer step."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def _repeat(pair: Pair, times: int) -> Pair:
    # Parameters may be half precision; running statistics never are. The kernel wants one dtype.
    first, second = (None if each is None else upcast(each).repeat(times) for each in pair)
    return first, second
