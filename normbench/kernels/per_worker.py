"""Statistics of several images: first of every channel of every image, then what they make.

    first, second = coefficients(mean, var)           all (N, C); in PyTorch, by the layer
    affine      y = (x - first) * second + bias,      out = (act(y) - shift) * scale
    bounded     out = weight * x / max(first, z) + bias,   z one of BOUNDS of x and second

The maps are read three times forward and back four times, and twice something is written: the least
that statistics of several images take. Between the kernels lie sums of the size of (N, C), which
torch differentiates; so batch, layer and instance statistics mix as a layer pleases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from normbench.kernels.tiles import (
    ACTIVATIONS,
    USUAL,
    Tile,
    accumulator,
    dense,
    given,
    placed_like,
    strides,
    wide_dtype,
)
from normbench.kernels.worker_kernels import forward, inputs, moments_of, sums

#: What the first divisor is held against, by number: z of the layers B0, B1 and B2 of EvoNorm.
BOUNDS = {"gate * x + second": 1, "(x + 1) * second": 2, "second - x": 3}
Coefficients = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Worker:
    """Which layer it is.

    Args:
        act: of an affine map: None, identity, relu or silu.
        bound: one of `BOUNDS`; None: the map is affine.
    """

    act: str | None = None
    bound: str | None = None


def per_worker(
    x: Tensor,
    options: Worker,
    coefficients: Coefficients,
    *,
    own: tuple[Tensor, ...] = (),
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    gate: Tensor | None = None,
    proxy: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The layer's map, (N, C, H, W) -> (N, C, H, W), in dtype and memory format of `x`.

    Args:
        x: the maps.
        options: which layer it is.
        coefficients: of mean and (biased) variance (N, C) of every channel of every image, and of
            `own`, makes what the map takes; each broadcasts over (N, C).
        own: parameters that `coefficients` needs.
        weight: gain (C,) of a bounded map; that of an affine one is in its second coefficient.
        bias: shift (C,).
        gate: (C,), of the bound that has one.
        proxy: shift and scale (C,) behind the activation of an affine map.
    """
    shift, scale = proxy or (None, None)
    found: Tensor = _PerWorker.apply(
        x, options, coefficients, weight, bias, gate, shift, scale, *own
    )
    return found


class _PerWorker(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, options: Worker, coefficients: Coefficients, *given_: Tensor | None
    ) -> Tensor:
        x = dense(x)
        parameters, own = given_[:5], given_[5:]
        moments = x.new_empty((2, *x.shape[:2]), dtype=wide_dtype(x))
        grid, common = _laid_out(x)
        moments_of[grid](x, *moments, **common)
        with torch.enable_grad():  # what lies between the kernels has a graph of its own
            leaves = [each.detach().requires_grad_() for each in (*moments, *own)]
            made = [each.expand(x.shape[:2]) for each in coefficients(*leaves)]
        first, second = (each.detach().to(moments.dtype).contiguous() for each in made)
        out = torch.empty_like(x)
        told = _told(options, parameters)
        forward[grid](
            x, out, first, second, *(given(each, x) for each in parameters), **common, **told
        )
        ctx.save_for_backward(x, moments, first, second, *parameters)
        ctx.options, ctx.leaves, ctx.made = options, leaves, made
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, first, second, *parameters = ctx.saved_tensors
        gradient, dx = placed_like(gradient, x), torch.empty_like(x)
        grid, common = _laid_out(x)
        told = _told(ctx.options, parameters)
        own = [given(each, x) for each in parameters]
        partial = moments.new_empty((6, *x.shape[:2]))
        sums[grid](x, gradient, first, second, *own, partial, partial.stride(0), **common, **told)
        to_made = [each.to(made.dtype) for each, made in zip(partial[:2], ctx.made, strict=True)]
        needed = [made.requires_grad for made in ctx.made]
        to_leaves = torch.autograd.grad(
            [made for made, wanted in zip(ctx.made, needed, strict=True) if wanted],
            ctx.leaves,
            [each for each, wanted in zip(to_made, needed, strict=True) if wanted],
            allow_unused=True,
        )
        to_mean, to_var = (
            torch.zeros_like(moments[0]) if each is None else each.contiguous()
            for each in to_leaves[:2]
        )
        inputs[grid](
            x,
            gradient,
            dx,
            first,
            second,
            *own[:3],
            own[4],
            moments[0],
            to_mean,
            to_var,
            **common,
            **told,
        )
        to_bias, to_third, to_fourth = partial[3:].sum(1)
        affine = ctx.options.bound is None
        found = (
            (None, to_bias, None, to_third, to_fourth)
            if affine
            else (partial[2].sum(0), to_bias, to_third, None, None)
        )
        direct = (
            None if each is None or its is None else its.to(each.dtype)
            for each, its in zip(parameters, found, strict=True)
        )
        return dx, None, None, *direct, *to_leaves[2:]


def _laid_out(x: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of programs, and what all kernels are told."""
    images, channels = x.shape[:2]
    positions = x.shape[2] * x.shape[3]
    sn, sc, sp = strides(x)
    # Beside each other lie channels in channels_last, and positions else.
    last = sc == 1 and positions > 1
    whole = triton.next_power_of_2(positions)
    wide = 32 if last else max(1, USUAL // 4 // whole)
    wide = min(wide, triton.next_power_of_2(channels))
    tile = Tile(wide, min(whole, max(16, USUAL // wide)))
    return (images, triton.cdiv(channels, wide)), {
        "C": channels, "P": positions, "sn": sn, "sc": sc, "sp": sp, "BLOCK_C": tile.channels,
        "BLOCK_P": tile.positions, "ACC": accumulator(x), "num_warps": tile.warps,
        "enable_fp_fusion": True,
    }  # fmt: skip


def _told(options: Worker, parameters: Any) -> dict[str, Any]:
    weight, bias, gate, shift, _ = parameters
    return {
        "BOUND": 0 if options.bound is None else BOUNDS[options.bound],
        "ACT": ACTIVATIONS[options.act], "HAS_WEIGHT": weight is not None,
        "HAS_BIAS": bias is not None, "HAS_GATE": gate is not None, "PROXY": shift is not None,
    }  # fmt: skip
