"""The layers that EvoNorm's search found, by their numbers in the paper's appendix D.

D.1 is the B series, with statistics of a batch: x / max(std_bwh, z) with a different z each, except
number 3. D.2 is the S series. `REPEATS` maps the repetitions in the appendix to their first
occurrence. `normbench.norms.evonorm` has the names of the six that have one.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from normbench.norms.base import reference_ops
from normbench.norms.base.moments import (
    Moments,
    channel_moments,
    expand_groups,
    group_mean_squares,
    group_moments,
)
from normbench.norms.base.tensors import per_channel

#: The values of a statistic: a channel over the images of a worker (bwh), or of one image a channel
#: (wh), all channels (whc) or a group of channels (g).
Scope = Literal["bwh", "wh", "whc", "g"]


class Statistics:
    """Statistics of the input of a layer, which broadcast over (N, C)."""

    def __init__(self, layer: Any, x: Tensor) -> None:
        self.layer, self.x, self.eps = layer, x, layer.eps
        self._of_channels: Moments | None = None

    def v(self) -> Tensor:
        """Return the learned vector (C,)."""
        v: Tensor = self.layer.v
        return v

    def std(self, scope: Scope) -> Tensor:
        """Return the root of the variance plus eps."""
        if scope == "bwh":
            var = self.layer.batch_var(self.channel_moments)
        elif scope == "wh":
            _, var = self.channel_moments()
        else:
            _, var = group_moments(self.x, self.layer.groups)
        return expand_groups(torch.sqrt(var + self.eps), self.layer.channels)

    def rms(self, scope: Scope) -> Tensor:
        """Return the root of the mean square plus eps."""
        if scope == "wh":
            groups = self.layer.channels
        else:
            groups = 1 if scope == "whc" else self.layer.groups
        square = group_mean_squares(self.x, groups)
        return expand_groups(torch.sqrt(square + self.eps), self.layer.channels)

    def channel_moments(self) -> Moments:
        """Return mean and variance (N, C) of each channel of each image."""
        if self._of_channels is None:  # EvoNorm-B0 has two statistics of them
            self._of_channels = channel_moments(self.x)
        return self._of_channels


class MapStatistics(Statistics):
    """The statistics in a shape that broadcasts over (N, C, H, W)."""

    def v(self) -> Tensor:
        return per_channel(super().v())

    def std(self, scope: Scope) -> Tensor:
        return per_channel(super().std(scope))

    def rms(self, scope: Scope) -> Tensor:
        return per_channel(super().rms(scope))


class ReferenceStatistics(MapStatistics):
    """The statistics as the paper defines them, in double precision, for the reference."""

    def v(self) -> Tensor:
        return per_channel(self.layer.v.double())

    def std(self, scope: Scope) -> Tensor:
        if scope == "bwh" and not self.layer.training:
            return torch.sqrt(per_channel(self.layer.running_var.double()) + self.eps)
        return self._root(scope, reference_ops.variance)

    def rms(self, scope: Scope) -> Tensor:
        return self._root(scope, lambda x, axes: reference_ops.mean(x**2, axes))

    def _root(self, scope: Scope, statistic: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Tensor:
        if scope == "bwh":
            square = reference_ops.by_set(
                self.x, self.layer.workers, lambda x: statistic(x, reference_ops.BATCH)
            )
        elif scope == "g":
            square = reference_ops.by_group(
                self.x, self.layer.groups, lambda x: statistic(x, reference_ops.IMAGE)
            )
        else:
            axes = reference_ops.POSITIONS if scope == "wh" else reference_ops.IMAGE
            square = statistic(self.x, axes)
        return torch.sqrt(square + self.eps)


#: Numerator and divisor of a layer before gain and shift.
Expression = Callable[[Tensor, Statistics], tuple[Tensor, Tensor]]


def _bounded(z: Callable[[Tensor, Statistics], Tensor]) -> Expression:
    """Return the expression x / max(std_bwh, z)."""
    return lambda x, s: (x, torch.maximum(s.std("bwh"), z(x, s)))


def _gated_by_maximum(x: Tensor, s: Statistics) -> tuple[Tensor, Tensor]:
    z = x / s.rms("g")
    return z * torch.sigmoid(torch.maximum(x, z)), torch.ones_like(x[:1, :1, :1, :1])


EXPRESSIONS: dict[str, Expression] = {
    "d1.1": _bounded(lambda x, s: (x + 1) * s.rms("wh")),
    "d1.2": _bounded(lambda x, s: x + s.rms("whc")),
    "d1.3": lambda x, s: (-x * torch.sigmoid(x), s.std("bwh")),
    "d1.4": _bounded(lambda x, s: x * s.rms("wh")),
    "d1.5": _bounded(lambda x, s: s.rms("whc") - x),
    "d1.6": _bounded(lambda x, s: s.v() * x + s.std("wh")),
    "d1.7": _bounded(lambda x, s: s.rms("wh") - x),
    "d1.9": _bounded(lambda x, s: x + s.std("wh")),
    "d2.1": lambda x, s: (x * torch.tanh(torch.sigmoid(x)), s.rms("g")),
    "d2.2": lambda x, s: (x * torch.sigmoid(x), s.rms("g")),
    "d2.5": lambda x, s: (x * torch.sigmoid(x), s.std("g")),
    "d2.6": lambda x, s: (x * torch.sigmoid(s.v() * x), s.std("g")),
    "d2.10": _gated_by_maximum,
}

#: A layer by `apply_map`: the function, its factor, its offset, and its gain without `weight`.
Map = tuple[str, Tensor | None, Tensor | None, Tensor]


def _bounded_by(s: Statistics, factor: Tensor | int, offset: Tensor | None) -> Map:
    """Return x / max(std_bwh, factor * x + offset) as x / max(1, u) / std_bwh."""
    inverse = 1 / s.std("bwh")
    return "bounded", factor * inverse, None if offset is None else offset * inverse, inverse


def _bounded_by_rms(s: Statistics) -> Map:
    rms = s.rms("wh")
    return _bounded_by(s, rms, rms)  # (x + 1) * rms


MAPS: dict[str, Callable[[Statistics], Map]] = {
    "d1.1": _bounded_by_rms,
    "d1.2": lambda s: _bounded_by(s, 1, s.rms("whc")),
    "d1.3": lambda s: ("gated", None, None, -1 / s.std("bwh")),
    "d1.4": lambda s: _bounded_by(s, s.rms("wh"), None),
    "d1.5": lambda s: _bounded_by(s, -1, s.rms("whc")),
    "d1.6": lambda s: _bounded_by(s, s.v(), s.std("wh")),
    "d1.7": lambda s: _bounded_by(s, -1, s.rms("wh")),
    "d1.9": lambda s: _bounded_by(s, 1, s.std("wh")),
    "d2.2": lambda s: ("gated", None, None, 1 / s.rms("g")),
    "d2.5": lambda s: ("gated", None, None, 1 / s.std("g")),
    "d2.6": lambda s: ("gated", s.v(), None, 1 / s.std("g")),
}
WITH_V = ("d1.6", "d2.6")  # the layers with the learned vector v
REPEATS = {
    "d1.8": "d1.4",
    "d1.10": "d1.9",
    "d2.3": "d2.2",
    "d2.4": "d2.2",
    "d2.8": "d2.2",
    "d2.7": "d2.5",
    "d2.9": "d2.5",
}


def uses_batch(which: str) -> bool:
    """Return True for a layer of the B series."""
    return which.startswith("d1.")
