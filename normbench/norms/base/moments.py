"""Means and (biased) variances of maps, over channels, groups of channels and sets of images.

Image k belongs to set k mod S; a set is a worker or a part of one. Moments are differentiable and
have the dtype of the maps, so pass `layer.upcast(x)`.
"""

import torch
from torch import Tensor

Moments = tuple[Tensor, Tensor]


def channel_moments(x: Tensor) -> Moments:
    """Return mean and variance (N, C) of each channel of each image of (N, C, H, W)."""
    var, mean = torch.var_mean(x, dim=(2, 3), correction=0)
    return mean, var


def group_moments(x: Tensor, groups: int) -> Moments:
    """Return mean and variance (N, G) of each group of channels of each image."""
    # (N, C, H, W) -> (N, G, C/G, H, W): a view in NCHW and in channels_last.
    var, mean = torch.var_mean(x.unflatten(1, (groups, -1)), dim=(2, 3, 4), correction=0)
    return mean, var


def set_moments(x: Tensor, sets: int) -> Moments:
    """Return mean and variance (S, C) of each channel over the images of each set."""
    # (N/S, S, C, H, W) -> (S, C)
    var, mean = torch.var_mean(split_sets(x, sets), dim=(0, 3, 4), correction=0)
    return mean, var


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


def root_mean_square(x: Tensor, eps: Tensor | float, dim: int | tuple[int, ...]) -> Tensor:
    """Return sqrt(mean(x^2) + eps) over `dim`, whose sizes become 1."""
    return torch.sqrt(x.square().mean(dim, keepdim=True) + eps)
