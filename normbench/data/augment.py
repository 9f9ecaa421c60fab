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


def crop(images: Tensor, draws: Draws, padding: int, side: int | None = None) -> Tensor:
    """A window at a random place of the image padded with zeros on every side.

    Args:
        images: (N, C, H, W).
        draws: of these images.
        padding: pixels on every side.
        side: of the window; None: the old size.
    """
    count, _, *old = images.shape
    height, width = old if side is None else (side, side)
    # Where a window fits, along each axis.
    rows, columns = (
        1 + length + 2 * padding - own for length, own in zip(old, (height, width), strict=True)
    )
    if rows == columns == 1:
        return images
    padded = F.pad(images, (padding,) * 4)
    device = images.device
    down = draws.integers("crop row", rows)[:, None] + torch.arange(height, device=device)
    right = draws.integers("crop column", columns)[:, None] + torch.arange(width, device=device)
    which = torch.arange(count, device=device)[:, None, None]
    # Indices around a slice put the indexed axes first: (N, H, W, C).
    return padded[which, :, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)
