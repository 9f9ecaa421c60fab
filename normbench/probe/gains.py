"""Gains 1 / sqrt(Var g(u)), u ~ N(0, 1), of activations g (Brock, De and Smith 2021, section 4.3).

By quadrature for functions of one number. By sampling, as the paper's code does, also for functions
that mix the numbers of a vector, as GLU and log-softmax do.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.errors import BadInput
from normbench.norms.base.activations import GAINS, IDENTITY, activation
from normbench.probe.output import print_table, write_results
from normbench.probe.request import ProbeRequest
from normbench.records.probes import Record

#: Integration bounds: beyond 12 standard deviations the density is 0 in double precision. Steps of
#: 1e-4 have the kinks of all activations at their ends.
BOUND, STEPS = 12.0, 240_000
VECTORS, LENGTH = 1024, 256  # of the paper's code
HEAD = ("activation", "by quadrature", "by sampling", "in nf")


def gain_by_quadrature(function: Callable[[Tensor], Tensor]) -> float:
    """Return the gain by Simpson's rule.

    Raises:
        ValueError: `function` does not map each number by itself.
    """
    u = torch.linspace(-BOUND, BOUND, STEPS + 1, dtype=torch.float64)
    y = function(u.clone())
    # An elementwise function gives the same on a part of its input; softmax does not.
    if y.shape != u.shape or not torch.allclose(function(u[::7].clone()), y[::7], equal_nan=True):
        raise ValueError("the function does not map each number by itself")
    density = torch.exp(-(u**2) / 2)
    # Simpson's weights: 1 4 2 4 ... 2 4 1.
    density[1:-1:2] *= 4
    density[2:-1:2] *= 2
    density /= density.sum()
    mean = (density * y).sum()
    return 1 / sqrt(float((density * (y - mean) ** 2).sum()))


def gain_by_sampling(function: Callable[[Tensor], Tensor]) -> float:
    """Return the gain from the mean over normal vectors of the variance of their activations."""
    u = torch.randn(VECTORS, LENGTH, generator=torch.Generator().manual_seed(0))
    return 1 / sqrt(float(function(u.double()).var(dim=1, correction=0).mean()))


def find_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation of normbench or torch.nn.functional, or package.module.function.

    Raises:
        BadInput: there is no such function, or it is no activation.
    """
    if name in GAINS or name == IDENTITY:
        return activation(name)
    # They need a dimension, here that of the vectors.
    if name in ("log_softmax", "softmax"):
        return lambda u: getattr(F, name)(u, dim=-1)
    module, _, attribute = name.rpartition(".")
    try:
        function: Callable[[Tensor], Tensor] = getattr(
            import_module(module) if module else F, attribute
        )
        u = torch.linspace(-2, 2, 12, dtype=torch.float64).view(3, 4)
        varies = float(function(u).double().var(dim=1).mean()) > 0
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"act={name} cannot be found ({error}); use a function of torch.nn.functional, as "
            "act=hardswish, or your own, as act=package.module.function"
        ) from None
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(f"act={name} is no activation of a tensor: {reason}") from None
    if not varies:
        raise BadInput(f"act={name} is no activation: it maps all numbers to one")
    return function


def run(request: ProbeRequest) -> None:
    """Print and write the gains of the requested activations."""
    if any(words for _, words in request.networks):
        raise BadInput("gains measures activations, not networks; choose them by act=NAME,...")
    records: list[Record] = []
    for name in request.options.act or GAINS:
        function = find_activation(name)
        record: Record = {"act": name, "exact": None, "sampled": gain_by_sampling(function)}
        with suppress(ValueError, RuntimeError):  # functions of whole vectors have none
            record["exact"] = gain_by_quadrature(function)
        records.append({**record, "normbench": GAINS.get(name)})
    print_table([[_digits(value) for value in record.values()] for record in records], HEAD)
    write_results(request, records)


def _digits(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value or "")
