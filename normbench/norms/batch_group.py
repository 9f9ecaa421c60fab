"""Batch-group normalization (Summers and Dinneen 2020, section 3.4), per worker.

    training    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var over the images of one worker (or over sets of `images` of them), the C/G
channels of a group and all positions, axes (n, c/g, h, w); weight and bias per channel. With one
channel per group this is batch normalization, with one image group normalization; the paper
proposes it for 2 images per worker.

    evaluation  images are not grouped: the running means and (biased) variances of the channels,
                merged over the channels of a group, replace mean and var

The paper's results weight each image in its own statistics, as `normbench.norms.inference` does.

Placement: that of batch normalization.

Elsewhere: the paper's code has momentum 0.01 and stores E[x^2] instead of the variance, which adds
the variance between steps. Its groups have max(C // groups, 1) channels, so that 48 channels in 32
groups make 48 groups, and 80 make 40; `more_groups` gives these numbers, where the default makes 24
and 20.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import Activation, Constants, Grouped, NormAct, Normalizing
from normbench.norms.base.moments import (
    Moments,
    expand_groups,
    expand_sets,
    merge_channels,
    merge_images,
    normalize_by,
    set_moments,
)
from normbench.norms.base.options import largest_divisor, positive, share
from normbench.norms.base.running import RunningStatistics, normalize_weighted, running_moments
from normbench.norms.base.tensors import upcast
from normbench.norms.workers import PerWorker


@dataclass(frozen=True)
class BatchGroupNorm(Grouped):
    """Normalization over groups of channels of several images; `groups`, `eps` as in `Grouped`.

    Args:
        images: images that share statistics, a divisor of `batch`; null: all images of a worker.
        more_groups: true: where `groups` does not divide the channels, the next larger number of
            groups that does, as in the authors' code; null: the next smaller one.
        momentum: weight of a step's statistics in the running statistics.
    """

    images: int | None = positive(None)
    more_groups: bool | None = None
    momentum: float = share(0.1)
    batch_independent: ClassVar[bool] = False

    def with_max_groups(self, max_groups: int | None) -> Self:
        capped = super().with_max_groups(max_groups)
        # More groups than `groups` could be more than the model allows.
        return capped if capped.groups == self.groups else replace(capped, more_groups=None)

    def groups_of(self, channels: int) -> int:
        if not self.more_groups:
            return super().groups_of(channels)
        # The largest groups of up to C // groups channels are the fewest groups from `groups` on.
        return channels // largest_divisor(channels, max(channels // self.groups, 1))

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return BatchGroupNormAct(channels, act, self)


class BatchGroupNormAct(PerWorker, RunningStatistics, Normalizing):
    shown: ClassVar[tuple[str, ...]] = ("act", "groups", "images", "example_weight")

    def __init__(self, channels: int, act: str | None, options: BatchGroupNorm) -> None:
        super().__init__(channels, act)
        self.groups = options.groups_of(channels)
        self.images, self.eps = options.images, options.eps
        self.register_running(channels, options.momentum)

    def sets(self, images: int) -> int:
        return self.workers if self.images is None else images // self.images

    def refusal(self, shape: torch.Size) -> str:
        if not self.training:
            return ""
        images, channels, height, width = shape
        batch = images // self.workers
        if self.images is not None and batch % self.images:
            return f"norm.images={self.images} does not divide a worker's {batch} images"
        if images // self.sets(images) * channels // self.groups * height * width == 1:
            return (
                "batch-group normalization of single values: 1 image, 1 channel per group and a "
                "1x1 map; use batch=2, fewer groups or a larger map"
            )
        return ""

    def norm_act(self, x: Tensor) -> Tensor:
        if self.weighs_examples:
            return super().norm_act(x)
        mean, var = self._moments(x, track=True)
        moments = (mean, torch.rsqrt(var + self.eps))
        return self.map_standardized(x, *(expand_groups(each, self.channels) for each in moments))

    def normalize(self, x: Tensor) -> Tensor:
        if self.weighs_examples:
            return normalize_weighted(self, x, self.groups, self.example_weight)
        moments = self._moments(x, track=False)  # a probe must not move statistics
        return normalize_by(upcast(x), moments, self.eps)

    def _moments(self, x: Tensor, *, track: bool) -> Moments:
        """Return mean and variance (N, G) of the groups; (G,) if they are running statistics."""
        if self.training:
            moments = set_moments(x, self.sets(len(x)))
            if track:
                # Set s belongs to worker s mod W: (S, C) -> (W, C).
                mean, var = merge_images(*moments, self.workers)
                self.track(mean=mean, var=var)
            mean, var = merge_channels(*moments, self.groups)
            return expand_sets(mean, len(x)), expand_sets(var, len(x))
        return merge_channels(*running_moments(self), self.groups)

    def split_front(self) -> tuple[Constants, nn.Module] | None:
        if self.weighs_examples:
            return None
        mean, var = merge_channels(*running_moments(self), self.groups)
        mean, var = (expand_groups(each, self.channels) for each in (mean, var))
        return (mean, var, self.eps, self.weight, self.bias), Activation(self.act)

    def reference_normalize(self, x: Tensor) -> Tensor:
        if self.training:
            return reference_ops.by_set(x, self.sets(len(x)), self._reference_of_set)
        m = self.running_mean.double().view(1, -1, 1, 1)
        square = self.running_var.double().view(1, -1, 1, 1) + m**2  # E[x^2] of every channel
        mean = reference_ops.by_group(m, self.groups, torch.mean)
        var = reference_ops.by_group(square, self.groups, torch.mean) - mean**2
        return (x - mean) / torch.sqrt(var + self.eps)

    def _reference_of_set(self, x: Tensor) -> Tensor:
        return reference_ops.by_group(
            x,
            self.groups,
            lambda group: reference_ops.standardize(group, reference_ops.ALL, self.eps),
        )
