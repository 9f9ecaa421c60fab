"""Kernels of statistics of one image; the equations are those of
`normbench.norms.kernels.per_sample`."""

import triton
import triton.language as tl

from normbench.norms.kernels.pointwise import derivatives, parameters, read, value


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
def _groups(n, c, C, GROUP: tl.constexpr, SPAN: tl.constexpr):
    """Where the statistics of the channels `c` of an image are."""
    last = tl.program_id(1) * SPAN + SPAN - 1
    return n * (C // GROUP) + tl.minimum(c, last) // GROUP


@triton.jit
def forward(
    x, out, weight, bias, gate, tau, shift, scale, means, roots, C, P, sn, sc, sp,
    EPS: tl.constexpr, GROUP: tl.constexpr, SETS: tl.constexpr, CENTER: tl.constexpr,
    GATED: tl.constexpr, ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GATE: tl.constexpr, PROXY: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    SPAN: tl.constexpr = SETS * GROUP
    rows = tl.arange(0, BLOCK_C)
    c, inside = tl.program_id(1) * SPAN + rows, rows < SPAN
    w, b, v, t, s, q = parameters(
        weight, bias, gate, tau, shift, scale, c, inside,
        HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
    )  # fmt: skip
    tile, at, there = read(x + n * sn, c, tl.arange(0, BLOCK_P), inside, P, sc, sp, ACC)
    count = GROUP * P
    mean = tl.zeros((BLOCK_C,), ACC)
    if CENTER:
        mean = _of_group(tl.sum(tile, axis=1), SETS, BLOCK_C) / count
    apart = tl.where(there, tile - mean[:, None], 0.0)
    total = tl.sum(apart * apart, axis=1)
    root = 1 / tl.sqrt(_of_group(total, SETS, BLOCK_C) / count + EPS)
    z = value(tile, mean[:, None], root[:, None] * w, b, v, t, s, q, GATED, ACT, PROXY)
    tl.store(out + n * sn + at, z.to(out.dtype.element_ty), mask=there)
    # Channels of a group say the same, so that it does not matter which of them is the last.
    groups = _groups(n, c, C, GROUP, SPAN)
    tl.store(means + groups, mean)
    tl.store(roots + groups, root)


@triton.jit
def backward(
    x, gradient, dx, weight, bias, gate, tau, shift, scale, means, roots, partial, apart,
    C, P, sn, sc, sp,
    GROUP: tl.constexpr, SETS: tl.constexpr, CENTER: tl.constexpr, GATED: tl.constexpr,
    ACT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GATE: tl.constexpr,
    PROXY: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The gradient of the maps, and for every channel of an image what its parameters get.

    By its root a group's statistics add -r^3 (x - m) S / count, S the sum of weight * g * a over
    the group, as dq/dx = 2 (x - m) / count and dr/dq = -r^3 / 2; by its mean -(sum of weight * g *
    r) / count.
    """
    n = tl.program_id(0).to(tl.int64)
    SPAN: tl.constexpr = SETS * GROUP
    rows = tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    c, inside = tl.program_id(1) * SPAN + rows, rows < SPAN
    w, b, v, t, s, q = parameters(
        weight, bias, gate, tau, shift, scale, c, inside,
        HAS_WEIGHT, HAS_BIAS, HAS_GATE, ACT, PROXY, ACC,
    )  # fmt: skip
    groups = _groups(n, c, C, GROUP, SPAN)
    m = tl.load(means + groups)[:, None]
    r = tl.load(roots + groups)[:, None]
    tile, at, there = read(x + n * sn, c, columns, inside, P, sc, sp, ACC)
    g, at, there = read(gradient + n * sn, c, columns, inside, P, sc, sp, ACC)
    g, a, slope, third, to_shift, to_scale = derivatives(
        tile, g, m, r * w, b, v, t, s, q, GATED, ACT, PROXY
    )
    to_weight = tl.sum(g * a * r, axis=1)
    to_bias = tl.sum(g, axis=1)
    left = partial + n * C + c
    tl.store(left, to_weight, mask=inside)
    tl.store(left + apart, to_bias, mask=inside)
    tl.store(left + 2 * apart, tl.sum(third, axis=1), mask=inside)
    tl.store(left + 3 * apart, tl.sum(to_shift, axis=1), mask=inside)
    tl.store(left + 4 * apart, tl.sum(to_scale, axis=1), mask=inside)
    count = GROUP * P
    through_root = _of_group(tl.reshape(w, (BLOCK_C,)) * to_weight, SETS, BLOCK_C)[:, None]
    found = g * (w * r) * slope - r * r * (through_root / count) * (tile - m)
    if CENTER and not GATED:
        through_mean = _of_group(tl.reshape(w * r, (BLOCK_C,)) * to_bias, SETS, BLOCK_C)[:, None]
        found -= through_mean / count
    tl.store(dx + n * sn + at, found.to(dx.dtype.element_ty), mask=there)
