"""Batch normalization (Ioffe and Szegedy 2015, algorithms 1 and 2), per worker.

    training    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var over the images of one worker and all positions, axes (n, h, w), for each
channel. Each step moves the running statistics towards the batch's by `momentum`, the weight of
the *new* value; running_var takes the unbiased variance, as in torch (E[var] * m/(m-1) in the
paper, algorithm 2 line 10). With several workers they move towards the mean over the workers.

    evaluation  the running statistics replace mean and var: a fixed affine map

Synchronized batch normalization is the same with a single worker that holds all images of the
optimizer step, on whatever devices and in whatever passes they are. Frozen batch normalization is
the fixed map of an evaluation also in training, with the statistics, gains and shifts of another
training.

Placement: between a convolution without bias and its activation (v1), or before the convolution,
with one more layer before the final mean (v2). Before a residual addition: without activation.

Elsewhere:

- Google's TPU and EfficientNet code calls the weight of the *old* value momentum (0.9, 0.97).
- Flax and Haiku store the biased variance, TensorFlow's fused kernel the unbiased one. Haiku also
  corrects the moving averages for their start at 0.
- Goyal et al. 2017 start the last gain of every residual branch at 0; here every gain starts at 1.
- torch's `convert_sync_batchnorm` drops the activation of fused layers; timm's keeps it.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.norms.base import reference_ops
from normbench.norms.base.devices import count_devices
from normbench.norms.base.layer import (
    Activation,
    Constants,
    NormAct,
    Normalizer,
    Normalizing,
)
from normbench.norms.base.moments import Moments, normalize_by, set_moments, split_sets
from normbench.norms.base.options import positive, share
from normbench.norms.base.running import RunningStatistics, normalize_weighted, running_moments
from normbench.norms.base.tensors import per_channel, upcast
from normbench.norms.normalizer_free import NoNorm
from normbench.norms.whole_step import WholeStep
from normbench.norms.workers import PerWorker

WeightAndBias = tuple[Tensor | None, Tensor | None]
TORCH_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
TORCH_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def is_batch_norm(layer: nn.Module) -> bool:
    """Return True for a layer of any author with running statistics of batches, frozen or not."""
    return hasattr(layer, "running_var") and not isinstance(layer, (NormAct, *TORCH_INSTANCE_NORMS))


def has_undivided_batch_norm(network: nn.Module) -> bool:
    """Return True if a batch normalization never has the statistics of a worker, as torch's."""
    return any(is_batch_norm(m) and not isinstance(m, PerWorker) for m in network.modules())


@dataclass(frozen=True)
class BatchNorm(Normalizer):
    """Batch normalization with statistics over the images of a worker.

    Args:
        momentum: weight of a step's statistics in the running statistics.
        eps: added to the variance, inside the square root.
    """

    momentum: float = share(0.1)
    eps: float = positive(1e-5)
    batch_independent: ClassVar[bool] = False

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return BatchNormAct(channels, act, self)

    def inherit_options(self, old: nn.Module) -> Self:
        """Return this normalizer with momentum and eps of a replaced batch normalization.

        An option that is not at its default stays.
        """
        return replace(self, **_inherited(self, old, "momentum", "eps"))


class BatchNormAct(PerWorker, RunningStatistics, Normalizing):
    """The layer; with one worker it is `torch.nn.BatchNorm2d` and the activation, bit for bit."""

    inherited = ("weight", "bias", "running_mean", "running_var")
    shown: ClassVar[tuple[str, ...]] = ("act", "example_weight")

    def __init__(self, channels: int, act: str | None, options: BatchNorm) -> None:
        super().__init__(channels, act)
        self.eps = options.eps
        self.register_running(channels, options.momentum)

    def refusal(self, shape: torch.Size) -> str:
        images, _, height, width = shape
        if not self.reads_batch or images // self.sets(images) * height * width != 1:
            return ""
        return (
            "batch normalization of a single value per channel: a worker has 1 image of a 1x1 map; "
            "use batch=2 or a larger map"
        )

    @property
    def reads_batch(self) -> bool:
        """True if the statistics are those of the images at hand."""
        return self.training and not self.keeps_statistics

    def norm_act(self, x: Tensor) -> Tensor:
        if self.weighs_examples:
            return super().norm_act(x)
        return self.activation(self._fused(x, (self.weight, self.bias), track=True))

    def split_front(self) -> tuple[Constants, nn.Module] | None:
        if self.weighs_examples:
            return None
        mean, var = running_moments(self)
        return (mean, var, self.eps, self.weight, self.bias), Activation(self.act)

    def normalize(self, x: Tensor) -> Tensor:
        if self.weighs_examples:
            return normalize_weighted(self, x, self.channels, self.example_weight)
        return self._fused(x, (None, None), track=False)  # a probe must not move statistics

    def _fused(self, x: Tensor, affine: WeightAndBias, *, track: bool) -> Tensor:
        """Normalize `x` and apply gain and shift in one operation of torch."""
        mean, var = self.running_mean, self.running_var
        if not self.reads_batch:
            return F.batch_norm(x, mean, var, *_repeat(affine, 1), eps=self.eps)
        sets = self.sets(len(x))
        # (C,) -> (S*C,): each set updates its own copy; gain and shift are repeated.
        running = _repeat((mean, var), sets) if track else (None, None)
        # (N, C, H, W') -> (N/S, S*C, H, W'): a channel per set and channel. A view in NCHW; in
        # channels_last no such view exists, so flatten copies.
        folded = split_sets(x, sets).flatten(1, 2)
        weight, bias = _repeat(affine, sets)
        y = F.batch_norm(folded, *running, weight, bias, True, self.momentum, self.eps)
        for buffer, copies in zip((mean, var), running, strict=True):
            if copies is not None:
                # Each copy has moved towards the statistics of one set. Moves are linear, so the
                # mean of the copies has moved towards the mean of the sets: (S*C,) -> (C,).
                buffer.copy_(copies.view(sets, -1).mean(0))
        return y.reshape(x.shape)

    def reference_normalize(self, x: Tensor) -> Tensor:
        if self.reads_batch:
            return reference_ops.by_set(
                x,
                self.sets(len(x)),
                lambda images: reference_ops.standardize(images, reference_ops.BATCH, self.eps),
            )
        mean, var = (per_channel(each.double()) for each in running_moments(self))
        return (x - mean) / torch.sqrt(var + self.eps)


