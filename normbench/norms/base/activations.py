"""Activation functions by name, and the gain that keeps a standard normal input's variance at 1.

The gain of g is 1 / sqrt(Var g(u)), u ~ N(0, 1): section 3.2 of Brock, De and Smith 2021. The
constants are quadratures. Those of the paper's code are means over random vectors, up to 0.1 % off.
GLU and log-softmax, which that code lists too, mix channels and are no activation of one channel.
`identity`, with a gain of 1, makes a network linear.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from normbench.errors import choose_from

Activation = Callable[[Tensor], Tensor]

GAINS = {
    "relu": 1.71285855045,  # sqrt(2 / (1 - 1/pi))
    "silu": 1.7871872221,
    "gelu": 1.70092624336,
    "gelu_tanh": 1.7009165617,
    "tanh": 1.59253741972,
    "sigmoid": 4.80131337204,
    "elu": 1.27084341785,
    "celu": 1.27084341785,  # ELU and CELU are one function at alpha = 1
    "leaky_relu": 1.70483162718,
    "softplus": 1.91912598011,
    "logsigmoid": 1.91912598011,
    "relu6": 1.71285855497,
    "selu": 1.0,
    "softsign": 2.33753336311,
    "hardswish": 1.81387147381,
    "mish": 1.5920253811,
}
IDENTITY = "identity"  # no activation of torch's or timm's is taken for it


def activation(name: str | None) -> Activation:
    """The activation function called `name`, as in torch.nn.functional, or the identity for None.

    Raises:
        ValueError: there is none of that name.
    """
    if name in (None, IDENTITY):
        return identity
    if name not in GAINS:
        known = [*GAINS, IDENTITY]
        raise ValueError(f"act={name} is no activation; {choose_from(str(name), known)}")
    found: Activation = _OWN.get(name) or getattr(F, name)
    return found


def gain(name: str | None) -> float:
    """The gain of the activation called `name`; 1 of the identity."""
    return 1.0 if name in (None, IDENTITY) else GAINS[str(name)]


def relu(x: Tensor) -> Tensor:
    """max(x, 0).

    Compiled for a CPU (torch 2.15), `F.relu` at the end of a graph keeps a mask of booleans, which
    makes all of it four to seven times slower; the same in other words has the same gradients.
    """
    return torch.where(x <= 0, 0.0, x) if _compiled_for_cpu(x) else F.relu(x)


def alone(function: Activation, x: Tensor) -> Tensor:
    """function(x), where nothing else needs `x` on the way back.

    Compiled for a CPU that, too, would keep a mask of booleans, unless told to keep `x`.
    """
    if not _compiled_for_cpu(x):
        return function(x)
    found: Tensor = checkpoint(function, x, use_reentrant=False)
    return found


def _compiled_for_cpu(x: Tensor) -> bool:
    compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return compiling and x.device.type == "cpu"


def identity(x: Tensor) -> Tensor:
    """No activation."""
    return x


_OWN: dict[str, Activation] = {"relu": relu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
