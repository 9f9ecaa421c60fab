"""Augmentation of many images at once, each by its own draws. Shapes (N, C, H, W) -> the same."""

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.draws import Draws


def noise(images: Tensor, draws: Draws, std: float) -> Tensor:
    """Gaussian noise of standard deviation `std` on every pixel."""
    if std == 0:
        return images
    return images + std * draws.normal("noise", *images.shape[1:])


def flip(images: Tensor, draws: Draws) -> Tensor:
    """Left and right exchanged in half of the images."""
    flipped = draws.uniform("flip") < 0.5
    return torch.where(flipped[:, None, None, None], images.flip(3), images)


def crop(images: Tensor, draws: Draws, padding: int) -> Tensor:
    """A window of the old size at a random place of the image padded with zeros on every side."""
    if padding == 0:
        return images
    count, _, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    places = 2 * padding + 1  # where a window of the old size fits, along each axis
    device = images.device
    rows = draws.integers("crop row", places)[:, None] + torch.arange(height, device=device)
    columns = draws.integers("crop column", places)[:, None] + torch.arange(width, device=device)
    which = torch.arange(count, device=device)[:, None, None]
    # Indices around a slice put the indexed axes first: (N, H, W, C).
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
