"""1 / sqrt(Var g(u)), u ~ N(0, 1), of any activation (Brock, De and Smith 2021, section 4.3).

By quadrature, for functions of one number; and as the paper's code does it, by drawing vectors,
which also does for functions that mix the numbers of a vector, as GLU and log-softmax do.
"""

from collections.abc import Callable
from importlib import import_module
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.errors import BadInput
from normbench.norms.base.activations import GAINS, IDENTITY, activation

REACH, STEPS = 12.0, 240_000  # beyond 12 deviations there is nothing; the steps meet all kinks
VECTORS, LENGTH = 1024, 256  # of the paper's code


def by_quadrature(function: Callable[[Tensor], Tensor]) -> float:
    """Simpson's rule with steps of 1e-4.

    Raises:
        ValueError: the function does not map each number by itself.
    """
    u = torch.linspace(-REACH, REACH, STEPS + 1, dtype=torch.float64)
    y = function(u.clone())
    if y.shape != u.shape or not torch.allclose(function(u[::7].clone()), y[::7], equal_nan=True):
        raise ValueError("it does not map each number by itself")
    density = torch.exp(-(u**2) / 2)
    density[1:-1:2] *= 4
    density[2:-1:2] *= 2
    density /= density.sum()
    mean = (density * y).sum()
    return 1 / sqrt(float((density * (y - mean) ** 2).sum()))


def by_sampling(
    function: Callable[[Tensor], Tensor],
    vectors: int = VECTORS,
    length: int = LENGTH,
    seed: int = 0,
) -> float:
    """The paper's code: 1 / sqrt of the mean of the variances of vectors of activated numbers."""
    u = torch.randn(vectors, length, generator=torch.Generator().manual_seed(seed))
    return 1 / sqrt(float(function(u.double()).var(dim=1, correction=0).mean()))


def function_of(name: str) -> Callable[[Tensor], Tensor]:
    """An activation by its name in normbench or torch.nn.functional, or as package.module.function.

    Raises:
        BadInput: there is none.
    """
    if name in GAINS or name == IDENTITY:
        return activation(name)
    if name in ("log_softmax", "softmax"):
        return lambda u: getattr(F, name)(u, dim=-1)
    module, _, attribute = name.rpartition(".")
    try:
        found: Callable[[Tensor], Tensor] = getattr(
            import_module(module) if module else F, attribute
        )
        given = torch.linspace(-2, 2, 12, dtype=torch.float64).view(3, 4)
        varies = float(found(given).double().var(dim=1).mean()) > 0
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"act={name} cannot be found ({error}); a function of torch.nn.functional, as "
            "act=hardswish, or of your own, as act=package.module.function"
        ) from None
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(f"act={name} is no activation of a tensor: {reason}") from None
    if not varies:
        raise BadInput(f"act={name} is no activation: it maps all numbers to one")
    return found
