"""The layers that EvoNorm's search found, by their numbers in the paper's appendix D.

D.1 is the B series, x / max(std_bwh, z) with a z of its own, except number 3. D.2 is the S series.
Six of them have names: d1.6 is B0, d1.1 B1, d1.7 B2, d2.6 S0, d2.5 S1 and d2.2 S2. Where the
appendix lists a layer twice, `REPEATS` names the first. An expression takes the input and its
statistics, and gives a numerator and a divisor.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from normbench.norms.evonorm_statistics import Statistics

Formula = Callable[[Tensor, Statistics], tuple[Tensor, Tensor]]


class Expression(NamedTuple):
    """A layer before gain and shift.

    Args:
        formula: numerator and divisor, so that a layer can bring its gain and the divisor together.
        reference: the same written out as in the appendix.
        batch: whether it has batch statistics.
        v: whether it has the learned vector v.
    """

    formula: Formula
    reference: Callable[[Tensor, Statistics], Tensor]
    batch: bool
    v: bool = False


def _bounded(z: Callable[[Tensor, Statistics], Tensor]) -> Formula:
    """x / max(std_bwh, z)."""
    return lambda x, s: (x, torch.maximum(s.std_bwh(), z(x, s)))


def _gated_by_itself(x: Tensor, s: Statistics) -> tuple[Tensor, Tensor]:
    z = x / s.rms_g()
    return z * torch.sigmoid(torch.maximum(x, z)), torch.ones_like(x[:1, :1, :1, :1])


EXPRESSIONS = {
    "d1.1": Expression(
        _bounded(lambda x, s: (x + 1) * s.rms_wh()),
        lambda x, s: x / torch.maximum(s.std_bwh(), (x + 1) * s.rms_wh()),
        batch=True,
    ),
    "d1.2": Expression(
        _bounded(lambda x, s: x + s.rms_whc()),
        lambda x, s: x / torch.maximum(s.std_bwh(), x + s.rms_whc()),
        batch=True,
    ),
    "d1.3": Expression(
        lambda x, s: (-x * torch.sigmoid(x), s.std_bwh()),
        lambda x, s: -(x * torch.sigmoid(x)) / s.std_bwh(),
        batch=True,
    ),
    "d1.4": Expression(
        _bounded(lambda x, s: x * s.rms_wh()),
        lambda x, s: x / torch.maximum(s.std_bwh(), x * s.rms_wh()),
        batch=True,
    ),
    "d1.5": Expression(
        _bounded(lambda x, s: s.rms_whc() - x),
        lambda x, s: x / torch.maximum(s.std_bwh(), s.rms_whc() - x),
        batch=True,
    ),
    "d1.6": Expression(
        _bounded(lambda x, s: s.v() * x + s.std_wh()),
        lambda x, s: x / torch.maximum(s.std_bwh(), s.v() * x + s.std_wh()),
        batch=True,
        v=True,
    ),
    "d1.7": Expression(
        _bounded(lambda x, s: s.rms_wh() - x),
        lambda x, s: x / torch.maximum(s.std_bwh(), s.rms_wh() - x),
        batch=True,
    ),
    "d1.9": Expression(
        _bounded(lambda x, s: x + s.std_wh()),
        lambda x, s: x / torch.maximum(s.std_bwh(), x + s.std_wh()),
        batch=True,
    ),
    "d2.1": Expression(
        lambda x, s: (x * torch.tanh(torch.sigmoid(x)), s.rms_g()),
        lambda x, s: x * torch.tanh(torch.sigmoid(x)) / s.rms_g(),
        batch=False,
    ),
    "d2.2": Expression(
        lambda x, s: (x * torch.sigmoid(x), s.rms_g()),
        lambda x, s: x * torch.sigmoid(x) / s.rms_g(),
        batch=False,
    ),
    "d2.5": Expression(
        lambda x, s: (x * torch.sigmoid(x), s.std_g()),
        lambda x, s: x * torch.sigmoid(x) / s.std_g(),
        batch=False,
    ),
    "d2.6": Expression(
        lambda x, s: (x * torch.sigmoid(s.v() * x), s.std_g()),
        lambda x, s: x * torch.sigmoid(s.v() * x) / s.std_g(),
        batch=False,
        v=True,
    ),
    "d2.10": Expression(
        _gated_by_itself,
        lambda x, s: x / s.rms_g() * torch.sigmoid(torch.maximum(x, x / s.rms_g())),
        batch=False,
    ),
}

REPEATS = {
    "d1.8": "d1.4",
    "d1.10": "d1.9",
    "d2.3": "d2.2",
    "d2.4": "d2.2",
    "d2.8": "d2.2",
    "d2.7": "d2.5",
    "d2.9": "d2.5",
}
