"""Statistics of one image: of groups of channels, and so of all channels or of each.

    q = mean((x - m)^2) + eps over a group, m its mean or 0,     r = 1 / sqrt(q)
    y = weight * r * a(x) + bias,     a(x) = x - m  or  x * sigmoid(gate * x)
    z = act(y),     out = (z - shift) * scale

A program has one group of one image in its registers, or several small ones beside each other:
the map is read once and written once, and on the way back read twice and written once. What a
program finds for each channel it leaves as a partial sum, and torch adds these up over the images.
Groups that are too large for that are for `normbench.norms.kernels.per_worker`: see `held`.
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
    """Which layer it is.

    Args:
        groups: of channels.
        eps: added to the mean square, inside the root.
        center: whether statistics are those of deviations from the mean.
        gated: whether a(x) is x * sigmoid(gate * x), with 1 for a gate that is not given.
        act: None, identity, relu, silu or tlu.
    """

    groups: int
    eps: float
    center: bool = True
    gated: bool = False
    act: str | None = None


def held(x: Tensor, options: Sample, *, proxy: bool = False) -> bool:
    """Whether a program can hold a group of `x` with its gradient, and what a proxy takes."""
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
    """The layer's map, (N, C, H, W) -> (N, C, H, W), in dtype and memory format of `x`.

    Args:
        x: the maps, in groups that are `held`.
        options: which layer it is.
        weight: gain (C,).
        bias: shift (C,).
        gate: (C,), of gated layers.
        tau: thresholds (C,), of the activation tlu.
        proxy: shift and scale (C,) behind the activation.
    """
    shift, scale = proxy or (None, None)
    found: Tensor = _PerSample.apply(x, options, weight, bias, gate, tau, shift, scale)
    return found


class _PerSample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: Sample, *parameters: Tensor | None) -> Tensor:
        x = dense(x)
        out = torch.empty_like(x)
        means, roots = x.new_empty((2, len(x), options.groups), dtype=wide_dtype(x))
        grid, told = _laid_out(x, options, parameters)
        given_ = (given(each, x) for each in parameters)
        with torch.cuda.device_of(x):
            forward[grid](x, out, *given_, means, roots, EPS=options.eps, **told)
        ctx.save_for_backward(x, means, roots, *parameters)
        ctx.options = options
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, means, roots, *parameters = ctx.saved_tensors
        gradient, dx = placed_like(gradient, x), torch.empty_like(x)
        partial = x.new_empty((5, *x.shape[:2]), dtype=wide_dtype(x))
        grid, told = _laid_out(x, ctx.options, parameters)
        own = (given(each, x) for each in parameters)
        backward[grid](x, gradient, dx, *own, means, roots, partial, partial.stride(0), **told)
        weight, bias, third, shift, scale = partial.sum(1)
        tau = third if ctx.options.act == "tlu" else None
        found = (weight, bias, third if tau is None else None, tau, shift, scale)
        return dx, None, *in_dtypes(found, parameters)


def _laid_out(
    x: Tensor, options: Sample, parameters: Sequence[Tensor | None]
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of programs, and what both kernels are told."""
    images, channels = x.shape[:2]
    sn, sc, sp = strides(x)
    sets, tile = _tile(x, options.groups)
    return (images, options.groups // sets), {
        "C": channels, "P": x.shape[2] * x.shape[3], "sn": sn, "sc": sc, "sp": sp,
        "GROUP": channels // options.groups, "SETS": sets, "CENTER": options.center,
        "GATED": options.gated, "ACT": ACTIVATIONS[options.act], **presence(parameters),
        **tile.told, "ACC": accumulator(x),
    }  # fmt: skip


def _tile(x: Tensor, groups: int) -> tuple[int, Tile]:
    """Groups that a program has, and the tile that holds them."""
    sets, group, positions = 1, x.shape[1] // groups, x.shape[2] * x.shape[3]
    whole = triton.next_power_of_2(positions)
    # In channels_last channels lie beside each other, and a few are not worth their reading.
    most = max(USUAL, 32 * whole) if lies_last(x) else USUAL
    if group & (group - 1) == 0:  # else a tile cannot be parted into its groups
        while groups % (2 * sets) == 0 and 2 * sets * group * whole <= most:
            sets *= 2
    return sets, Tile(triton.next_power_of_2(sets * group), whole)
