"""The map of values that kernels of both families compute, and its derivatives.

    a(x) = x - m  or  x * sigmoid(gate * x),   y = a * r + bias,   z = (act(y) - shift) * scale

In kernels m, r, w (weight), b (bias), v (gate), t (tau), s (shift) and q (scale) are of shape
(channels, 1), to broadcast over tiles (channels, positions). `ACT` numbers the activations of
`normbench.norms.kernels.tiles`. An absent parameter is None, which Triton compiles in.
"""

import triton
import triton.language as tl


@triton.jit
def read(x, c, p, inside, P, sc, sp, ACC: tl.constexpr):
    """Load channels `c` at positions `p`; return values, offsets, and the mask of valid ones."""
    mask = inside[:, None] & (p < P)[None, :]
    offsets = c[:, None] * sc + p[None, :] * sp
    return tl.load(x + offsets, mask=mask, other=0.0).to(ACC), offsets, mask


@triton.jit
def load_channels(parameter, c, inside, default, ACC: tl.constexpr):
    """Return a parameter of the channels `c`, or `default` if it is absent."""
    if parameter is None:
        values = tl.zeros(c.shape, ACC) + default
    else:
        values = tl.load(parameter + c, mask=inside, other=default).to(ACC)
    return values[:, None]


@triton.jit
def load_parameters(weight, bias, gate, tau, shift, scale, c, inside, ACC: tl.constexpr):
    """Return the parameters of the channels `c` in this order."""
    w = load_channels(weight, c, inside, 1.0, ACC)
    b = load_channels(bias, c, inside, 0.0, ACC)
    v = load_channels(gate, c, inside, 1.0, ACC)
    t = load_channels(tau, c, inside, 0.0, ACC)
    s = load_channels(shift, c, inside, 0.0, ACC)
    q = load_channels(scale, c, inside, 1.0, ACC)
    return w, b, v, t, s, q


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def activate(y, tau, ACT: tl.constexpr):
    """Return the activation of `y`. Comparisons are such that NaN passes."""
    if ACT == 1:
        y = tl.where(y <= 0, 0.0, y)
    elif ACT == 2:
        y = y * sigmoid(y)
    elif ACT == 3:
        y = tl.where(y < tau, tau, y)
    return y


@triton.jit
def backward_activation(g, y, tau, ACT: tl.constexpr):
    """Return the gradient at the input `y` of an activation, from `g` at its output."""
    if ACT == 1:
        g = tl.where(y <= 0, 0.0, g)
    elif ACT == 2:
        s = sigmoid(y)
        g = g * s * (1 + y * (1 - s))
    elif ACT == 3:
        g = g - backward_threshold(g, y, tau)
    return g


@triton.jit
def backward_threshold(g, y, tau):
    """Return the part of a gradient that goes to the threshold, also where both are equal."""
    return tl.where(y <= tau, g, 0.0)


@triton.jit
def compute(x, m, r, b, v, t, s, q, GATED: tl.constexpr, ACT: tl.constexpr, PROXY: tl.constexpr):
    """Return z of x."""
    a = x * sigmoid(v * x) if GATED else x - m
    z = activate(a * r + b, t, ACT)
    if PROXY:
        z = (z - s) * q
    return z


@triton.jit
def differentiate(
    x, g, m, r, b, v, t, s, q, GATED: tl.constexpr, ACT: tl.constexpr, PROXY: tl.constexpr
):  # fmt: skip
    """Return the gradient at y, a, the slope of a, and gradients of gate or tau, shift, scale."""
    zeros = tl.zeros_like(x)
    to_third, to_shift, to_scale = zeros, zeros, zeros
    if GATED:
        gated = sigmoid(v * x)
        slope = gated * (1 + v * x * (1 - gated))
        a = x * gated
    else:
        slope = zeros + 1.0
        a = x - m
    y = a * r + b
    if PROXY:
        to_scale = g * (activate(y, t, ACT) - s)
        g = g * q
        to_shift = -g
    if ACT == 3:
        to_third = backward_threshold(g, y, t)
    g = backward_activation(g, y, t, ACT)
    if GATED:
        to_third = g * r * x * x * gated * (1 - gated)
    return g, a, slope, to_third, to_shift, to_scale
