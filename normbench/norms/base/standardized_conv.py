"""Convolutions whose weights are standardized in every forward pass.

Weight standardization (Qiao et al. 2019; fan-in I = channels of a filter * its positions):

    W_hat[o] = (W[o] - mean[o]) / sqrt(var[o] + eps)

mean and (biased) var over the I weights of the filter of output channel o. Scaled weight
standardization (Brock, De and Smith 2021, eq. 3) preserves the variance of its input:

    W_hat[o] = gain[o] * (W[o] - mean[o]) / sqrt(max(I * var[o], eps)),   y = W_hat * x + bias

with a learned gain, initially 1, and bias, initially 0. The paper's equation has no eps; its code
takes the maximum, so filters with I * var above eps follow the equation exactly. Nothing differs in
evaluation.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from normbench.errors import Impossible
from normbench.norms.base.same_padding import SameConv2d, pad_for

Kind = Literal["ws", "scaled_ws"]


@dataclass(frozen=True)
class Standardization:
    """The weight standardization that a normalizer asks of convolutions."""

    kind: Kind
    eps: float  # keeps the divisor from 0
    depthwise: bool = True  # False: depthwise convolutions stay plain

    def apply(self, conv: nn.Conv2d) -> nn.Conv2d:
        """Return `conv` converted or, if it is depthwise and those stay plain, as it is."""
        plain = not self.depthwise and conv.groups == conv.in_channels > 1
        return conv if plain else self.convert(conv)

    def convert(self, conv: nn.Conv2d) -> "StandardizedConv2d":
        """Return a convolution with the parameters of `conv` and standardized weights.

        Raises:
            Impossible: a filter has a single weight, which standardization makes 0.
        """
        if conv.weight[0].numel() == 1:
            raise Impossible(
                "weight standardization makes filters of a single weight 0, such as those of a 1x1 "
                "depthwise convolution; use a normalizer without it"
            )
        kind = ScaledStandardizedConv2d if self.kind == "scaled_ws" else StandardizedConv2d
        return kind(conv, self.eps)

    def __str__(self) -> str:
        return self.kind


class StandardizedConv2d(nn.Conv2d):
    """A convolution with weight standardization, which takes over the parameters of `conv`."""

    def __init__(self, conv: nn.Conv2d, eps: float) -> None:
        super().__init__(
            conv.in_channels, conv.out_channels, conv.kernel_size,  # type: ignore[arg-type]
            conv.stride, conv.padding, conv.dilation, conv.groups,  # type: ignore[arg-type]
            conv.bias is not None, conv.padding_mode,
            device="meta",  # no memory: the parameters of `conv` come next
        )  # fmt: skip
        self.weight, self.bias = conv.weight, conv.bias
        self.same = isinstance(conv, SameConv2d)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if self.same:
            x = pad_for(self, x)
        # On the meta device weights have a shape alone, which standardization keeps.
        weight = self.weight if x.is_meta else self.standardized().to(self.weight.dtype)
        out: Tensor = self._conv_forward(x, weight, self.bias)  # pads as `padding_mode` says
        return out

    def standardized(self) -> Tensor:
        """Return the standardized weights (O, I, kH, kW)."""
        centered, var = self._centered_and_variance()
        return centered * torch.rsqrt(var + self.eps)

    def _centered_and_variance(self) -> tuple[Tensor, Tensor]:
        """Return centered weights, and variances (O, 1, 1, 1), in at least fp32."""
        weight = self.weight.float() if self.weight.dtype.itemsize < 4 else self.weight
        var, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, correction=0)
        return weight - mean, var

    def reference(self) -> Tensor:
        """Compute the weights by the paper's equation, filter by filter in double precision."""
        rows = []
        for row in self.weight.double():
            mean = row.mean()
            rows.append((row - mean) / torch.sqrt(((row - mean) ** 2).mean() + self.eps))
        return torch.stack(rows)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}"  # type: ignore[no-untyped-call]


class ScaledStandardizedConv2d(StandardizedConv2d):
    """A convolution with scaled weight standardization, a gain and a bias per output channel."""

    roles: ClassVar[dict[str, str]] = {"weight": "weight", "gain": "gain", "bias": "shift"}

    def __init__(self, conv: nn.Conv2d, eps: float) -> None:
        super().__init__(conv, eps)
        self.gain = nn.Parameter(self.weight.new_ones(conv.out_channels))
        if conv.bias is None:
            self.bias = nn.Parameter(self.weight.new_zeros(conv.out_channels))

    def standardized(self) -> Tensor:
        centered, var = self._centered_and_variance()
        fan_in = self.weight[0].numel()
        scale = torch.rsqrt(torch.clamp(var * fan_in, min=self.eps))
        return centered * scale * self.gain[:, None, None, None]

    def reference(self) -> Tensor:
        rows = []
        for row, gain in zip(self.weight.double(), self.gain.double(), strict=True):
            mean, fan_in = row.mean(), row.numel()
            var = ((row - mean) ** 2).mean()
            rows.append(gain * (row - mean) / (torch.sqrt(var) * fan_in**0.5))
        return torch.stack(rows)
