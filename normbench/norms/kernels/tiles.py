"""Tiles, strides and parameters, for the code that launches the kernels of both families."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

#: Activations that there are kernels for, by number; `tlu` has a threshold for every channel.
ACTIVATIONS = {None: 0, "identity": 0, "relu": 1, "silu": 2, "tlu": 3}
LARGEST = 8192  # values of a tile: eight registers of a multiprocessor for each
USUAL = 4096


@dataclass(frozen=True)
class Tile:
    """The block of channels and positions that a program computes at a time."""

    channels: int
    positions: int

    @property
    def arguments(self) -> dict[str, Any]:
        """The kernel arguments of the tile."""
        return {
            "BLOCK_C": self.channels, "BLOCK_P": self.positions,
            "num_warps": min(16, max(1, self.channels * self.positions // 512)),
            "enable_fp_fusion": True,  # explicit, because Triton's default is to change
        }  # fmt: skip


def accumulator(x: Tensor) -> Any:
    """Return the Triton dtype of sums."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def wide_dtype(x: Tensor) -> torch.dtype:
    """Return the torch dtype of sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def dense(x: Tensor) -> Tensor:
    """`x`, or a copy, in one of the two memory formats."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def placed_like(gradient: Tensor, x: Tensor) -> Tensor:
    """`gradient`, or a copy, with the strides of `x`."""
    if gradient.stride() == x.stride():
        return gradient
    return torch.empty_like(x, dtype=gradient.dtype).copy_(gradient)


def lies_last(x: Tensor) -> bool:
    """Whether values of a position lie beside each other, and not those of a channel."""
    return (
        x.stride(1) == 1
        and x.shape[2] * x.shape[3] > 1
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def strides(x: Tensor) -> tuple[int, int, int]:
    """From image to image, from channel to channel and from position to position."""
    return (x.stride(0), 1, x.shape[1]) if lies_last(x) else (x.stride(0), x.stride(1), 1)


def given(parameter: Tensor | None, x: Tensor) -> Tensor:
    """A parameter for a kernel; where there is none something that it will not read."""
    return x if parameter is None else parameter.contiguous()


def presence(parameters: Sequence[Tensor | None]) -> dict[str, bool]:
    """Which of weight, bias, gate, tau, shift and scale there are."""
    weight, bias, gate, _, shift, _ = parameters
    return {
        "HAS_WEIGHT": weight is not None, "HAS_BIAS": bias is not None,
        "HAS_GATE": gate is not None, "PROXY": shift is not None,
    }  # fmt: skip


def in_dtypes(
    gradients: Sequence[Tensor | None], parameters: Sequence[Tensor | None]
) -> Iterator[Tensor | None]:
    """Gradients of those parameters that there are, in their dtypes."""
    for found, parameter in zip(gradients, parameters, strict=True):
        yield None if found is None or parameter is None else found.to(parameter.dtype)
