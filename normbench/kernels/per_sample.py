"""Statistics of one image: of groups of channels, and so of all channels or of each.

    q = mean((x - m)^2) + eps over a group, m its mean or 0,     r = 1 / sqrt(q)
    y = weight * r * a(x) + bias,     a(x) = x - m  or  x * sigmoid(gate * x)
    z = act(y),     out = (z - shift) * scale

A program has one group of one image, or several small ones beside each other. What a program finds
for each channel it leaves as a partial sum, and torch adds these up over the images.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from normbench.kernels.sample_kernels import backward, forward
from normbench.kernels.tiles import (
    ACTIVATIONS,
    LARGEST,
    USUAL,
    Tile,
    accumulator,
    dense,
    given,
    placed_like,
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
        x: the maps.
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
        grid, common = _laid_out(x, options, parameters, maps=1)
        forward[grid](
            x,
            out,
            *(given(each, x) for each in parameters),
            means,
            roots,
            eps=options.eps,
            **common,
        )
        ctx.save_for_backward(x, means, roots, *parameters)
        ctx.options = options
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, means, roots, *parameters = ctx.saved_tensors
        gradient, dx = placed_like(gradient, x), torch.empty_like(x)
        partial = x.new_empty((5, *x.shape[:2]), dtype=wide_dtype(x))
        grid, common = _laid_out(x, ctx.options, parameters, maps=2)
        own = (given(each, x) for each in parameters)
        backward[grid](x, gradient, dx, *own, means, roots, partial, partial.stride(0), **common)
        weight, bias, third, shift, scale = partial.sum(1)
        tau = third if ctx.options.act == "tlu" else None
        found = (weight, bias, third if tau is None else None, tau, shift, scale)
        own_dtypes = (
            None if each is None or sums is None else sums.to(each.dtype)
            for each, sums in zip(parameters, found, strict=True)
        )
        return dx, None, *own_dtypes


def _laid_out(
    x: Tensor, options: Sample, parameters: Any, maps: int
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of programs, and what all kernels are told; a program holds tiles of `maps`."""
    images, channels = x.shape[:2]
    weight, bias, gate, _, shift, _ = parameters
    sn, sc, sp = strides(x)
    group, positions = channels // options.groups, x.shape[2] * x.shape[3]
    sets, tile = _tile(options.groups, group, positions, last=sc == 1 and positions > 1, maps=maps)
    return (images, options.groups // sets), {
        "C": channels, "P": positions, "sn": sn, "sc": sc, "sp": sp,
        "GROUP": group, "SETS": sets, "CENTER": options.center, "GATED": options.gated,
        "ACT": ACTIVATIONS[options.act], "HAS_WEIGHT": weight is not None,
        "HAS_BIAS": bias is not None, "HAS_GATE": gate is not None, "PROXY": shift is not None,
        "BLOCK_C": tile.channels, "BLOCK_P": tile.positions, "ACC": accumulator(x),
        "ONE": tile.channels >= sets * group and tile.positions >= positions,
        "num_warps": tile.warps, "enable_fp_fusion": True,
    }  # fmt: skip


def _tile(groups: int, group: int, positions: int, *, last: bool, maps: int) -> tuple[int, Tile]:
    """Groups of a program, and its tile: a whole group where it can be held."""
    sets, whole = 1, triton.next_power_of_2(positions)
    if group & (group - 1) == 0:  # else a tile cannot be parted into its groups
        # Beside each other lie channels in channels_last, and positions else.
        while groups % (2 * sets) == 0 and (
            2 * sets * group <= 32 if last else 2 * sets * group * whole <= USUAL
        ):
            sets *= 2
    tile = Tile(triton.next_power_of_2(sets * group), whole)
    if tile.channels * tile.positions <= LARGEST // maps:
        return sets, tile
    wide = min(tile.channels, 64 if last else 8) if sets == 1 else tile.channels
    return sets, replace(tile, channels=wide, positions=min(whole, max(16, USUAL // wide)))
