"""Means and (biased) variances of maps, over channels, groups of channels and sets of images.

Image k belongs to set k mod S; a set is a worker or a part of one. Moments are differentiable and
are in fp32 for maps of half precision, else in their dtype.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from normbench.norms.base.closed_form import CLOSED_FORMS, ClosedForm, evaluate
from normbench.norms.base.tensors import upcast

Moments = tuple[Tensor, Tensor]


def channel_moments(x: Tensor) -> Moments:
    """Return mean and variance (N, C) of each channel of each image of (N, C, H, W)."""
    return group_moments(x, x.shape[1])


def group_moments(x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return mean and (biased) variance (N, G) of each group of channels of each image.

    In fp32 if `x` is of half precision, else in the dtype of `x`.
    """
    mean, var = evaluate("moments", groups, x)
    return mean, var


def group_mean_squares(x: Tensor, groups: int) -> Tensor:
    """Return the mean square (N, G) of each group of channels of each image.

    In fp32 if `x` is of half precision, else in the dtype of `x`.
    """
    mean: Tensor = evaluate("mean_squares", groups, x)
    return mean


def set_moments(x: Tensor, sets: int) -> Moments:
    """Return mean and variance (S, C) of each channel over the images of each set."""
    return merge_images(*channel_moments(x), sets)


def split_sets(x: Tensor, sets: int) -> Tensor:
    """Separate the sets of images, (N, ...) -> (N/S, S, ...): a view in every memory format.

    Raises:
        ValueError: the sets do not divide the images.
    """
    if len(x) % sets:
        raise ValueError(f"{len(x)} images do not fall evenly on {sets} workers")
    parts: Tensor = x.unflatten(0, (-1, sets))
    return parts


def merge_moments(mean: Tensor, var: Tensor, dim: int) -> Moments:
    """Return the moments of the union of equally large parts, which lie along `dim`.

    By the law of total variance, which unlike E[x^2] - E[x]^2 is never negative.
    """
    between, union_mean = torch.var_mean(mean, dim=dim, correction=0)
    return union_mean, var.mean(dim) + between


def merge_images(mean: Tensor, var: Tensor, sets: int) -> Moments:
    """Merge moments (N, C) of images into moments (S, C) of their sets."""
    return merge_moments(split_sets(mean, sets), split_sets(var, sets), dim=0)


def merge_channels(mean: Tensor, var: Tensor, groups: int) -> Moments:
    """Merge moments (..., C) of channels into moments (..., G) of their groups."""
    return merge_moments(mean.unflatten(-1, (groups, -1)), var.unflatten(-1, (groups, -1)), dim=-1)


def order_by_group(x: Tensor, groups: int, dim: int) -> Tensor:
    """Reorder the C channels along `dim`: those of group 0, then of group 1, ...

    Channel c belongs to group c mod `groups`. C / `groups` groups undo it.
    """
    by_rank: Tensor = x.unflatten(dim, (-1, groups))  # (C/G, G) in place of C
    return by_rank.transpose(dim, dim + 1).flatten(dim, dim + 1)


def normalize_by(x: Tensor, moments: Moments, eps: float) -> Tensor:
    """Return (x - mean) / sqrt(var + eps), for moments (..., C) or (..., G) of groups."""
    mean, var = moments
    scale = expand_groups(torch.rsqrt(var + eps), x.shape[1])
    return (x - expand_groups(mean, x.shape[1])[..., None, None]) * scale[..., None, None]


def expand_groups(statistic: Tensor, channels: int) -> Tensor:
    """Repeat the statistic of each group for its channels: (..., G) -> (..., C)."""
    return statistic.repeat_interleave(channels // statistic.shape[-1], dim=-1)


def expand_sets(statistic: Tensor, images: int) -> Tensor:
    """Repeat the statistic of each set for its images: (S, C) -> (N, C)."""
    return statistic.repeat(images // len(statistic), 1)


def _moments(groups: int, x: Tensor) -> tuple[Tensor, Tensor]:
    mean, deviations = _deviations(groups, x)
    return mean.flatten(1), deviations.square_().mean((2, 3, 4))


def _moments_formula(groups: int, x: Tensor) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(upcast(x).unflatten(1, (groups, -1)), (2, 3, 4), correction=0)
    return mean, var


def _deviations(groups: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return means (N, G, 1, 1, 1) and what remains of (N, G, C/G, H, W) without them."""
    values = x.unflatten(1, (groups, -1))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean = values.mean((2, 3, 4), keepdim=True, dtype=wide)
    return mean, values - mean


def _moments_backward(groups: int, gradients: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    _, deviations = _deviations(groups, x)
    count = deviations.shape[2:].numel()
    to_mean, to_var = (each[..., None, None, None] / count for each in gradients)
    dx = deviations.mul_(2 * to_var).add_(to_mean)
    return [dx.flatten(1, 2).to(x.dtype)]


def _mean_squares(groups: int, x: Tensor) -> Tensor:
    values = upcast(x).unflatten(1, (groups, -1))
    mean: Tensor = (values * values).mean((2, 3, 4))
    return mean


def _mean_squares_backward(groups: int, gradients: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    values = x.unflatten(1, (groups, -1))
    factor = gradients[0] * (2 / values.shape[2:].numel())
    return [(values * factor[..., None, None, None]).flatten(1, 2).to(x.dtype)]


CLOSED_FORMS["moments"] = ClosedForm(_moments, _moments_backward, _moments_formula)
CLOSED_FORMS["mean_squares"] = ClosedForm(_mean_squares, _mean_squares_backward, _mean_squares)
