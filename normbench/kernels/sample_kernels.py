"""Kernels of statistics of one image; the equations are those of `normbench.kernels.per_sample`."""

import triton
import triton.language as tl

from normbench.kernels.maps import (
    activated,
    at_threshold,
    before_activation,
    of_channels,
    sigmoid,
)


@triton.jit
def _of_group(sums, SETS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sums of channels -> at every channel the sum of its group."""
    if SETS == 1:
        sums = tl.zeros_like(sums) + tl.sum(sums, axis=0)
    elif SETS < BLOCK_C:
        parts = tl.reshape(sums, (SETS, BLOCK_C // SETS))
        whole = tl.sum(parts, axis=1)[:, None] + tl.zeros_like(parts)
        sums = tl.reshape(whole, (BLOCK_C,))
    return sums


@triton.jit
def _value(x, m, r, w, b, v, t, s, q, GATED: tl.constexpr, ACT: tl.constexpr, PROXY: tl.constexpr):
    a = x * sigmoid(v * x) if GATED else x - m
    z = activated(a * (r * w) + b, t, ACT)
    if PROXY:
        z = (z - s) * q
    return z


@triton.jit
def _derivatives(
    x, g, m, r, w, b, v, t, s, q, GATED: tl.constexpr, ACT: tl.constexpr, PROXY: tl.constexpr
):  # fmt: skip
    """At one value: gradient of y, a and its slope, and what gate or tau, shift and scale get."""
    nothing = tl.zeros_like(x)
    to_third, to_shift, to_scale = nothing, nothing, nothing
    if GATED:
        gated = sigmoid(v * x)
        slope = gated * (1 + v * x * (1 - gated))
        a = x * gated
    else:
        slope = nothing + 1.0
        a = x - m
    y = a * (r * w) + b
    if PROXY:
        to_scale = g * (activated(y, t, ACT) - s)
        g = g * q
        to_shift = -g
    if ACT == 3:
        to_third = at_threshold(g, y, t)
    g = before_activation(g, y, t, ACT)
    if GATED:
        to_third = g * w * r * x * x * gated * (1 - gated)
    return g, a, slope, to_third, to_shift, to_scale


@triton.jit
def _parameters(
    weight, bias, gate, tau, shift, scale, c, inside, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GATE: tl.constexpr, ACT: tl.constexpr, PROXY: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Those of the channels `c`, in the order in which `_value` takes them."""
    w = of_channels(weight, c, inside, 1.0, HAS_WEIGHT, ACC)
    b = of_channels(bias, c, inside, 0.0, HAS_BIAS, ACC)
    v = of_channels(gate, c, inside, 1.0, HAS_GATE, ACC)
    t = of_channels(tau, c, inside, 0.0, ACT == 3, ACC)
    s = of_channels(shift, c, inside, 0.0, PROXY, ACC)
    q = of_channels(scale, c, inside, 1.0, PROXY, ACC)
    return w, b, v, t, s, q


@triton.jit
def _leave(at, apart, inside, to_weight, to_bias, to_third, to_shift, to_scale):
    """Partial sums of channels."""
    tl.store(at, to_weight, mask=inside)
    tl.store(at + apart, to_bias, mask=inside)
    tl.store(at + 2 * apart, to_third, mask=inside)
    tl.store(at + 3 * apart, to_shift, mask=inside)
    tl.store(at + 4 * apart, to_scale, mask=inside)


@triton.jit
def _through_statistics(
    root, mean, r, count, MEAN: tl.constexpr, SETS: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Factors of (x - m) and of 1 in the gradient: what comes by way of the statistics.

    dq/dx = 2 (x - m) / count and dr/dq = -r^3 / 2; the root's own gradient is `root` over r.
    """
    k1 = -r * r * (_of_group(root, SETS, BLOCK_C) / count)[:, None]
    k0 = tl.zeros_like(k1)
    if MEAN:
        k0 = -(_of_group(mean, SETS, BLOCK_C) / count)[:, None]
    return k1, k0


@triton.jit
def forward(
    x, out, weight, bias, gate, tau, shift, scale, means, roots, C, P, sn, sc, sp, eps,
    GROUP: tl.constexpr, SETS: tl.constexpr, CENTER: tl.constexpr, GATED: tl.constexpr,
    ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GATE: tl.constexpr,
    PROXY: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ONE: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    SPAN: tl.constexpr = SETS * GROUP
    first = tl.program_id(1) * SPAN
    rows = tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    x += n * sn
    out += n * sn
    count = GROUP * P
    mean = tl.zeros((BLOCK_C,), ACC)
    total = tl.zeros((BLOCK_C,), ACC)
    groups = n * (C // GROUP) + (first + tl.minimum(rows, SPAN - 1)) // GROUP
    if ONE:
        c = first + rows
        inside = rows < SPAN
        w, b, v, t, s, q = _parameters(
            weight, bias, gate, tau, shift, scale, c, inside,
            HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
        )  # fmt: skip
        there = inside[:, None] & (columns < P)[None, :]
        at = c[:, None] * sc + columns[None, :] * sp
        tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
        if CENTER:
            mean = _of_group(tl.sum(tile, axis=1), SETS, BLOCK_C) / count
        apart = tl.where(there, tile - mean[:, None], 0.0)
        total = tl.sum(apart * apart, axis=1)
        root = 1 / tl.sqrt(_of_group(total, SETS, BLOCK_C) / count + eps)
        z = _value(tile, mean[:, None], root[:, None], w, b, v, t, s, q, GATED, ACT, PROXY)
        tl.store(out + at, z.to(out.dtype.element_ty), mask=there)
    else:
        if CENTER:
            for c0 in range(0, SPAN, BLOCK_C):
                for p0 in range(0, P, BLOCK_P):
                    there = (c0 + rows < SPAN)[:, None] & (p0 + columns < P)[None, :]
                    at = (first + c0 + rows)[:, None] * sc + (p0 + columns)[None, :] * sp
                    total += tl.sum(tl.load(x + at, mask=there, other=0.0).to(ACC), axis=1)
            mean = _of_group(total, SETS, BLOCK_C) / count
            total = tl.zeros((BLOCK_C,), ACC)
        for c0 in range(0, SPAN, BLOCK_C):
            for p0 in range(0, P, BLOCK_P):
                there = (c0 + rows < SPAN)[:, None] & (p0 + columns < P)[None, :]
                at = (first + c0 + rows)[:, None] * sc + (p0 + columns)[None, :] * sp
                tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
                apart = tl.where(there, tile - mean[:, None], 0.0)
                total += tl.sum(apart * apart, axis=1)
        root = 1 / tl.sqrt(_of_group(total, SETS, BLOCK_C) / count + eps)
        for c0 in range(0, SPAN, BLOCK_C):
            c = first + c0 + rows
            inside = c0 + rows < SPAN
            w, b, v, t, s, q = _parameters(
                weight, bias, gate, tau, shift, scale, c, inside,
                HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
            )  # fmt: skip
            for p0 in range(0, P, BLOCK_P):
                there = inside[:, None] & (p0 + columns < P)[None, :]
                at = c[:, None] * sc + (p0 + columns)[None, :] * sp
                tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
                z = _value(tile, mean[:, None], root[:, None], w, b, v, t, s, q, GATED, ACT, PROXY)
                tl.store(out + at, z.to(out.dtype.element_ty), mask=there)
    # Channels of a group say the same, so that it does not matter which of them is the last.
    tl.store(means + groups, mean)
    tl.store(roots + groups, root)


@triton.jit
def backward(
    x, gradient, dx, weight, bias, gate, tau, shift, scale, means, roots, partial, apart,
    C, P, sn, sc, sp,
    GROUP: tl.constexpr, SETS: tl.constexpr, CENTER: tl.constexpr, GATED: tl.constexpr,
    ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GATE: tl.constexpr,
    PROXY: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ONE: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    SPAN: tl.constexpr = SETS * GROUP
    first = tl.program_id(1) * SPAN
    rows = tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    x += n * sn
    gradient += n * sn
    dx += n * sn
    partial += n * C
    count = GROUP * P
    groups = n * (C // GROUP) + (first + tl.minimum(rows, SPAN - 1)) // GROUP
    m = tl.load(means + groups)[:, None]
    r = tl.load(roots + groups)[:, None]
    if ONE:
        c = first + rows
        inside = rows < SPAN
        w, b, v, t, s, q = _parameters(
            weight, bias, gate, tau, shift, scale, c, inside,
            HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
        )  # fmt: skip
        there = inside[:, None] & (columns < P)[None, :]
        at = c[:, None] * sc + columns[None, :] * sp
        tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
        g = tl.load(gradient + at, mask=there, other=0.0).to(ACC)
        g, a, slope, third, shifted, scaled = _derivatives(
            tile, g, m, r, w, b, v, t, s, q, GATED, ACT, PROXY
        )
        to_weight = tl.sum(g * a * r, axis=1)
        to_bias = tl.sum(g, axis=1)
        _leave(
            partial + c, apart, inside, to_weight, to_bias, tl.sum(third, axis=1),
            tl.sum(shifted, axis=1), tl.sum(scaled, axis=1),
        )  # fmt: skip
        k1, k0 = _through_statistics(
            tl.reshape(w, (BLOCK_C,)) * to_weight, tl.reshape(w * r, (BLOCK_C,)) * to_bias,
            r, count, CENTER and not GATED, SETS, BLOCK_C,
        )  # fmt: skip
        found = g * (w * r) * slope + k1 * (tile - m) + k0
        tl.store(dx + at, found.to(dx.dtype.element_ty), mask=there)
    else:
        through_root = tl.zeros((BLOCK_C,), ACC)
        through_mean = tl.zeros((BLOCK_C,), ACC)
        for c0 in range(0, SPAN, BLOCK_C):
            c = first + c0 + rows
            inside = c0 + rows < SPAN
            w, b, v, t, s, q = _parameters(
                weight, bias, gate, tau, shift, scale, c, inside,
                HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
            )  # fmt: skip
            to_weight = tl.zeros((BLOCK_C,), ACC)
            to_bias = tl.zeros((BLOCK_C,), ACC)
            to_third = tl.zeros((BLOCK_C,), ACC)
            to_shift = tl.zeros((BLOCK_C,), ACC)
            to_scale = tl.zeros((BLOCK_C,), ACC)
            for p0 in range(0, P, BLOCK_P):
                there = inside[:, None] & (p0 + columns < P)[None, :]
                at = c[:, None] * sc + (p0 + columns)[None, :] * sp
                tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
                g = tl.load(gradient + at, mask=there, other=0.0).to(ACC)
                g, a, slope, third, shifted, scaled = _derivatives(
                    tile, g, m, r, w, b, v, t, s, q, GATED, ACT, PROXY
                )
                to_weight += tl.sum(g * a * r, axis=1)
                to_bias += tl.sum(g, axis=1)
                to_third += tl.sum(third, axis=1)
                to_shift += tl.sum(shifted, axis=1)
                to_scale += tl.sum(scaled, axis=1)
            _leave(partial + c, apart, inside, to_weight, to_bias, to_third, to_shift, to_scale)
            through_root += tl.where(inside, tl.reshape(w, (BLOCK_C,)) * to_weight, 0.0)
            through_mean += tl.where(inside, tl.reshape(w * r, (BLOCK_C,)) * to_bias, 0.0)
        k1, k0 = _through_statistics(
            through_root, through_mean, r, count, CENTER and not GATED, SETS, BLOCK_C
        )
        for c0 in range(0, SPAN, BLOCK_C):
            c = first + c0 + rows
            inside = c0 + rows < SPAN
            w, b, v, t, s, q = _parameters(
                weight, bias, gate, tau, shift, scale, c, inside,
                HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
            )  # fmt: skip
            for p0 in range(0, P, BLOCK_P):
                there = inside[:, None] & (p0 + columns < P)[None, :]
                at = c[:, None] * sc + (p0 + columns)[None, :] * sp
                tile = tl.load(x + at, mask=there, other=0.0).to(ACC)
                g = tl.load(gradient + at, mask=there, other=0.0).to(ACC)
                g, a, slope, third, shifted, scaled = _derivatives(
                    tile, g, m, r, w, b, v, t, s, q, GATED, ACT, PROXY
                )
                found = g * (w * r) * slope + k1 * (tile - m) + k0
                tl.store(dx + at, found.to(dx.dtype.element_ty), mask=there)
