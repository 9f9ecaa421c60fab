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

from normbench.norms.base.layer import is_channels_last
from normbench.norms.kernels import tiles
from normbench.norms.kernels.tiles import Parameters
from normbench.norms.kernels.worker_kernels import forward, inputs, moments_of, sums

#: Numbers of the second argument of the maximum, z of EvoNorm B0, B1 and B2.
BOUNDS = {None: 0, "gate * x + second": 1, "(x + 1) * second": 2, "second - x": 3}
PROGRAMS = 512  # several for each multiprocessor of a GPU
Coefficients = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class WorkerOptions:
    """The options of a layer."""

    act: str | None = None  # of an affine map, one of tiles.ACTIVATIONS
    gated: bool = False  # the map is gated; an absent gate is 1
    bound: str | None = None  # of a bounded map, one of BOUNDS


def per_worker(
    x: Tensor,
    options: WorkerOptions,
    parameters: Parameters,
    coefficients: Coefficients,
    *coefficient_parameters: Tensor,
) -> Tensor:
    """Compute a layer, (N, C, H, W) -> (N, C, H, W), in the dtype and memory format of `x`.

    Args:
        x: the maps.
        options: select the map.
        parameters: those of the map; only a bounded one has a weight.
        coefficients: returns the map's two coefficients, which broadcast over (N, C), from mean and
            (biased) variance (N, C) of every channel of every image and `coefficient_parameters`.
        coefficient_parameters: parameters of `coefficients`, which get gradients.
    """
    output: Tensor = _PerWorker.apply(
        x, options, coefficients, *parameters, *coefficient_parameters
    )
    return output


class _PerWorker(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, options: WorkerOptions, coefficients: Coefficients, *tensors: Any
    ) -> Tensor:
        x, count = tiles.dense(x), len(Parameters._fields)
        parameters = Parameters(*tensors[:count]).contiguous()
        moments = _image_moments(x)
        with torch.enable_grad():  # the coefficients have a graph of their own
            leaves = [each.detach().requires_grad_() for each in (*moments, *tensors[count:])]
            outputs = [each.expand(x.shape[:2]) for each in coefficients(*leaves)]
        first, second = (each.detach().to(moments[0].dtype).contiguous() for each in outputs)
        out = torch.empty_like(x)
        grid, arguments = _launch_arguments(x)
        with torch.cuda.device_of(x):
            forward[grid](x, out, first, second, *parameters, **arguments, **_select_map(options))
        ctx.save_for_backward(x, moments[0], first, second, *parameters)
        ctx.options, ctx.leaves, ctx.outputs = options, leaves, outputs
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, first, second, *tensors = ctx.saved_tensors
        parameters = Parameters(*tensors)
        gradient, dx = tiles.stride_like(gradient, x), torch.empty_like(x)
        grid, arguments = _launch_arguments(x)
        arguments |= _select_map(ctx.options)
        partial = mean.new_empty((6, grid[2] * len(x), x.shape[1]))
        values = (x, gradient, first, second, *parameters)
        sums[grid](*values, partial, partial.stride(0), **arguments)
        # (6, parts * N, C) -> (6, N, C)
        to_first, to_second, *others = partial.unflatten(1, (grid[2], -1)).sum(1)
        to_mean, to_var, *to_own = _backward_coefficients(ctx, (to_first, to_second))
        to_moments = (
            torch.zeros_like(mean) if each is None else each.contiguous()
            for each in (to_mean, to_var)
        )
        inputs[grid](*values, dx, mean, *to_moments, **arguments)
        weight, bias, third, scale = (each.sum(0) for each in others)
        # A layer has a gate, a tau or a proxy.
        gradients = Parameters(weight, bias, third, third, third, scale)
        return dx, None, None, *parameters.cast(gradients), *to_own


def _image_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and (biased) variance (N, C) of every channel of every image."""
    grid, arguments = _launch_arguments(x)
    shape = (grid[2], *x.shape[:2])
    means, squares = x.new_empty((2, *shape), dtype=tiles.wide_dtype(x))
    with torch.cuda.device_of(x):
        moments_of[grid](x, means, squares, **arguments)
    count, span = arguments["P"], arguments["span"]
    if grid[2] == 1:
        return means[0], squares[0] / count
    rest = count - (grid[2] - 1) * span  # positions of the last part
    mean = (means[:-1].sum(0) * span + means[-1] * rest) / count
    between = (means - mean).square()
    return mean, (squares.sum(0) + between[:-1].sum(0) * span + between[-1] * rest) / count


def _backward_coefficients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of the leaves of the coefficients from those of the coefficients."""
    leaves: list[Tensor] = ctx.leaves
    pairs = zip(ctx.outputs, gradients, strict=True)
    needed = [(output, each.to(output.dtype)) for output, each in pairs if output.requires_grad]
    outputs, gradients = zip(*needed, strict=True)
    # The graph is small, of shape (N, C), and gradients may be taken twice.
    return torch.autograd.grad(outputs, leaves, gradients, allow_unused=True, retain_graph=True)


def _launch_arguments(x: Tensor) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Return the grid of programs and the arguments that all kernels share."""
    images, channels = x.shape[:2]
    positions = x.shape[2] * x.shape[3]
    columns = triton.next_power_of_2(positions)
    # Channels are adjacent in channels_last, positions otherwise.
    rows = 64 if is_channels_last(x) else max(1, tiles.USUAL // 4 // columns)
    rows = min(rows, triton.next_power_of_2(channels))
    columns = min(columns, max(16, tiles.USUAL // 2 // rows))
    blocks = triton.cdiv(channels, rows)
    count = triton.cdiv(positions, columns) * images * blocks  # of tiles
    span = columns * triton.cdiv(count, max(PROGRAMS, images * blocks))
    grid = images, blocks, triton.cdiv(positions, span)
    return grid, {"span": span, **tiles.shape_arguments(x), **tiles.tile_arguments(rows, columns)}


def _select_map(options: WorkerOptions) -> dict[str, Any]:
    """Return the kernel arguments that select the map."""
    return {
        "BOUND": BOUNDS[options.bound], "GATED": options.gated,
        "ACT": tiles.ACTIVATIONS[options.act],
    }  # fmt: skip
