"""What kernels of both families do with a value: activations, and parameters of its channel."""

import triton
import triton.language as tl


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
def of_channels(parameter, c, inside, other, HAS: tl.constexpr, ACC: tl.constexpr):
    """A parameter of the channels `c`, to be broadcast over positions."""
    if HAS:
        found = tl.load(parameter + c, mask=inside, other=0.0).to(ACC)
    else:
        found = tl.zeros(c.shape, ACC) + other
    return found[:, None]
