"""Augmentation of many images (N, C, H, W) at once, each by its own random numbers."""

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.data.counter_rng import Draws

#: Principal components of the colors of ImageNet's pixels (red, green, blue), one a row, and their
#: standard deviations, as in fb.resnet.torch.
COLOR_COMPONENTS = (
    (-0.5675, -0.5808, -0.5836),
    (0.7192, -0.0045, -0.6948),
    (0.4009, -0.8140, 0.4203),
)
COLOR_DEVIATIONS = (0.2175, 0.0188, 0.0045)


def noise(images: Tensor, draws: Draws, std: float) -> Tensor:
    """Add Gaussian noise of standard deviation `std` to every pixel."""
    if std == 0:
        return images
    return images + std * draws.normal("noise", *images.shape[1:])


def contrast(images: Tensor, draws: Draws, std: float | None) -> Tensor:
    """Multiply each image by exp(`std` * z), z being a standard normal number; None: by 1."""
    if std is None:
        return images
    return images * torch.exp(std * draws.normal("contrast"))[:, None, None, None]


def flip(images: Tensor, draws: Draws) -> Tensor:
    """Exchange left and right in half of the images."""
    chosen = (draws.uniform("flip") < 0.5).nonzero()[:, 0]
    # Only these are copied: a `where` over all images takes twice as long.
    return images.index_copy(0, chosen, images.index_select(0, chosen).flip(3))


def lighting(images: Tensor, draws: Draws, std: float) -> Tensor:
    """Add ImageNet's principal components of color to images (N, 3, H, W) fp32, where white is 1.

    The weight of each component is normal with its own standard deviation times `std`, the same for
    all pixels of an image (Krizhevsky et al. 2012, section 4.1, with std 0.1).
    """
    weights = draws.normal("lighting", 3) * std * images.new_tensor(COLOR_DEVIATIONS)
    shift = weights @ images.new_tensor(COLOR_COMPONENTS)  # (N, 3)
    return images + shift[:, :, None, None]


def crop(images: Tensor, draws: Draws, padding: int, side: int | None = None) -> Tensor:
    """Return a window at a random place of each image after `padding` by zeros on every side.

    The window has `side` pixels in height and width; None: those of the images.
    """
    count, _, old_height, old_width = images.shape
    height, width = (old_height, old_width) if side is None else (side, side)
    # Numbers of places at which a window fits, along each axis.
    rows, columns = 1 + old_height + 2 * padding - height, 1 + old_width + 2 * padding - width
    if rows == columns == 1:
        return images
    padded = F.pad(images, (padding,) * 4)
    down, right = draws.integers("crop row", rows), draws.integers("crop column", columns)
    # A view of all windows, of which each image gives one: rows of pixels are copied as they lie.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, rows, columns, H, W)
    return windows[torch.arange(count, device=images.device), :, down, right]
