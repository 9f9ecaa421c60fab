"""What kernels of both families do: read values and parameters of channels, and map them.

a(x) = x - m  or  x * sigmoid(gate * x),   y = a * r + bias,   z = (act(y) - shift) * scale
"""

import triton
import triton.language as tl


@triton.jit
def read(x, c, p, inside, P, sc, sp, ACC: tl.constexpr):
    """Load channels `c` at positions `p`; return values, offsets, and the mask of valid ones."""
    there = inside[:, None] & (p < P)[None, :]
    at = c[:, None] * sc + p[None, :] * sp
    return tl.load(x + at, mask=there, other=0.0).to(ACC), at, there


@triton.jit
def load_channels(parameter, c, inside, other, HAS: tl.constexpr, ACC: tl.constexpr):
    """A parameter of the channels `c`, to be broadcast over positions."""
    if HAS:
        found = tl.load(parameter + c, mask=inside, other=0.0).to(ACC)
    else:
        found = tl.zeros(c.shape, ACC) + other
    return found[:, None]


@triton.jit
def parameters(
    weight, bias, gate, tau, shift, scale, c, inside, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GATE: tl.constexpr, ACT: tl.constexpr, PROXY: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Those of the channels `c`, in this order."""
    w = load_channels(weight, c, inside, 1.0, HAS_WEIGHT, ACC)
    b = load_channels(bias, c, inside, 0.0, HAS_BIAS, ACC)
    v = load_channels(gate, c, inside, 1.0, HAS_GATE, ACC)
    t = load_channels(tau, c, inside, 0.0, ACT == 3, ACC)
    s = load_channels(shift, c, inside, 0.0, PROXY, ACC)
    q = load_channels(scale, c, inside, 1.0, PROXY, ACC)
    return w, b, v, t, s, q


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def activated(y, tau, ACT: tl.constexpr):
    """The activation of `y`; what is no number passes."""
    if ACT == 1:
        y = tl.where(y <= 0, 0.0, y)
    elif ACT == 2:
        y = y * sigmoid(y)
    elif ACT == 3:
        y = tl.where(y < tau, tau, y)
    return y


@triton.jit
def before_activation(g, y, tau, ACT: tl.constexpr):
    """The gradient at the input `y` of an activation, from that at its output."""
    if ACT == 1:
        g = tl.where(y <= 0, 0.0, g)
    elif ACT == 2:
        s = sigmoid(y)
        g = g * s * (1 + y * (1 - s))
    elif ACT == 3:
        g = g - at_threshold(g, y, tau)
    return g


@triton.jit
def at_threshold(g, y, tau):
    """The part of a gradient that goes to the threshold."""
    return tl.where(y < tau, g, tl.where(y == tau, g * 0.5, 0.0))


@triton.jit
def value(x, m, r, b, v, t, s, q, GATED: tl.constexpr, ACT: tl.constexpr, PROXY: tl.constexpr):
    """z of x."""
    a = x * sigmoid(v * x) if GATED else x - m
    z = activated(a * r + b, t, ACT)
    if PROXY:
        z = (z - s) * q
    return z


@triton.jit
def derivatives(
    x, g, m, r, b, v, t, s, q, GATED: tl.constexpr, ACT: tl.constexpr, PROXY: tl.constexpr
):  # fmt: skip
    """The gradient of y, a and its slope, and what gate or tau, shift and scale get."""
    nothing = tl.zeros_like(x)
    to_third, to_shift, to_scale = nothing, nothing, nothing
    if GATED:
        gated = sigmoid(v * x)
        slope = gated * (1 + v * x * (1 - gated))
        a = x * gated
    else:
        slope = nothing + 1.0
        a = x - m
    y = a * r + b
    if PROXY:
        to_scale = g * (activated(y, t, ACT) - s)
        g = g * q
        to_shift = -g
    if ACT == 3:
        to_third = at_threshold(g, y, t)
    g = before_activation(g, y, t, ACT)
    if GATED:
        to_third = g * r * x * x * gated * (1 - gated)
    return g, a, slope, to_third, to_shift, to_scale
