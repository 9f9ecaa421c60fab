"""Kernels of statistics of one image; the equations are those of
`normbench.norms.kernels.per_sample`, the letters those of `normbench.norms.kernels.pointwise`."""

import triton
import triton.language as tl

from normbench.norms.kernels.pointwise import compute, differentiate, load_parameters, read


@triton.jit
def _sum_groups(sums, SETS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Replace the sum of each channel by that of its group: (BLOCK_C,) -> (BLOCK_C,)."""
    if SETS == 1:
        sums = tl.zeros_like(sums) + tl.sum(sums, axis=0)
    elif SETS < BLOCK_C:
        parts = tl.reshape(sums, (SETS, BLOCK_C // SETS))
        totals = tl.sum(parts, axis=1)[:, None] + tl.zeros_like(parts)
        sums = tl.reshape(totals, (BLOCK_C,))
    return sums


@triton.jit
def _locate_groups(n, c, C, GROUP: tl.constexpr, SPAN: tl.constexpr):
    """Return the offsets of the statistics of the channels `c` of image `n`."""
    last = tl.program_id(1) * SPAN + SPAN - 1
    return n * (C // GROUP) + tl.minimum(c, last) // GROUP


@triton.jit
def forward(
    x, out, weight, bias, gate, tau, shift, scale, means, roots, C, P, sn, sc, sp,
    EPS: tl.constexpr, GROUP: tl.constexpr, SETS: tl.constexpr, CENTER: tl.constexpr,
    GATED: tl.constexpr, ACT: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Normalize the groups of a program, and keep their means and inverse roots."""
    n = tl.program_id(0).to(tl.int64)
    SPAN: tl.constexpr = SETS * GROUP
    rows = tl.arange(0, BLOCK_C)
    c, inside = tl.program_id(1) * SPAN + rows, rows < SPAN
    w, b, v, t, s, q = load_parameters(weight, bias, gate, tau, shift, scale, c, inside, ACC)
    tile, offsets, mask = read(x + n * sn, c, tl.arange(0, BLOCK_P), inside, P, sc, sp, ACC)
    count = GROUP * P
    mean = tl.zeros((BLOCK_C,), ACC)
    if CENTER:
        mean = _sum_groups(tl.sum(tile, axis=1), SETS, BLOCK_C) / count
    distance = tl.where(mask, tile - mean[:, None], 0.0)
    total = tl.sum(distance * distance, axis=1)
    root = 1 / tl.sqrt(_sum_groups(total, SETS, BLOCK_C) / count + EPS)
    z = compute(
        tile, mean[:, None], root[:, None] * w, b, v, t, s, q, GATED, ACT, shift is not None
    )
    tl.store(out + n * sn + offsets, z.to(out.dtype.element_ty), mask=mask)
    # All channels of a group store the same values, so their order does not matter.
    groups = _locate_groups(n, c, C, GROUP, SPAN)
    tl.store(means + groups, mean)
    tl.store(roots + groups, root)


@triton.jit
def backward(
    x, gradient, dx, weight, bias, gate, tau, shift, scale, means, roots, partial, plane,
    C, P, sn, sc, sp,
    GROUP: tl.constexpr, SETS: tl.constexpr, CENTER: tl.constexpr, GATED: tl.constexpr,
    ACT: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the maps, and those of the parameters per channel of an image.

    Through its root a group's statistics add -r^3 (x - m) S / count, S the sum of weight * g * a
    over the group, as dq/dx = 2 (x - m) / count and dr/dq = -r^3 / 2; through its mean -(sum of
    weight * g * r) / count. Gradients of parameters are `plane` values apart.
    """
    n = tl.program_id(0).to(tl.int64)
    SPAN: tl.constexpr = SETS * GROUP
    rows = tl.arange(0, BLOCK_C)
    columns = tl.arange(0, BLOCK_P)
    c, inside = tl.program_id(1) * SPAN + rows, rows < SPAN
    w, b, v, t, s, q = load_parameters(weight, bias, gate, tau, shift, scale, c, inside, ACC)
    groups = _locate_groups(n, c, C, GROUP, SPAN)
    m = tl.load(means + groups)[:, None]
    r = tl.load(roots + groups)[:, None]
    tile, offsets, mask = read(x + n * sn, c, columns, inside, P, sc, sp, ACC)
    g, offsets, mask = read(gradient + n * sn, c, columns, inside, P, sc, sp, ACC)
    g, a, slope, third, to_shift, to_scale = differentiate(
        tile, g, m, r * w, b, v, t, s, q, GATED, ACT, shift is not None
    )
    to_weight = tl.sum(g * a * r, axis=1)
    to_bias = tl.sum(g, axis=1)
    partial += n * C + c
    tl.store(partial, to_weight, mask=inside)
    tl.store(partial + plane, to_bias, mask=inside)
    tl.store(partial + 2 * plane, tl.sum(third, axis=1), mask=inside)
    tl.store(partial + 3 * plane, tl.sum(to_shift, axis=1), mask=inside)
    tl.store(partial + 4 * plane, tl.sum(to_scale, axis=1), mask=inside)
    count = GROUP * P
    through_root = _sum_groups(tl.reshape(w, (BLOCK_C,)) * to_weight, SETS, BLOCK_C)[:, None]
    to_x = g * (w * r) * slope - r * r * (through_root / count) * (tile - m)
    if CENTER and not GATED:
        through_mean = _sum_groups(tl.reshape(w * r, (BLOCK_C,)) * to_bias, SETS, BLOCK_C)[:, None]
        to_x -= through_mean / count
    tl.store(dx + n * sn + offsets, to_x.to(dx.dtype.element_ty), mask=mask)