@dataclass(frozen=True)
class FrozenBatchNorm(Normalizer):
    """Batch normalization that another training has finished (He et al. 2017, Mask R-CNN).

    Args:
        eps: added to the variance, inside the square root.
    """

    eps: float = positive(1e-5)
    batch_independent: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return FrozenBatchNormAct(channels, act, BatchNorm(eps=self.eps))

    @property
    def for_new_layers(self) -> Normalizer:
        """No normalization: no other training has finished these layers."""
        return NoNorm()

    def inherit_options(self, old: nn.Module) -> Self:
        """Return this normalizer with the eps of a replaced batch normalization, if none is set."""
        return replace(self, **_inherited(self, old, "eps"))


class FrozenBatchNormAct(BatchNormAct):
    """The layer: running statistics, gain and shift never change."""

    batch_independent = True
    keeps_statistics = True
    unfinished = (
        "norm=frozen_bn: it keeps statistics, gains and shifts of a network that was trained with "
        "bn, as with init_from=RUN@last or weights of timm (+model.arguments.pretrained=true); "
        "norm=bn works from scratch"
    )

    def __init__(self, channels: int, act: str | None, options: BatchNorm) -> None:
        super().__init__(channels, act, options)
        for parameter in self.parameters():
            parameter.requires_grad = False
        self.has_inherited_statistics = False

    def inherit_parameters(self, old: nn.Module) -> None:
        """Copy gain, shift and statistics, and note whether `old` had statistics."""
        super().inherit_parameters(old)
        self.has_inherited_statistics = getattr(old, "running_var", None) is not None


@dataclass(frozen=True)
class SyncBatchNorm(BatchNorm):
    """Batch normalization over all images of an optimizer step; options as in `BatchNorm`."""

    worker_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return SyncBatchNormAct(channels, act, self)


class SyncBatchNormAct(WholeStep, BatchNormAct):
    """The layer; devices merge their moments, and gradients flow through the merge."""

    whole_step = True
    worker_independent = True

    def sets(self, images: int) -> int:  # noqa: ARG002 (always one set)
        return 1

    def refusal(self, shape: torch.Size) -> str:
        if self.shared_moments is not None:
            return ""
        return super().refusal(torch.Size((shape[0] * count_devices(), *shape[1:])))

    def norm_act(self, x: Tensor) -> Tensor:
        if not self.training or self.holds_whole_step:
            return super().norm_act(x)
        mean, var = self.step_moments(x)
        if self.shared_moments is None:
            self.track_step((mean, var), x.numel() // self.channels * count_devices())
        return self.map_standardized(x, mean, torch.rsqrt(var + self.eps))

    def normalize(self, x: Tensor) -> Tensor:
        if not self.training or self.holds_whole_step:
            return super().normalize(x)
        return normalize_by(upcast(x), self.step_moments(x), self.eps)

    def pass_moments(self, x: Tensor) -> Moments:
        return set_moments(x, 1)

    def track_step(self, moments: Moments, values: int) -> None:
        mean, var = moments
        self.track(mean=mean, var=var * (values / (values - 1)))  # unbiased, as torch keeps it


def _inherited(norm: Normalizer, old: nn.Module, *names: str) -> dict[str, float]:
    """Return the options of a replaced batch normalization that are at their defaults in `norm`."""
    if not isinstance(old, TORCH_BATCH_NORMS):
        return {}
    default = BatchNorm()
    return {
        name: getattr(old, name)
        for name in names
        if getattr(old, name) is not None and getattr(norm, name) == getattr(default, name)
    }


def _repeat(pair: WeightAndBias, times: int) -> WeightAndBias:
    # Parameters may be half precision, running statistics never; the kernel needs one dtype.
    first, second = (None if each is None else upcast(each).repeat(times) for each in pair)
    return first, second
