"""What the references share: means, variances and sets of images, as papers write them."""

from collections.abc import Callable

import torch
from torch import Tensor

POSITIONS = (2, 3)  # mu_{w,h}
IMAGE = (1, 2, 3)  # mu_{w,h,c}
BATCH = (0, 2, 3)  # mu_{b,w,h}


Statistic = Callable[[Tensor], Tensor]


def mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Mean over `axes`, whose sizes become 1."""
    return x.mean(axes, keepdim=True)


def variance(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Mean squared distance from the mean over `axes`, whose sizes become 1."""
    return ((x - mean(x, axes)) ** 2).mean(axes, keepdim=True)


def by_group(x: Tensor, groups: int, statistic: Statistic) -> Tensor:
    """`statistic` of x[image, channels of a group], spread over the channels of that group."""
    parts = x.split(x.shape[1] // groups, dim=1)
    return torch.cat([statistic(part).expand_as(part) for part in parts], dim=1)


def by_set(x: Tensor, sets: int, function: Statistic) -> Tensor:
    """`function` of the images of each set; image k is of set k mod `sets`."""
    found = [function(x[first::sets]).expand_as(x[first::sets]) for first in range(sets)]
    # Stacked to (N/S, S, C, H, W): image j of set s stands at j * S + s again.
    return torch.stack(found, dim=1).flatten(0, 1)
