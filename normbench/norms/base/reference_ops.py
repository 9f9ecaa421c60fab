"""Means, variances and sets of images as papers write them, for the layers' references."""

from collections.abc import Callable

import torch
from torch import Tensor

POSITIONS = (2, 3)  # mu_{w,h}
IMAGE = (1, 2, 3)  # mu_{w,h,c}
BATCH = (0, 2, 3)  # mu_{b,w,h}
ALL = (0, 1, 2, 3)  # mu_{b,w,h,c}


def mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the mean over `axes`, whose sizes become 1."""
    return x.mean(axes, keepdim=True)


def variance(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the mean squared distance from the mean over `axes`, whose sizes become 1."""
    return ((x - mean(x, axes)) ** 2).mean(axes, keepdim=True)


def standardize(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Return (x - mean) / sqrt(var + eps), mean and biased variance over `axes`."""
    return (x - mean(x, axes)) / torch.sqrt(variance(x, axes) + eps)


def by_group(x: Tensor, groups: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `function` to each group of channels; repeat its values for the group's channels."""
    parts = x.split(x.shape[1] // groups, dim=1)
    return torch.cat([function(part).expand_as(part) for part in parts], dim=1)


def by_strided_group(x: Tensor, groups: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `function` to each group of channels; channel c belongs to group c mod `groups`."""
    parts = [x[:, group::groups] for group in range(groups)]
    results = [function(part).expand_as(part) for part in parts]
    return torch.stack([results[c % groups][:, c // groups] for c in range(x.shape[1])], dim=1)


def by_set(x: Tensor, sets: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `function` to the images of each set; image k belongs to set k mod `sets`."""
    parts = [function(x[first::sets]).expand_as(x[first::sets]) for first in range(sets)]
    # (N/S, S, C, H, W): image j of set s returns to place j * S + s.
    return torch.stack(parts, dim=1).flatten(0, 1)
