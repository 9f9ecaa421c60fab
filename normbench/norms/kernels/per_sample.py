"""Layers with statistics of one image, over groups of channels (all of them, or each alone).

    q = mean((x - m)^2) + eps over a group, m its mean or 0,     r = 1 / sqrt(q)
    y = weight * r * a(x) + bias,     a(x) = x - m  or  x * sigmoid(gate * x)
    z = act(y),     out = (z - shift) * scale

A program holds one group of one image in registers, or several small groups. It reads and writes
the map once; the backward pass reads two maps and writes one. Programs write the gradients of
parameters as partial sums per image, which torch adds up. Groups that do not fit (see `fits`) go to
`normbench.norms.kernels.per_worker`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from normbench.norms.kernels.sample_kernels import backward, forward
from normbench.norms.kernels.tiles import (
    ACTIVATIONS,
    LARGEST,
    USUAL,
    Tile,
    accumulator,
    dense,
    given,
    in_dtypes,
    lies_last,
    placed_like,
    presence,
    strides,
    wide_dtype,
)


@dataclass(frozen=True)
class Sample:
    """The options of a layer.

    Args:
        groups: of channels.
        eps: added to the mean square, inside the root.
        center: subtract the mean in the statistics.
        gated: a(x) is x * sigmoid(gate * x); a missing gate is 1.
        act: None, identity, relu, silu or tlu.
    """

    groups: int
    eps: float
    center: bool = True
    gated: bool = False
    act: str | None = None


def fits(x: Tensor, options: Sample, *, proxy: bool = False) -> bool:
    """Whether a program can hold a group of `x`, its gradient and the proxy's values."""
    tile = _tile(x, options.groups)[1]
    most = LARGEST // (2 if proxy else 1) * 4 // wide_dtype(x).itemsize
    return tile.channels * tile.positions <= most


def per_sample(
    x: Tensor,
    options: Sample,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    gate: Tensor | None = None,
    tau: Tensor | None = None,
    proxy: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute a layer, (N, C, H, W) -> (N, C, H, W), in dtype and memory format of `x`.

    Args:
        x: the maps, in groups that satisfy `fits`.
        options: the layer's options.
        weight: gain (C,).
        bias: shift (C,).
        gate: (C,), of gated layers.
        tau: thresholds (C,), of the activation tlu.
        proxy: shift and scale (C,) behind the activation.
    """
    shift, scale = proxy or (None, None)
    output: Tensor = _PerSample.apply(x, options, weight, bias, gate, tau, shift, scale)
    return output


class _PerSample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: Sample, *parameters: Tensor | None) -> Tensor:
        x = dense(x)
        out = torch.empty_like(x)
        means, roots = x.new_empty((2, len(x), options.groups), dtype=wide_dtype(x))
        grid, arguments = _launch_arguments(x, options, parameters)
        given_ = (given(each, x) for each in parameters)
        with torch.cuda.device_of(x):
            forward[grid](x, out, *given_, means, roots, EPS=options.eps, **arguments)
        ctx.save_for_backward(x, means, roots, *parameters)
        ctx.options = options
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, means, roots, *parameters = ctx.saved_tensors
        gradient, dx = placed_like(gradient, x), torch.empty_like(x)
        partial = x.new_empty((5, *x.shape[:2]), dtype=wide_dtype(x))
        grid, arguments = _launch_arguments(x, ctx.options, parameters)
        own = (given(each, x) for each in parameters)
        backward[grid](x, gradient, dx, *own, means, roots, partial, partial.stride(0), **arguments)
        weight, bias, third, shift, scale = partial.sum(1)
        tau = third if ctx.options.act == "tlu" else None
        found = (weight, bias, third if tau is None else None, tau, shift, scale)
        return dx, None, *in_dtypes(found, parameters)


def _launch_arguments(
    x: Tensor, options: Sample, parameters: Sequence[Tensor | None]
) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid of programs and the arguments that both kernels share."""
    images, channels = x.shape[:2]
    sn, sc, sp = strides(x)
    sets, tile = _tile(x, options.groups)
    return (images, options.groups // sets), {
        "C": channels, "P": x.shape[2] * x.shape[3], "sn": sn, "sc": sc, "sp": sp,
        "GROUP": channels // options.groups, "SETS": sets, "CENTER": options.center,
        "GATED": options.gated, "ACT": ACTIVATIONS[options.act], **presence(parameters),
        **tile.arguments, "ACC": accumulator(x),
    }  # fmt: skip


def _tile(x: Tensor, groups: int) -> tuple[int, Tile]:
    """Return the number of groups of a program, and the tile that holds them."""
    sets, group, positions = 1, x.shape[1] // groups, x.shape[2] * x.shape[3]
    whole = triton.next_power_of_2(positions)
    # In channels_last neighbouring channels are adjacent in memory, so read several.
    most = max(USUAL, 32 * whole) if lies_last(x) else USUAL
    if group & (group - 1) == 0:  # else a tile cannot be split into its groups
        while groups % (2 * sets) == 0 and 2 * sets * group * whole <= most:
            sets *= 2
    return sets, Tile(triton.next_power_of_2(sets * group), whole)
