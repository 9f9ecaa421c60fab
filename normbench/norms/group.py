"""Group normalization (Wu and He 2018, eq. 1, 2 and 7) and two of its cases.

    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var of each image over the C/G channels of a group and all positions, axes
(c/g, h, w); weight and bias per channel, not per group. Layer normalization (Ba, Kiros and Hinton
2016, eq. 3) is the case G = 1, instance normalization (Ulyanov, Vedaldi and Lempitsky 2016, eq. 5)
the case G = C. Nothing differs in evaluation, unless `normbench.norms.inference` sets a weight.

Placement: that of batch normalization. Instance normalization cannot stand before the final mean,
where it makes all images' means equal (Proxy Norm, A.2.2), nor on 1x1 maps.

Elsewhere:

- ConvNeXt's layer normalization and timm's `LayerNorm2d` are another layer: over the channels of
  each position, eps 1e-6.
- torch's `InstanceNorm2d` has no gain and shift unless `affine=True`.
- torch and timm refuse channels that the groups do not divide; here the largest divisor is used.
- Wu and He start the last gain of every residual branch at 0 and decay gains and shifts.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import (
    Grouped,
    NormAct,
    Normalizer,
    Normalizing,
    largest_divisor,
    require_positive,
    saves_only_output,
    upcast,
)
from normbench.norms.base.moments import normalize_by
from normbench.norms.base.running import weighted_moments


@dataclass(frozen=True)
class GroupNorm(Grouped):
    """Normalization over groups of channels of one image.

    Args:
        groups: number of groups G; a layer uses the largest divisor of its channels up to it.
        eps: added to the variance, inside the square root.
    """

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return GroupNormAct(channels, act, largest_divisor(channels, self.groups), self.eps)


@dataclass(frozen=True)
class LayerNorm(Normalizer):
    """Normalization over all channels and positions of one image.

    Args:
        eps: added to the variance, inside the square root.
    """

    eps: float = 1e-5
    batch_independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(eps=self.eps)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return GroupNormAct(channels, act, 1, self.eps)


@dataclass(frozen=True)
class InstanceNorm(LayerNorm):
    """Normalization over the positions of each channel of one image.

    Args:
        eps: added to the variance, inside the square root.
    """

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return GroupNormAct(channels, act, channels, self.eps)


class GroupNormAct(Normalizing):
    """The layer of all three, with `groups` groups."""

    batch_independent = True
    example_weight: float = 1.0

    def __init__(self, channels: int, act: str | None, groups: int, eps: float) -> None:
        super().__init__(channels, act)
        self.groups = groups
        self.eps = eps

    def refusal(self, shape: torch.Size) -> str:
        _, channels, height, width = shape
        if channels // self.groups * height * width != 1:
            return ""
        return (
            "a group of 1 channel on a 1x1 map is a single value, which normalizes to 0; use fewer "
            "groups or a larger map"
        )

    @property
    def worth_recomputing(self) -> bool:
        # On a GPU, autocast runs group_norm in fp32 and saves fp32 maps.
        return not saves_only_output(self.act) or torch.is_autocast_enabled("cuda")

    def norm_act(self, x: Tensor) -> Tensor:
        if self._mixes():
            return super().norm_act(x)
        # For half precision torch computes the moments in fp32.
        return self.activation(F.group_norm(x, self.groups, self.weight, self.bias, self.eps))

    def normalize(self, x: Tensor) -> Tensor:
        if not self._mixes():
            return F.group_norm(x, self.groups, eps=self.eps)
        x = upcast(x)
        return normalize_by(
            x, weighted_moments(self, x, self.groups, self.example_weight), self.eps
        )

    def _mixes(self) -> bool:
        return not self.training and self.example_weight != 1

    def reference_normalize(self, x: Tensor) -> Tensor:
        mean = reference_ops.by_group(
            x, self.groups, lambda g: reference_ops.mean(g, reference_ops.IMAGE)
        )
        var = reference_ops.by_group(
            x, self.groups, lambda g: reference_ops.variance(g, reference_ops.IMAGE)
        )
        return (x - mean) / torch.sqrt(var + self.eps)
