"""The statistics that EvoNorm's expressions are made of, as computed and as defined."""

from typing import Any, Protocol

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
        """The learned vector."""

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


class Computed:
    """The statistics of a forward pass of an `EvoNormAct`, each computed when asked for."""

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


class Defined:
    """The same as the paper defines them, in double precision: for the reference."""

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
