"""Kernels of moments of channels; the equations are those of `normbench.norms.kernels.per_worker`,
the letters those of `normbench.norms.kernels.pointwise`.

A program has some channels of one image, and one of several parts of their positions, `span` long.
"""

import triton
import triton.language as tl

from normbench.norms.kernels.pointwise import (
    compute,
    differentiate,
    load_channels,
    load_parameters,
    read,
)


@triton.jit
def _locate_part(C, P, span, BLOCK_C: tl.constexpr):
    """Return image, channels, which of these exist, and the range of positions of a program."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    start = tl.program_id(2) * span
    # 64 bits, because offsets of many large maps exceed 32.
    return tl.program_id(0).to(tl.int64), c, c < C, start, tl.minimum(start + span, P)


@triton.jit
def _bound(x, second, v, BOUND: tl.constexpr):
    """Return z, and its derivatives by x and by the second coefficient."""
    if BOUND == 1:
        z = v * x + second
        by_x = v + tl.zeros_like(x)
        by_second = tl.zeros_like(x) + 1.0
    elif BOUND == 2:
        z = (x + 1) * second
        by_x = second + tl.zeros_like(x)
        by_second = x + 1
    else:
        z = second - x
        by_x = tl.zeros_like(x) - 1.0
        by_second = tl.zeros_like(x) + 1.0
    return z, by_x, by_second


@triton.jit
def _share(a, b):
    """Return the part of the gradient of max(a, b) that goes to `b`: none where they are equal."""
    return tl.where(b > a, 1.0, 0.0)


@triton.jit
def moments_of(
    x, means, squares, C, P, sn, sc, sp, span,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute mean and sum of squared deviations of a part of each channel of an image."""
    n, c, inside, start, end = _locate_part(C, P, span, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    x += n * sn
    total = tl.zeros((BLOCK_C,), ACC)
    for p0 in range(start, end, BLOCK_P):
        tile, _offsets, _mask = read(x, c, p0 + columns, inside, P, sc, sp, ACC)
        total += tl.sum(tile, axis=1)
    mean = total / (end - start)
    total = tl.zeros((BLOCK_C,), ACC)
    for p0 in range(start, end, BLOCK_P):
        tile, _offsets, mask = read(x, c, p0 + columns, inside, P, sc, sp, ACC)
        distance = tl.where(mask, tile - mean[:, None], 0.0)
        total += tl.sum(distance * distance, axis=1)
    part = (tl.program_id(2) * tl.num_programs(0) + n) * C + c
    tl.store(means + part, mean, mask=inside)
    tl.store(squares + part, total, mask=inside)


@triton.jit
def forward(
    x, out, first, second, weight, bias, gate, tau, shift, scale, C, P, sn, sc, sp, span,
    BOUND: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute the map."""
    n, c, inside, start, end = _locate_part(C, P, span, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    m = load_channels(first + n * C, c, inside, 1.0, ACC)
    r = load_channels(second + n * C, c, inside, 1.0, ACC)
    w, b, v, t, s, q = load_parameters(weight, bias, gate, tau, shift, scale, c, inside, ACC)
    for p0 in range(start, end, BLOCK_P):
        tile, offsets, mask = read(x + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        if BOUND:
            z, _, _ = _bound(tile, r, v, BOUND)
            # NaN passes, as in torch.maximum.
            divisor = tl.where(z > m, z, tl.where(m >= z, m, m + z))
            y = tile * (w / divisor) + b
        else:
            y = compute(tile, m, r, b, v, t, s, q, GATED, ACT, shift is not None)
        tl.store(out + n * sn + offsets, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def sums(
    x, gradient, first, second, weight, bias, gate, tau, shift, scale, partial, plane,
    C, P, sn, sc, sp, span,
    BOUND: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute gradients of first, second, weight, bias, of gate, tau or shift, and of scale.

    Each is that of a part of a channel of an image; they are `plane` values apart in `partial`.
    """
    n, c, inside, start, end = _locate_part(C, P, span, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    m = load_channels(first + n * C, c, inside, 1.0, ACC)
    r = load_channels(second + n * C, c, inside, 1.0, ACC)
    w, b, v, t, s, q = load_parameters(weight, bias, gate, tau, shift, scale, c, inside, ACC)
    to_first = tl.zeros((BLOCK_C,), ACC)
    to_second = tl.zeros((BLOCK_C,), ACC)
    to_weight = tl.zeros((BLOCK_C,), ACC)
    to_bias = tl.zeros((BLOCK_C,), ACC)
    to_third = tl.zeros((BLOCK_C,), ACC)
    to_scale = tl.zeros((BLOCK_C,), ACC)
    for p0 in range(start, end, BLOCK_P):
        tile, _offsets, _mask = read(x + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        g, _offsets, _mask = read(gradient + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        if BOUND:
            z, _, by_second = _bound(tile, r, v, BOUND)
            divisor = tl.maximum(m, z)
            share = _share(m, z)
            to_divisor = -g * w * tile / (divisor * divisor)
            to_first += tl.sum(to_divisor * (1 - share), axis=1)
            to_second += tl.sum(to_divisor * share * by_second, axis=1)
            to_weight += tl.sum(g * tile / divisor, axis=1)
            to_third += tl.sum(to_divisor * share * tile, axis=1)
        else:
            g, a, _slope, third, to_shift, scaled = differentiate(
                tile, g, m, r, b, v, t, s, q, GATED, ACT, shift is not None
            )
            if not GATED:
                to_first -= tl.sum(g * r, axis=1)
            to_second += tl.sum(g * a, axis=1)
            to_third += tl.sum(third + to_shift, axis=1)
            to_scale += tl.sum(scaled, axis=1)
        to_bias += tl.sum(g, axis=1)
    partial += (tl.program_id(2) * tl.num_programs(0) + n) * C + c
    tl.store(partial, to_first, mask=inside)
    tl.store(partial + plane, to_second, mask=inside)
    tl.store(partial + 2 * plane, to_weight, mask=inside)
    tl.store(partial + 3 * plane, to_bias, mask=inside)
    tl.store(partial + 4 * plane, to_third, mask=inside)
    tl.store(partial + 5 * plane, to_scale, mask=inside)


@triton.jit
def inputs(
    x, gradient, first, second, weight, bias, gate, tau, shift, scale,
    dx, means, to_means, to_vars, C, P, sn, sc, sp, span,
    BOUND: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the maps: through the map, and through the channel's moments."""
    n, c, inside, start, end = _locate_part(C, P, span, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    m = load_channels(first + n * C, c, inside, 1.0, ACC)
    r = load_channels(second + n * C, c, inside, 1.0, ACC)
    w, b, v, t, s, q = load_parameters(weight, bias, gate, tau, shift, scale, c, inside, ACC)
    mean = load_channels(means + n * C, c, inside, 1.0, ACC)
    through_mean = load_channels(to_means + n * C, c, inside, 1.0, ACC) / P
    through_var = 2 * load_channels(to_vars + n * C, c, inside, 1.0, ACC) / P
    for p0 in range(start, end, BLOCK_P):
        tile, _offsets, _mask = read(x + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        g, offsets, mask = read(gradient + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        if BOUND:
            z, by_x, _ = _bound(tile, r, v, BOUND)
            divisor = tl.maximum(m, z)
            through_map = g * w * (1 - _share(m, z) * by_x * tile / divisor) / divisor
        else:
            g, _a, slope, _third, _shift, _scale = differentiate(
                tile, g, m, r, b, v, t, s, q, GATED, ACT, shift is not None
            )
            through_map = g * r * slope
        to_x = through_map + through_mean + through_var * (tile - mean)
        tl.store(dx + n * sn + offsets, to_x.to(dx.dtype.element_ty), mask=mask)
