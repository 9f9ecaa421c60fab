"""Means, variances and sets of images as papers write them, for the layers' references."""

from collections.abc import Callable

import torch
from torch import Tensor

POSITIONS = (2, 3)  # mu_{w,h}
IMAGE = (1, 2, 3)  # mu_{w,h,c}
BATCH = (0, 2, 3)  # mu_{b,w,h}


Statistic = Callable[[Tensor], Tensor]


def mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the mean over `axes`, whose sizes become 1."""
    return x.mean(axes, keepdim=True)


def variance(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the mean squared distance from the mean over `axes`, whose sizes become 1."""
    return ((x - mean(x, axes)) ** 2).mean(axes, keepdim=True)


def by_group(x: Tensor, groups: int, statistic: Statistic) -> Tensor:
    """Apply `statistic` to each group of channels, and repeat it for the channels of the group."""
    parts = x.split(x.shape[1] // groups, dim=1)
    return torch.cat([statistic(part).expand_as(part) for part in parts], dim=1)


def by_set(x: Tensor, sets: int, function: Statistic) -> Tensor:
    """Apply `function` to the images of each set; image k belongs to set k mod `sets`."""
    parts = [function(x[first::sets]).expand_as(x[first::sets]) for first in range(sets)]
    # (N/S, S, C, H, W): image j of set s returns to place j * S + s.
    return torch.stack(parts, dim=1).flatten(0, 1)
