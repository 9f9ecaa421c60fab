"""Layers with statistics of several images, merged from those of every channel of every image.

    first, second = coefficients(mean, var)           all (N, C); in PyTorch, by the layer
    affine      y = (x - first) * second + bias,      out = (act(y) - shift) * scale
    gated       y = x * sigmoid(gate * x) * second + bias,   out = y
    bounded     out = weight * x / max(first, z) + bias,   z one of BOUNDS of x and second

Kernels read the maps twice for mean and variance and once for the output; backward reads maps and
gradient for the sums and again for the gradient of the input. Between the kernels are tensors of
shape (N, C), which torch differentiates, so a layer may mix statistics of batches, layers and
groups. Positions are split so that few images and channels still make many programs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from normbench.norms.kernels.tiles import (
    ACTIVATIONS,
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
from normbench.norms.kernels.worker_kernels import forward, inputs, moments_of, sums

#: The second argument of the maximum, z of EvoNorm B0, B1 and B2, by number.
BOUNDS = {"gate * x + second": 1, "(x + 1) * second": 2, "second - x": 3}
PROGRAMS = 512  # several for each multiprocessor of a GPU
Coefficients = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Worker:
    """The options of a layer.

    Args:
        act: of an affine map: None, identity, relu, silu or tlu.
        gated: whether the map is gated, with 1 for a gate that is not given.
        bound: one of `BOUNDS` of a bounded map.
    """

    act: str | None = None
    gated: bool = False
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
    tau: Tensor | None = None,
    proxy: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute a layer, (N, C, H, W) -> (N, C, H, W), in dtype and memory format of `x`.

    Args:
        x: the maps.
        options: the layer's options.
        coefficients: of mean and (biased) variance (N, C) of every channel of every image, and of
            `own`, makes what the map takes; each broadcasts over (N, C).
        own: parameters that `coefficients` needs.
        weight: gain (C,) of a bounded map; that of others is in their second coefficient.
        bias: shift (C,).
        gate: (C,), of a gated map and of the bound that has one.
        tau: thresholds (C,), of the activation tlu.
        proxy: shift and scale (C,) behind the activation of an affine map.
    """
    shift, scale = proxy or (None, None)
    found: Tensor = _PerWorker.apply(
        x, options, coefficients, weight, bias, gate, tau, shift, scale, *own
    )
    return found


class _PerWorker(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, options: Worker, coefficients: Coefficients, *given_: Any
    ) -> Tensor:
        x = dense(x)
        parameters, own = given_[:6], given_[6:]
        moments = _moments(x)
        with torch.enable_grad():  # the coefficients have a graph of their own
            leaves = [each.detach().requires_grad_() for each in (*moments, *own)]
            made = [each.expand(x.shape[:2]) for each in coefficients(*leaves)]
        first, second = (each.detach().to(moments[0].dtype).contiguous() for each in made)
        out = torch.empty_like(x)
        grid, arguments = _launch_arguments(x)
        by_kernel = (given(each, x) for each in parameters)
        with torch.cuda.device_of(x):
            forward[grid](
                x, out, first, second, *by_kernel, **arguments, **_which(options, parameters)
            )
        ctx.save_for_backward(x, moments[0], first, second, *parameters)
        ctx.options, ctx.leaves, ctx.made = options, leaves, made
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, first, second, *parameters = ctx.saved_tensors
        gradient, dx = placed_like(gradient, x), torch.empty_like(x)
        grid, arguments = _launch_arguments(x)
        arguments |= _which(ctx.options, parameters)
        maps = (x, gradient)
        own = (first, second, *(given(each, x) for each in parameters))
        partial = mean.new_empty((6, grid[2] * len(x), x.shape[1]))
        sums[grid](*maps, *own, partial, partial.stride(0), **arguments)
        to_first, to_second, *others = partial.unflatten(1, (grid[2], -1)).sum(1)
        to_mean, to_var, *to_own = _through(ctx.made, ctx.leaves, (to_first, to_second))
        to_moments = (
            torch.zeros_like(mean) if each is None else each.contiguous()
            for each in (to_mean, to_var)
        )
        inputs[grid](*maps, dx, *own, mean, *to_moments, **arguments)
        weight, bias, third, scale = (each.sum(0) for each in others)
        by_gate = ctx.options.bound is not None or ctx.options.gated
        by_tau = ctx.options.act == "tlu"
        found = (
            weight, bias, third if by_gate else None, third if by_tau else None, third, scale
        )  # fmt: skip
        return dx, None, None, *in_dtypes(found, parameters), *to_own


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and (biased) variance (N, C) of every channel of every image."""
    grid, arguments = _launch_arguments(x)
    shape = (grid[2], *x.shape[:2])
    means, squares = x.new_empty((2, *shape), dtype=wide_dtype(x))
    with torch.cuda.device_of(x):
        moments_of[grid](x, means, squares, **arguments)
    count, span = arguments["P"], arguments["span"]
    if grid[2] == 1:
        return means[0], squares[0] / count
    rest = count - (grid[2] - 1) * span  # positions of the last part
    mean = (means[:-1].sum(0) * span + means[-1] * rest) / count
    apart = (means - mean).square()
    return mean, (squares.sum(0) + apart[:-1].sum(0) * span + apart[-1] * rest) / count


def _through(
    made: Sequence[Tensor], leaves: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `leaves` from those of the coefficients `made` from them."""
    needed = [each.requires_grad for each in made]
    outputs = [each for each, wanted in zip(made, needed, strict=True) if wanted]
    wanted = [
        each.to(own.dtype)
        for each, own, wanted in zip(gradients, made, needed, strict=True)
        if wanted
    ]
    # The graph is small, of shape (N, C), and gradients may be taken twice.
    return torch.autograd.grad(outputs, leaves, wanted, allow_unused=True, retain_graph=True)


def _launch_arguments(x: Tensor) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Return the grid of programs and the arguments that all kernels share."""
    images, channels = x.shape[:2]
    positions = x.shape[2] * x.shape[3]
    sn, sc, sp = strides(x)
    whole = triton.next_power_of_2(positions)
    # Channels are adjacent in channels_last, positions otherwise.
    wide = 64 if lies_last(x) else max(1, USUAL // 4 // whole)
    wide = min(wide, triton.next_power_of_2(channels))
    tile = Tile(wide, min(whole, max(16, USUAL // 2 // wide)))
    blocks = triton.cdiv(channels, wide)
    tiles = triton.cdiv(positions, tile.positions)
    span = tile.positions * triton.cdiv(tiles * images * blocks, max(PROGRAMS, images * blocks))
    return (images, blocks, triton.cdiv(positions, span)), {
        "C": channels, "P": positions, "sn": sn, "sc": sc, "sp": sp, "span": span,
        **tile.arguments, "ACC": accumulator(x),
    }  # fmt: skip


def _which(options: Worker, parameters: Sequence[Tensor | None]) -> dict[str, Any]:
    """Return the kernel arguments that select the map."""
    return {
        "BOUND": 0 if options.bound is None else BOUNDS[options.bound], "GATED": options.gated,
        "ACT": ACTIVATIONS[options.act], **presence(parameters),
    }  # fmt: skip
