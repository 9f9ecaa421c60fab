"""Parameters, tiles and strides, for the code that launches the kernels of both families."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from normbench.norms.base.layer import is_channels_last

#: Numbers of the activations that kernels compute; `tlu` has a threshold per channel.
ACTIVATIONS = {None: 0, "identity": 0, "relu": 1, "silu": 2, "tlu": 3}
LARGEST = 8192  # values of the largest tile
USUAL = 4096  # values of a tile where there is a choice


class Parameters(NamedTuple):
    """Parameters (C,) of the map of a layer (`normbench.norms.kernels.pointwise`), or None."""

    weight: Tensor | None = None  # gain
    bias: Tensor | None = None
    gate: Tensor | None = None  # factor of x in the sigmoid, or in the bound of EvoNorm-B0
    tau: Tensor | None = None  # threshold of the activation tlu
    shift: Tensor | None = None  # mean of the proxy, subtracted after the activation
    scale: Tensor | None = None  # inverse deviation of the proxy, a factor after the activation

    def contiguous(self) -> "Parameters":
        """Return the parameters with adjacent values, as kernels read them."""
        return Parameters(*(None if each is None else each.contiguous() for each in self))

    def cast(self, gradients: "Parameters") -> Iterator[Tensor | None]:
        """Yield the gradient of each parameter in its dtype; None where there is no parameter."""
        for parameter, gradient in zip(self, gradients, strict=True):
            if parameter is None or gradient is None:
                yield None
            else:
                yield gradient.to(parameter.dtype)


def tile_arguments(channels: int, positions: int) -> dict[str, Any]:
    """Return the kernel arguments of the block of the map that a program computes at a time."""
    return {
        "BLOCK_C": channels, "BLOCK_P": positions,
        # A warp has 32 threads: 16 values each, in registers.
        "num_warps": min(16, max(1, channels * positions // 512)),
        "enable_fp_fusion": True,  # explicit, because Triton's default is to change
    }  # fmt: skip


def wide_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def dense(x: Tensor) -> Tensor:
    """Return `x`, or a copy, in one of the two memory formats."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def stride_like(gradient: Tensor, x: Tensor) -> Tensor:
    """Return `gradient`, or a copy, with the strides of `x`."""
    if gradient.stride() == x.stride():
        return gradient
    return torch.empty_like(x, dtype=gradient.dtype).copy_(gradient)


def shape_arguments(x: Tensor) -> dict[str, Any]:
    """Return the kernel arguments of sizes, strides (of image, channel, position) and sums."""
    channel, position = (1, x.shape[1]) if is_channels_last(x) else (x.stride(1), 1)
    return {
        "C": x.shape[1], "P": x.shape[2] * x.shape[3],
        "sn": x.stride(0), "sc": channel, "sp": position,
        "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32,
    }  # fmt: skip
