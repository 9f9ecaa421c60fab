"""The layers that EvoNorm's search found, by their numbers in the paper's appendix D.

D.1 is the B series, x / max(std_bwh, z) with a different z each, except number 3; D.2 is the S
series. Six have names: d1.6 is B0, d1.1 B1, d1.7 B2, d2.6 S0, d2.5 S1 and d2.2 S2. `REPEATS` maps
the repetitions in the appendix to their first occurrence. An expression maps the input and its
statistics to a numerator and a divisor.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import per_channel
from normbench.norms.base.moments import (
    channel_moments,
    expand_groups,
    group_moments,
    root_mean_square,
)


class Statistics(Protocol):
    """Roots of variances (std) and of mean squares (rms), which broadcast over (N, C, H, W)."""

    def v(self) -> Tensor:
        """Return the learned vector."""

    def std_bwh(self) -> Tensor:
        """Of a channel over the images of a worker."""

    def std_wh(self) -> Tensor:
        """Of a channel of one image."""

    def rms_wh(self) -> Tensor:
        """Of a channel of one image."""

    def rms_whc(self) -> Tensor:
        """Of one image."""

    def std_g(self) -> Tensor:
        """Of a group of channels of one image."""

    def rms_g(self) -> Tensor:
        """Of a group of channels of one image."""


class ForwardStatistics:
    """The statistics of a forward pass of an `EvoNormAct`, each computed on demand."""

    def __init__(self, layer: Any, x: Tensor) -> None:
        self.layer, self.x, self.eps = layer, x, layer.eps

    def v(self) -> Tensor:
        return per_channel(self.layer.v)

    def std_bwh(self) -> Tensor:
        return per_channel(torch.sqrt(self.layer.batch_var(self.x) + self.eps))

    def std_wh(self) -> Tensor:
        return per_channel(torch.sqrt(channel_moments(self.x)[1] + self.eps))

    def rms_wh(self) -> Tensor:
        return root_mean_square(self.x, self.eps, (2, 3))

    def rms_whc(self) -> Tensor:
        return root_mean_square(self.x, self.eps, (1, 2, 3))

    def std_g(self) -> Tensor:
        var = group_moments(self.x, self.layer.groups)[1]
        return per_channel(expand_groups(torch.sqrt(var + self.eps), self.layer.channels))

    def rms_g(self) -> Tensor:
        groups = self.x.unflatten(1, (self.layer.groups, -1))
        rms = root_mean_square(groups, self.eps, (2, 3, 4)).flatten(1)
        return per_channel(expand_groups(rms, self.layer.channels))


class ReferenceStatistics:
    """The statistics as the paper defines them, in double precision, for the reference."""

    def __init__(self, layer: Any, x: Tensor) -> None:
        self.layer, self.x, self.eps = layer, x, layer.eps

    def v(self) -> Tensor:
        return per_channel(self.layer.v.double())

    def std_bwh(self) -> Tensor:
        layer = self.layer
        if not layer.training:
            return torch.sqrt(per_channel(layer.running_var.double()) + self.eps)
        return reference_ops.by_set(
            self.x,
            layer.workers,
            lambda s: torch.sqrt(reference_ops.variance(s, reference_ops.BATCH) + self.eps),
        )

    def std_wh(self) -> Tensor:
        return torch.sqrt(reference_ops.variance(self.x, reference_ops.POSITIONS) + self.eps)

    def rms_wh(self) -> Tensor:
        return torch.sqrt(reference_ops.mean(self.x**2, reference_ops.POSITIONS) + self.eps)

    def rms_whc(self) -> Tensor:
        return torch.sqrt(reference_ops.mean(self.x**2, reference_ops.IMAGE) + self.eps)

    def std_g(self) -> Tensor:
        return self._of_groups(lambda g: reference_ops.variance(g, reference_ops.IMAGE))

    def rms_g(self) -> Tensor:
        return self._of_groups(lambda g: reference_ops.mean(g**2, reference_ops.IMAGE))

    def _of_groups(self, statistic: reference_ops.Statistic) -> Tensor:
        return torch.sqrt(reference_ops.by_group(self.x, self.layer.groups, statistic) + self.eps)


Formula = Callable[[Tensor, Statistics], tuple[Tensor, Tensor]]


class Expression(NamedTuple):
    """A layer before gain and shift.

    Args:
        formula: numerator and divisor apart, so that the layer can merge its gain into the divisor.
        reference: the expression as in the appendix.
        batch: whether it has batch statistics.
        v: whether it has the learned vector v.
    """

    formula: Formula
    reference: Callable[[Tensor, Statistics], Tensor]
    batch: bool
    v: bool = False


def _bounded(z: Callable[[Tensor, Statistics], Tensor]) -> Formula:
    """Return the formula x / max(std_bwh, z)."""
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
