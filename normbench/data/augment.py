"""Augmentation of many images (N, C, H, W) at once, each by its own random numbers."""

import math

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

#: Random erasing as in timm: area of the box over that of the image, and height over width.
ERASED_AREA = 0.02, 1 / 3
ERASED_ASPECT = 0.3, 1 / 0.3
ERASING_TRIALS = 10  # boxes that are drawn for an image, until one fits into it


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


def erase(images: Tensor, draws: Draws, share: float) -> Tensor:
    """Replace a box in a random `share` of the images by standard normal noise.

    Area and aspect ratio of a box are those of timm, the ratio log-uniform; the place is uniform.
    Random erasing is by Zhong et al. 2020, who fill a box with uniform noise.

    Args:
        images: (N, C, H, W) standardized images.
    """
    chosen = (draws.uniform("erasing") < share).nonzero()[:, 0]
    if not len(chosen):
        return images
    channels, height, width = images.shape[1:]
    draws = draws.of(chosen)
    area = _between(*ERASED_AREA, draws.uniform("erased area", ERASING_TRIALS))
    low, high = map(math.log, ERASED_ASPECT)
    log_aspect = _between(low, high, draws.uniform("erased aspect", ERASING_TRIALS))
    sides = height * width * area * torch.stack([log_aspect.exp(), (-log_aspect).exp()])
    rows, columns = sides.sqrt().round().long()  # each (n, trials)
    fits = (rows < height) & (columns < width)
    first = fits.int().argmax(1, keepdim=True)  # 0 if none fits, of which nothing is erased
    rows, columns, fits = (each.gather(1, first) for each in (rows, columns, fits))  # each (n, 1)
    top = (draws.uniform("erased row", 1) * (height - rows + 1)).long()
    left = (draws.uniform("erased column", 1) * (width - columns + 1)).long()
    down, right = (torch.arange(side, device=images.device) for side in (height, width))
    in_rows = fits & (down >= top) & (down < top + rows)  # (n, H)
    in_columns = (right >= left) & (right < left + columns)  # (n, W)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :]
    filling = draws.normal("erased pixels", channels, height, width)
    return images.index_copy(0, chosen, torch.where(inside, filling, images[chosen]))


def _between(low: float, high: float, uniform: Tensor) -> Tensor:
    return low + (high - low) * uniform
