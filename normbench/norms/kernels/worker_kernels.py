"""Kernels of moments of channels; the equations are those of `normbench.norms.kernels.per_worker`.

A program has some channels of one image, and one of several parts of their positions.
"""

import triton
import triton.language as tl

from normbench.norms.kernels.pointwise import derivatives, parameters, read, value


@triton.jit
def _of_image(values, c, inside, ACC: tl.constexpr):
    """A number of each channel of an image, to be broadcast over positions."""
    return tl.load(values + c, mask=inside, other=1.0).to(ACC)[:, None]


@triton.jit
def _bound(x, second, v, BOUND: tl.constexpr):
    """z, and its derivatives by x and by the second coefficient."""
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
    """Of the gradient of max(a, b) what goes to `b`; halves where they are equal."""
    return tl.where(b > a, 1.0, tl.where(b == a, 0.5, 0.0))


@triton.jit
def moments_of(
    x, means, squares, C, P, sn, sc, sp, span,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Return mean and sum of squared deviations of a part of each channel of an image."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    inside = c < C
    x += n * sn
    start = tl.program_id(2) * span
    end = tl.minimum(start + span, P)
    total = tl.zeros((BLOCK_C,), ACC)
    for p0 in range(start, end, BLOCK_P):
        tile, _at, _there = read(x, c, p0 + columns, inside, P, sc, sp, ACC)
        total += tl.sum(tile, axis=1)
    mean = total / (end - start)
    total = tl.zeros((BLOCK_C,), ACC)
    for p0 in range(start, end, BLOCK_P):
        tile, _at, there = read(x, c, p0 + columns, inside, P, sc, sp, ACC)
        apart = tl.where(there, tile - mean[:, None], 0.0)
        total += tl.sum(apart * apart, axis=1)
    left = (tl.program_id(2) * tl.num_programs(0) + n) * C + c
    tl.store(means + left, mean, mask=inside)
    tl.store(squares + left, total, mask=inside)


@triton.jit
def forward(
    x, out, first, second, weight, bias, gate, tau, shift, scale, C, P, sn, sc, sp, span,
    BOUND: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GATE: tl.constexpr, PROXY: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    inside = c < C
    m = _of_image(first + n * C, c, inside, ACC)
    r = _of_image(second + n * C, c, inside, ACC)
    w, b, v, t, s, q = parameters(
        weight, bias, gate, tau, shift, scale, c, inside,
        HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
    )  # fmt: skip
    start = tl.program_id(2) * span
    for p0 in range(start, tl.minimum(start + span, P), BLOCK_P):
        tile, at, there = read(x + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        if BOUND:
            z, _, _ = _bound(tile, r, v, BOUND)
            # What is no number is passed on, as torch.maximum does.
            divisor = tl.where(z > m, z, tl.where(m >= z, m, m + z))
            y = tile * (w / divisor) + b
        else:
            y = value(tile, m, r, b, v, t, s, q, GATED, ACT, PROXY)
        tl.store(out + n * sn + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit
def sums(
    x, gradient, first, second, weight, bias, gate, tau, shift, scale, partial, apart,
    C, P, sn, sc, sp, span,
    BOUND: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GATE: tl.constexpr, PROXY: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of first, second, weight, bias, of gate, tau or shift, and of scale."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    inside = c < C
    m = _of_image(first + n * C, c, inside, ACC)
    r = _of_image(second + n * C, c, inside, ACC)
    w, b, v, t, s, q = parameters(
        weight, bias, gate, tau, shift, scale, c, inside,
        HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
    )  # fmt: skip
    to_first = tl.zeros((BLOCK_C,), ACC)
    to_second = tl.zeros((BLOCK_C,), ACC)
    to_weight = tl.zeros((BLOCK_C,), ACC)
    to_bias = tl.zeros((BLOCK_C,), ACC)
    to_third = tl.zeros((BLOCK_C,), ACC)
    to_scale = tl.zeros((BLOCK_C,), ACC)
    start = tl.program_id(2) * span
    for p0 in range(start, tl.minimum(start + span, P), BLOCK_P):
        tile, _at, _there = read(x + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        g, _at, _there = read(gradient + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
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
            g, a, _slope, third, shifted, scaled = derivatives(
                tile, g, m, r, b, v, t, s, q, GATED, ACT, PROXY
            )
            if not GATED:
                to_first -= tl.sum(g * r, axis=1)
            to_second += tl.sum(g * a, axis=1)
            to_third += tl.sum(third + shifted, axis=1)
            to_scale += tl.sum(scaled, axis=1)
        to_bias += tl.sum(g, axis=1)
    left = partial + (tl.program_id(2) * tl.num_programs(0) + n) * C + c
    tl.store(left, to_first, mask=inside)
    tl.store(left + apart, to_second, mask=inside)
    tl.store(left + 2 * apart, to_weight, mask=inside)
    tl.store(left + 3 * apart, to_bias, mask=inside)
    tl.store(left + 4 * apart, to_third, mask=inside)
    tl.store(left + 5 * apart, to_scale, mask=inside)


@triton.jit
def inputs(
    x, gradient, dx, first, second, weight, bias, gate, tau, shift, scale,
    means, to_means, to_vars, C, P, sn, sc, sp, span,
    BOUND: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GATE: tl.constexpr, PROXY: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The gradient of the maps: by their own way, and by mean and variance of the channel."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    inside = c < C
    m = _of_image(first + n * C, c, inside, ACC)
    r = _of_image(second + n * C, c, inside, ACC)
    w, b, v, t, s, q = parameters(
        weight, bias, gate, tau, shift, scale, c, inside,
        HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
    )  # fmt: skip
    mean = _of_image(means + n * C, c, inside, ACC)
    k0 = _of_image(to_means + n * C, c, inside, ACC) / P
    k1 = 2 * _of_image(to_vars + n * C, c, inside, ACC) / P
    start = tl.program_id(2) * span
    for p0 in range(start, tl.minimum(start + span, P), BLOCK_P):
        tile, _at, _there = read(x + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        g, at, there = read(gradient + n * sn, c, p0 + columns, inside, P, sc, sp, ACC)
        if BOUND:
            z, by_x, _ = _bound(tile, r, v, BOUND)
            divisor = tl.maximum(m, z)
            own = g * w * (1 - _share(m, z) * by_x * tile / divisor) / divisor
        else:
            g, _a, slope, _third, _shifted, _scaled = derivatives(
                tile, g, m, r, b, v, t, s, q, GATED, ACT, PROXY
            )
            own = g * r * slope
        found = own + k0 + k1 * (tile - mean)
        tl.store(dx + n * sn + at, found.to(dx.dtype.element_ty), mask=there)
