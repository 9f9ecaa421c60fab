"""Layers with statistics of one image, over groups of channels (all of them, or each alone).

    q = mean((x - m)^2) + eps over a group, m its mean or 0,     r = 1 / sqrt(q)
    y = weight * r * a(x) + bias,     a(x) = x - m  or  x * sigmoid(gate * x)
    z = act(y),     out = (z - shift) * scale

A program holds one group of one image in registers, or several small groups. It reads and writes
the map once; the backward pass reads two maps and writes one. Programs write the gradients of
parameters as partial sums per image, which torch adds up. Groups that do not fit (see `fits`) go to
`normbench.norms.kernels.per_worker`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from normbench.norms.base.layer import is_channels_last
from normbench.norms.kernels import tiles
from normbench.norms.kernels.sample_kernels import backward, forward
from normbench.norms.kernels.tiles import Parameters


@dataclass(frozen=True)
class SampleOptions:
    """The options of a layer."""

    groups: int  # of channels
    eps: float  # added to the mean square, inside the root
    center: bool = True  # subtract the mean in the statistics
    gated: bool = False  # a(x) is x * sigmoid(gate * x); an absent gate is 1
    act: str | None = None  # one of tiles.ACTIVATIONS


def fits(x: Tensor, options: SampleOptions, parameters: Parameters) -> bool:
    """Return True if a program can hold a group of `x`, its gradient and the proxy's values."""
    _, channels, positions = _tile(x, options.groups)
    proxies = 1 if parameters.shift is None else 2
    return channels * positions <= tiles.LARGEST // proxies * 4 // tiles.wide_dtype(x).itemsize


def per_sample(x: Tensor, options: SampleOptions, parameters: Parameters) -> Tensor:
    """Compute a layer, (N, C, H, W) -> (N, C, H, W), in the dtype and memory format of `x`.

    The groups of `x` must satisfy `fits`.
    """
    output: Tensor = _PerSample.apply(x, options, *parameters)
    return output


class _PerSample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: SampleOptions, *tensors: Tensor | None) -> Tensor:
        x, parameters = tiles.dense(x), Parameters(*tensors).contiguous()
        out = torch.empty_like(x)
        means, roots = x.new_empty((2, len(x), options.groups), dtype=tiles.wide_dtype(x))
        grid, arguments = _launch_arguments(x, options)
        with torch.cuda.device_of(x):
            forward[grid](x, out, *parameters, means, roots, EPS=options.eps, **arguments)
        ctx.save_for_backward(x, means, roots, *parameters)
        ctx.options = options
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, means, roots, *tensors = ctx.saved_tensors
        parameters = Parameters(*tensors)
        gradient, dx = tiles.stride_like(gradient, x), torch.empty_like(x)
        partial = x.new_empty((5, *x.shape[:2]), dtype=tiles.wide_dtype(x))
        grid, arguments = _launch_arguments(x, ctx.options)
        backward[grid](
            x, gradient, dx, *parameters, means, roots, partial, partial.stride(0), **arguments
        )
        weight, bias, third, shift, scale = partial.sum(1)  # a layer has a gate or a tau
        return dx, None, *parameters.cast(Parameters(weight, bias, third, third, shift, scale))


def _launch_arguments(x: Tensor, options: SampleOptions) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid of programs and the arguments that both kernels share."""
    sets, *tile = _tile(x, options.groups)
    return (len(x), options.groups // sets), {
        "GROUP": x.shape[1] // options.groups, "SETS": sets, "CENTER": options.center,
        "GATED": options.gated, "ACT": tiles.ACTIVATIONS[options.act],
        **tiles.shape_arguments(x), **tiles.tile_arguments(*tile),
    }  # fmt: skip


def _tile(x: Tensor, groups: int) -> tuple[int, int, int]:
    """Return the groups of a program, and channels and positions of the tile that holds them."""
    sets, group, positions = 1, x.shape[1] // groups, x.shape[2] * x.shape[3]
    columns = triton.next_power_of_2(positions)
    # In channels_last neighbouring channels are adjacent in memory, so read several.
    limit = max(tiles.USUAL, 32 * columns) if is_channels_last(x) else tiles.USUAL
    if group & (group - 1) == 0:  # else a tile cannot be split into its groups
        while groups % (2 * sets) == 0 and 2 * sets * group * columns <= limit:
            sets *= 2
    return sets, triton.next_power_of_2(sets * group), columns
