"""Group normalization (Wu and He 2018, eq. 1, 2 and 7) and layer normalization, its case G = 1.

    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var of each image over the C/G channels of a group and all positions, axes
(c/g, h, w); weight and bias per channel, not per group. Nothing differs in evaluation.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.layer import (
    Grouped,
    NormAct,
    Normalizer,
    largest_divisor,
    require_positive,
)


@dataclass(frozen=True)
class GroupNorm(Grouped):
    """Statistics over groups of channels of one image; `groups` and `eps` as in `Grouped`."""

    def layer(self, channels: int, act: str | None = "relu") -> "GroupNormAct":
        return GroupNormAct(channels, act, largest_divisor(channels, self.groups), self.eps)


@dataclass(frozen=True)
class LayerNorm(Normalizer):
    """Statistics over all channels and positions of one image (Ba, Kiros and Hinton 2016, eq. 3).

    For maps this is one group over (C, H, W) with gain and shift per channel. ConvNeXt's layer of
    the same name, over the channels of each position, is another one.

    Args:
        eps: added to the variance, inside the square root.
    """

    eps: float = 1e-5
    batch_independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(eps=self.eps)

    def layer(self, channels: int, act: str | None = "relu") -> "GroupNormAct":
        return GroupNormAct(channels, act, 1, self.eps)


class GroupNormAct(NormAct):
    """The layer of both, with `groups` groups."""

    batch_independent = True

    def __init__(self, channels: int, act: str | None, groups: int, eps: float) -> None:
        super().__init__(channels, act)
        self.groups = groups
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # torch takes the moments of half precision in fp32 by itself.
        return self.activation(F.group_norm(x, self.groups, self.weight, self.bias, self.eps))

    def normalize(self, x: Tensor) -> Tensor:
        """The normalized input, before gain, shift and activation."""
        return F.group_norm(x, self.groups, eps=self.eps)

    def reference(self, x: Tensor) -> Tensor:
        grouped = x.double().reshape(len(x), self.groups, -1)  # (N, G, C/G * H * W)
        mean = grouped.mean(dim=2, keepdim=True)
        var = ((grouped - mean) ** 2).mean(dim=2, keepdim=True)
        y = (grouped - mean) / torch.sqrt(var + self.eps)
        return self.activation(self.affine(y.reshape(x.shape)))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.groups}"
