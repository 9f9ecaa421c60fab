"""Activation functions by name, and the gains that preserve the variance of a normal input.

The gain of g is 1 / sqrt(Var g(u)), u ~ N(0, 1) (Brock, De and Smith 2021, section 3.2). The
constants are computed by quadrature; those of the paper's code are means over random vectors and up
to 0.1 % off. GLU and log-softmax, which that code also lists, mix channels and are left out.
`identity`, with a gain of 1, makes a network linear.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from normbench.errors import choose_from

ActivationFunction = Callable[[Tensor], Tensor]

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
    "selu": 1.0,  # its constants were chosen so
    "softsign": 2.33753336311,
    "hardswish": 1.81387147381,
    "mish": 1.5920253811,
}
IDENTITY = "identity"  # `swap` never matches a layer with it


def activation(name: str | None) -> ActivationFunction:
    """Return the activation function called `name` in torch.nn.functional; None: the identity.

    Raises:
        ValueError: no activation has that name.
    """
    if name in (None, IDENTITY):
        return identity
    if name not in GAINS:
        names = [*GAINS, IDENTITY]
        raise ValueError(f"act={name} is no activation; {choose_from(str(name), names)}")
    function: ActivationFunction = _NOT_IN_TORCH.get(name) or getattr(F, name)
    return function


def gain(name: str | None) -> float:
    """Return the gain of the activation called `name`; the identity has 1."""
    return 1.0 if name in (None, IDENTITY) else GAINS[str(name)]


def relu(x: Tensor) -> Tensor:
    """max(x, 0).

    On a CPU torch.compile (torch 2.15) saves a boolean mask for `F.relu` at the end of a graph,
    which makes the graph four to seven times slower. `torch.where` has the same values and
    gradients.
    """
    return torch.where(x <= 0, 0.0, x) if _compiled_for_cpu(x) else F.relu(x)


def save_input_only(function: ActivationFunction, x: Tensor) -> Tensor:
    """Return function(x) and save `x` itself for the backward pass.

    torch.compile on a CPU would save a boolean mask instead, which is slower (see `relu`).
    """
    if not _compiled_for_cpu(x):
        return function(x)
    output: Tensor = checkpoint(function, x, use_reentrant=False)
    return output


def _compiled_for_cpu(x: Tensor) -> bool:
    compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return compiling and x.device.type == "cpu"


def identity(x: Tensor) -> Tensor:
    """Return `x`."""
    return x


_NOT_IN_TORCH: dict[str, ActivationFunction] = {
    "relu": relu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}
