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
from normbench.norms.base.layer import per_channel
from normbench.norms.base.moments import (
    channel_moments,
    expand_groups,
    group_moments,
    root_mean_square,
)

#: The values of a statistic: a channel over the images of a worker (bwh), or of one image a channel
#: (wh), all channels (whc) or a group of channels (g).
Scope = Literal["bwh", "wh", "whc", "g"]


class Statistics:
    """Statistics of the input of a layer, which broadcast over (N, C, H, W)."""

    def __init__(self, layer: Any, x: Tensor) -> None:
        self.layer, self.x, self.eps = layer, x, layer.eps

    def v(self) -> Tensor:
        """Return the learned vector."""
        return per_channel(self.layer.v)

    def std(self, scope: Scope) -> Tensor:
        """Return the root of the variance plus eps."""
        if scope == "bwh":
            return per_channel(torch.sqrt(self.layer.batch_var(self.x) + self.eps))
        if scope == "wh":
            return per_channel(torch.sqrt(channel_moments(self.x)[1] + self.eps))
        var = group_moments(self.x, self.layer.groups)[1]
        return per_channel(expand_groups(torch.sqrt(var + self.eps), self.layer.channels))

    def rms(self, scope: Scope) -> Tensor:
        """Return the root of the mean square plus eps."""
        if scope != "g":
            return root_mean_square(self.x, self.eps, (2, 3) if scope == "wh" else (1, 2, 3))
        groups = self.x.unflatten(1, (self.layer.groups, -1))
        rms = root_mean_square(groups, self.eps, (2, 3, 4)).flatten(1)
        return per_channel(expand_groups(rms, self.layer.channels))


class ReferenceStatistics(Statistics):
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


#: Numerator and divisor of a layer before gain and shift; apart, so that the layer can divide its
#: gain by a divisor of shape (N, C, 1, 1) instead of dividing the map.
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
