"""Kernels of statistics of several images; the equations are those of `per_worker`, beside here."""

import triton
import triton.language as tl

from normbench.kernels.maps import activated, before_activation, of_channels


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
    x, means, variances, C, P, sn, sc, sp,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    inside = c < C
    x += n * sn
    total = tl.zeros((BLOCK_C,), ACC)
    for p0 in range(0, P, BLOCK_P):
        there = inside[:, None] & (p0 + columns < P)[None, :]
        at = c[:, None] * sc + (p0 + columns)[None, :] * sp
        total += tl.sum(tl.load(x + at, mask=there, other=0.0).to(ACC), axis=1)
    mean = total / P
    total = tl.zeros((BLOCK_C,), ACC)
    for p0 in range(0, P, BLOCK_P):
        there = inside[:, None] & (p0 + columns < P)[None, :]
        at = c[:, None] * sc + (p0 + columns)[None, :] * sp
        tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
        apart = tl.where(there, tile - mean[:, None], 0.0)
        total += tl.sum(apart * apart, axis=1)
    tl.store(means + n * C + c, mean, mask=inside)
    tl.store(variances + n * C + c, total / P, mask=inside)


@triton.jit
def forward(
    x, out, first, second, weight, bias, gate, shift, scale, C, P, sn, sc, sp,
    BOUND: tl.constexpr, ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GATE: tl.constexpr, PROXY: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    inside = c < C
    x += n * sn
    out += n * sn
    m = _of_image(first + n * C, c, inside, ACC)
    a = _of_image(second + n * C, c, inside, ACC)
    w = of_channels(weight, c, inside, 1.0, HAS_WEIGHT, ACC)
    b = of_channels(bias, c, inside, 0.0, HAS_BIAS, ACC)
    v = of_channels(gate, c, inside, 1.0, HAS_GATE, ACC)
    s = of_channels(shift, c, inside, 0.0, PROXY, ACC)
    q = of_channels(scale, c, inside, 1.0, PROXY, ACC)
    for p0 in range(0, P, BLOCK_P):
        there = inside[:, None] & (p0 + columns < P)[None, :]
        at = c[:, None] * sc + (p0 + columns)[None, :] * sp
        tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
        if BOUND:
            z, _, _ = _bound(tile, a, v, BOUND)
            # What is no number is passed on, as torch.maximum does.
            divisor = tl.where(z > m, z, tl.where(m >= z, m, m + z))
            y = tile * (w / divisor) + b
        else:
            y = activated((tile - m) * a + b, 0.0, ACT)
            if PROXY:
                y = (y - s) * q
        tl.store(out + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit
def sums(
    x, gradient, first, second, weight, bias, gate, shift, scale, partial, apart,
    C, P, sn, sc, sp,
    BOUND: tl.constexpr, ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GATE: tl.constexpr, PROXY: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Per channel of an image the gradients of first, second, weight, bias and what follows."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    inside = c < C
    x += n * sn
    gradient += n * sn
    m = _of_image(first + n * C, c, inside, ACC)
    a = _of_image(second + n * C, c, inside, ACC)
    w = of_channels(weight, c, inside, 1.0, HAS_WEIGHT, ACC)
    b = of_channels(bias, c, inside, 0.0, HAS_BIAS, ACC)
    v = of_channels(gate, c, inside, 1.0, HAS_GATE, ACC)
    s = of_channels(shift, c, inside, 0.0, PROXY, ACC)
    q = of_channels(scale, c, inside, 1.0, PROXY, ACC)
    to_first = tl.zeros((BLOCK_C,), ACC)
    to_second = tl.zeros((BLOCK_C,), ACC)
    to_weight = tl.zeros((BLOCK_C,), ACC)
    to_bias = tl.zeros((BLOCK_C,), ACC)
    to_third = tl.zeros((BLOCK_C,), ACC)
    to_fourth = tl.zeros((BLOCK_C,), ACC)
    for p0 in range(0, P, BLOCK_P):
        there = inside[:, None] & (p0 + columns < P)[None, :]
        at = c[:, None] * sc + (p0 + columns)[None, :] * sp
        tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
        g = tl.load(gradient + at, mask=there, other=0.0).to(ACC)
        if BOUND:
            z, _, by_second = _bound(tile, a, v, BOUND)
            divisor = tl.maximum(m, z)
            share = _share(m, z)
            to_divisor = -g * w * tile / (divisor * divisor)
            to_first += tl.sum(to_divisor * (1 - share), axis=1)
            to_second += tl.sum(to_divisor * share * by_second, axis=1)
            to_weight += tl.sum(g * tile / divisor, axis=1)
            to_third += tl.sum(to_divisor * share * tile, axis=1)
        else:
            y = (tile - m) * a + b
            if PROXY:
                to_fourth += tl.sum(g * (activated(y, 0.0, ACT) - s), axis=1)
                g = g * q
                to_third -= tl.sum(g, axis=1)
            g = before_activation(g, y, 0.0, ACT)
            to_first -= tl.sum(g * a, axis=1)
            to_second += tl.sum(g * (tile - m), axis=1)
        to_bias += tl.sum(g, axis=1)
    partial += n * C
    tl.store(partial + c, to_first, mask=inside)
    tl.store(partial + apart + c, to_second, mask=inside)
    tl.store(partial + 2 * apart + c, to_weight, mask=inside)
    tl.store(partial + 3 * apart + c, to_bias, mask=inside)
    tl.store(partial + 4 * apart + c, to_third, mask=inside)
    tl.store(partial + 5 * apart + c, to_fourth, mask=inside)


@triton.jit
def inputs(
    x, gradient, dx, first, second, weight, bias, gate, scale, means, to_means, to_vars,
    C, P, sn, sc, sp,
    BOUND: tl.constexpr, ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GATE: tl.constexpr, PROXY: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The gradient of the maps: by their own way, and by mean and variance of the channel."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    inside = c < C
    x += n * sn
    gradient += n * sn
    dx += n * sn
    m = _of_image(first + n * C, c, inside, ACC)
    a = _of_image(second + n * C, c, inside, ACC)
    w = of_channels(weight, c, inside, 1.0, HAS_WEIGHT, ACC)
    b = of_channels(bias, c, inside, 0.0, HAS_BIAS, ACC)
    v = of_channels(gate, c, inside, 1.0, HAS_GATE, ACC)
    q = of_channels(scale, c, inside, 1.0, PROXY, ACC)
    mean = _of_image(means + n * C, c, inside, ACC)
    k0 = _of_image(to_means + n * C, c, inside, ACC) / P
    k1 = 2 * _of_image(to_vars + n * C, c, inside, ACC) / P
    for p0 in range(0, P, BLOCK_P):
        there = inside[:, None] & (p0 + columns < P)[None, :]
        at = c[:, None] * sc + (p0 + columns)[None, :] * sp
        tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
        g = tl.load(gradient + at, mask=there, other=0.0).to(ACC)
        if BOUND:
            z, by_x, _ = _bound(tile, a, v, BOUND)
            divisor = tl.maximum(m, z)
            own = g * w * (1 - _share(m, z) * by_x * tile / divisor) / divisor
        else:
            own = before_activation(g * q, (tile - m) * a + b, 0.0, ACT) * a
        found = own + k0 + k1 * (tile - mean)
        tl.store(dx + at, found.to(dx.dtype.element_ty), mask=there)
