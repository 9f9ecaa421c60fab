"""Means and variances of maps over what a layer normalizes together; variances are biased.

Image k belongs to set k mod S, where the sets are workers or parts of workers. Moments are
differentiable, and have the dtype of the maps: pass them `layer.upcast(x)`.
"""

import torch
from torch import Tensor

Moments = tuple[Tensor, Tensor]


def channel_moments(x: Tensor) -> Moments:
    """(N, C, H, W) -> mean and variance (N, C) of every channel of every image."""
    var, mean = torch.var_mean(x, dim=(2, 3), correction=0)
    return mean, var


def group_moments(x: Tensor, groups: int) -> Moments:
    """(N, C, H, W) -> mean and variance (N, G) of every group of channels of every image."""
    # In NCHW and in channels_last alike C splits without a copy.
    var, mean = torch.var_mean(x.unflatten(1, (groups, -1)), dim=(2, 3, 4), correction=0)
    return mean, var


def set_moments(x: Tensor, sets: int) -> Moments:
    """(N, C, H, W) -> mean and variance (S, C) of every channel over the images of every set."""
    var, mean = torch.var_mean(split_sets(x, sets), dim=(0, 3, 4), correction=0)
    return mean, var


def split_sets(x: Tensor, sets: int) -> Tensor:
    """(N, ...) -> (N/S, S, ...): a view in every memory format.

    Raises:
        ValueError: the images do not fall evenly on the sets.
    """
    if len(x) % sets:
        raise ValueError(f"{len(x)} images do not fall evenly on {sets} workers")
    parts: Tensor = x.unflatten(0, (-1, sets))
    return parts


def merge_moments(mean: Tensor, var: Tensor, dim: int) -> Moments:
    """Moments of the union of equally large parts that lie along `dim`.

    The law of total variance, which unlike E[x^2] - E[x]^2 is never negative.
    """
    between, whole = torch.var_mean(mean, dim=dim, correction=0)
    return whole, var.mean(dim) + between


def merge_channels(mean: Tensor, var: Tensor, groups: int) -> Moments:
    """Moments (..., C) of channels -> moments (..., G) of groups of them."""
    return merge_moments(mean.unflatten(-1, (groups, -1)), var.unflatten(-1, (groups, -1)), dim=-1)


def normalize_by(x: Tensor, moments: Moments, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) for moments (..., C) of channels or (..., G) of their groups."""
    mean, var = moments
    scale = expand_groups(torch.rsqrt(var + eps), x.shape[1])
    return (x - expand_groups(mean, x.shape[1])[..., None, None]) * scale[..., None, None]


def expand_groups(statistic: Tensor, channels: int) -> Tensor:
    """(..., G) -> (..., C): every channel gets its group's."""
    return statistic.repeat_interleave(channels // statistic.shape[-1], dim=-1)


def expand_sets(statistic: Tensor, images: int) -> Tensor:
    """(S, C) -> (N, C): every image gets its set's."""
    return statistic.repeat(images // len(statistic), 1)


def root_mean_square(x: Tensor, eps: Tensor | float, dim: int | tuple[int, ...]) -> Tensor:
    """sqrt(mean(x^2) + eps) over `dim`, whose sizes become 1."""
    return torch.sqrt(x.square().mean(dim, keepdim=True) + eps)
