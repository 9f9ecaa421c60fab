"""EvoNorm (Liu, Brock, Simonyan and Le 2020): normalization and activation found as one expression.

    S0    z = x * sigmoid(v * x) / sqrt(var + eps) * weight + bias

(appendix A of the paper) with the biased var of each image over the C/G channels of a group and all
positions, axes (c/g, h, w), and a learned v per channel, at first 1. The numerator is not centered.
Nothing differs in evaluation.

Where no activation follows, as before a residual addition, the layer is `weight * x + bias` alone:
it does not normalize (appendix A: nonlinearity=False).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from normbench.norms.layer import Grouped, NormAct, Role, largest_divisor, per_channel, wide


@dataclass(frozen=True)
class EvoNormS0(Grouped):
    """EvoNorm-S0, whose statistics are those of one image; `groups` and `eps` as in `Grouped`."""

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        if act is None:  # before a residual addition: affine alone, as the paper has it
            return Affine(channels)
        return EvoNormS0Act(channels, act, largest_divisor(channels, self.groups), self.eps)


class EvoNormS0Act(NormAct):
    """The layer; `act` only says that an activation stood here. It has no `normalize`."""

    batch_independent = True
    roles: ClassVar[dict[str, Role]] = {**NormAct.roles, "v": "gain"}

    def __init__(self, channels: int, act: str, groups: int, eps: float) -> None:
        super().__init__(channels, act)
        self.groups = groups
        self.eps = eps
        self.v = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = wide(x)  # a variance in bf16 would be no variance
        var = y.reshape(len(y), self.groups, -1).var(dim=2, unbiased=False)  # (N, G)
        # (N, G) -> (N, C): every channel the divisor of its group.
        scale = torch.rsqrt(var + self.eps).repeat_interleave(self.channels // self.groups, dim=1)
        # Gain and divisor meet on (N, C), so the map itself is multiplied only once by both.
        gain = (scale * self.weight)[:, :, None, None]
        z = y * torch.sigmoid(per_channel(self.v) * y) * gain + per_channel(self.bias)
        return z.to(x.dtype)

    def reference(self, x: Tensor) -> Tensor:
        x = x.double()
        grouped = x.reshape(len(x), self.groups, -1)  # (N, G, C/G * H * W)
        mean = grouped.mean(dim=2, keepdim=True)
        var = ((grouped - mean) ** 2).mean(dim=2, keepdim=True)
        std = torch.sqrt(var + self.eps).expand_as(grouped).reshape(x.shape)
        return self.affine(x * torch.sigmoid(per_channel(self.v) * x) / std)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.groups}"


class Affine(NormAct):
    """Gain and shift alone: what EvoNorm leaves of a layer that no activation follows."""

    batch_independent = True

    def __init__(self, channels: int) -> None:
        super().__init__(channels, None)

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(x).to(x.dtype)

    def reference(self, x: Tensor) -> Tensor:
        return self.affine(x.double())
