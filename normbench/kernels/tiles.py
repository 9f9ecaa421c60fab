"""What the sides of both families that call kernels have in common: tiles, strides, parameters."""

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

#: Activations that there are kernels for, by number; `tlu` has a threshold for every channel.
ACTIVATIONS = {None: 0, "identity": 0, "relu": 1, "silu": 2, "tlu": 3}
LARGEST = 16384  # values of a tile: of 16 warps each thread has 32
USUAL = 4096


@dataclass(frozen=True)
class Tile:
    """How a program walks through its part of an image: channels, positions, and the threads."""

    channels: int
    positions: int

    @property
    def warps(self) -> int:
        return min(16, max(1, self.channels * self.positions // 1024))


def accumulator(x: Tensor) -> Any:
    """In what sums are taken."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def wide_dtype(x: Tensor) -> torch.dtype:
    """The same as torch knows it."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def dense(x: Tensor) -> Tensor:
    """`x`, or a copy, in one of the two memory formats."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def placed_like(gradient: Tensor, x: Tensor) -> Tensor:
    """`gradient`, or a copy, with the strides of `x`."""
    if gradient.stride() == x.stride():
        return gradient
    return torch.empty_like(x, dtype=gradient.dtype).copy_(gradient)


def strides(x: Tensor) -> tuple[int, int, int]:
    """From image to image, from channel to channel and from position to position."""
    last = x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last)
    return (x.stride(0), 1, x.shape[1]) if last else (x.stride(0), x.stride(1), 1)


def given(parameter: Tensor | None, x: Tensor) -> Tensor:
    """A parameter for a kernel; where there is none something that it will not read."""
    return x if parameter is None else parameter.contiguous()
