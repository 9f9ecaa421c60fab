"""The padding of TensorFlow and JAX called SAME, for convolutions and max pooling with a stride.

A map of n positions becomes one of ceil(n / stride). The zeros that this takes are divided between
both sides, the odd one at the end:

    total = max((ceil(n / stride) - 1) * stride + size - n, 0),   floor(total / 2) of them in front

So a 3x3 of stride 2 pads even maps at the end alone and odd maps on both sides, where torch's fixed
padding of 1 covers both sides of any map. With stride 1 and odd kernels both are the same.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SameConv2d(nn.Conv2d):
    """A convolution with padding SAME, which takes over the parameters of `conv`."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(
            conv.in_channels, conv.out_channels, conv.kernel_size,  # type: ignore[arg-type]
            conv.stride, dilation=conv.dilation,  # type: ignore[arg-type]
            groups=conv.groups, bias=conv.bias is not None,
            device="meta",  # no memory: the parameters of `conv` come next
        )  # fmt: skip
        self.weight, self.bias = conv.weight, conv.bias

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad_for(self, x))


class SameMaxPool2d(nn.Module):
    """Max pooling with padding SAME; padded positions never are the maximum."""

    def __init__(self, size: int, stride: int) -> None:
        super().__init__()
        self.size, self.stride = size, stride

    def forward(self, x: Tensor) -> Tensor:
        least = torch.finfo(x.dtype).min
        return F.max_pool2d(pad_same(x, self.size, self.stride, least), self.size, self.stride)

    def extra_repr(self) -> str:
        return f"{self.size}, stride={self.stride}"


def pad_for(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Pad maps (N, C, H, W) for a convolution with a square kernel."""
    size = conv.dilation[0] * (conv.kernel_size[0] - 1) + 1
    return pad_same(x, size, conv.stride[0])


def pad_same(x: Tensor, size: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad maps (N, C, H, W) with `value` for a square kernel of `size` and `stride`."""
    (top, bottom), (left, right) = (_sides(n, size, stride) for n in x.shape[2:])
    return F.pad(x, (left, right, top, bottom), value=value)


def _sides(positions: int, size: int, stride: int) -> tuple[int, int]:
    """Return the number of padded positions in front and at the end."""
    total = max((-(-positions // stride) - 1) * stride + size - positions, 0)
    return total // 2, total - total // 2
