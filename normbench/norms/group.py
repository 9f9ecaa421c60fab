"""Group normalization (Wu and He 2018, eq. 1, 2 and 7) and two of its cases.

    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var of each image over the C/G channels of a group and all positions, axes
(c/g, h, w); weight and bias per channel, not per group. Channel c belongs to group c // (C/G), so
the channels of a group are adjacent; with `grouping: strided` it belongs to group c mod G. Layer
normalization (Ba, Kiros and Hinton 2016, eq. 3) is the case G = 1, instance normalization (Ulyanov,
Vedaldi and Lempitsky 2016, eq. 5) the case G = C. Nothing differs in evaluation, unless
`normbench.norms.inference` sets a weight.

Placement: that of batch normalization. Instance normalization cannot stand before the final mean,
where it makes all images' means equal (Proxy Norm, A.2.2), nor on 1x1 maps.

Elsewhere:

- ConvNeXt's layer normalization and timm's `LayerNorm2d` are another layer: over the channels of
  each position, eps 1e-6.
- torch's `InstanceNorm2d` has no gain and shift unless `affine=True`.
- Graphcore's group norm is strided by default, also in the EfficientNets of Proxy Norm's code.
- torch and timm refuse channels that the groups do not divide; here the largest divisor is used.
- Wu and He start the last gain of every residual branch at 0 and decay gains and shifts.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import Grouped, NormAct, Normalizer, Normalizing
from normbench.norms.base.moments import (
    Moments,
    channel_moments,
    expand_groups,
    group_moments,
    merge_channels,
    order_by_group,
)
from normbench.norms.base.options import positive
from normbench.norms.base.running import normalize_weighted, running_moments


@dataclass(frozen=True)
class GroupNorm(Grouped):
    """Normalization over groups of channels of one image.

    Args:
        groups: number of groups G; a layer uses the largest divisor of its channels up to it.
        eps: added to the variance, inside the square root.
        grouping: strided puts channel c into group c mod G, as Graphcore's code does; null: groups
            of adjacent channels.
    """

    grouping: Literal["strided"] | None = None
    batch_independent: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return GroupNormAct(channels, act, self)


@dataclass(frozen=True)
class LayerNorm(Normalizer):
    """Normalization over all channels and positions of one image.

    Args:
        eps: added to the variance, inside the square root.
    """

    eps: float = positive(1e-5)
    batch_independent: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True

    def groups_of(self, channels: int) -> int:  # noqa: ARG002 (InstanceNorm reads it)
        """Return the number of groups of a layer of `channels` channels."""
        return 1

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return GroupNormAct(channels, act, self)


@dataclass(frozen=True)
class InstanceNorm(LayerNorm):
    """Normalization over the positions of each channel of one image; `eps` as in `LayerNorm`."""

    def groups_of(self, channels: int) -> int:
        return channels


class GroupNormAct(Normalizing):
    """The layer of all three."""

    batch_independent = True
    example_weight: float = 1.0
    shown: ClassVar[tuple[str, ...]] = ("act", "groups", "example_weight")

    def __init__(self, channels: int, act: str | None, options: GroupNorm | LayerNorm) -> None:
        super().__init__(channels, act)
        self.groups = options.groups_of(channels)
        self.strided = isinstance(options, GroupNorm) and options.grouping == "strided"
        self.eps = options.eps

    def refusal(self, shape: torch.Size) -> str:
        _, channels, height, width = shape
        if channels // self.groups * height * width != 1:
            return ""
        return (
            "a group of 1 channel on a 1x1 map is a single value, which normalizes to 0; use fewer "
            "groups or a larger map"
        )

    def norm_act(self, x: Tensor) -> Tensor:
        if self.weighs_examples or self.strided:
            return super().norm_act(x)
        # For half precision torch computes the moments in fp32.
        return self.activation(F.group_norm(x, self.groups, self.weight, self.bias, self.eps))

    def normalize(self, x: Tensor) -> Tensor:
        if self.strided:  # as adjacent channels of reordered maps
            x = order_by_group(x, self.groups, dim=1)
        if self.weighs_examples:
            y = self._normalize_weighted(x)
        else:
            y = F.group_norm(x, self.groups, eps=self.eps)
        return order_by_group(y, self.channels // self.groups, dim=1) if self.strided else y

    def moments(self, x: Tensor) -> Moments:
        """Return mean and variance (N, C) of the group of each channel."""
        if not self.strided:
            mean, var = group_moments(x, self.groups)
            return expand_groups(mean, self.channels), expand_groups(var, self.channels)
        mean, var = (order_by_group(each, self.groups, dim=1) for each in channel_moments(x))
        mean, var = (
            order_by_group(expand_groups(each, self.channels), self.channels // self.groups, dim=1)
            for each in merge_channels(mean, var, self.groups)
        )
        return mean, var

    def _normalize_weighted(self, x: Tensor) -> Tensor:
        mean, var = running_moments(self)
        if self.strided:
            mean, var = (order_by_group(each, self.groups, dim=0) for each in (mean, var))
        return normalize_weighted(self, x, self.groups, self.example_weight, (mean, var))

    def reference_normalize(self, x: Tensor) -> Tensor:
        by_group = reference_ops.by_strided_group if self.strided else reference_ops.by_group
        return by_group(
            x,
            self.groups,
            lambda group: reference_ops.standardize(group, reference_ops.IMAGE, self.eps),
        )
