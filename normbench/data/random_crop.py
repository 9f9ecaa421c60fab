"""Boxes of images of any size, cropped and resized to one size.

    random_boxes    training: area and aspect at random (Szegedy et al. 2015, "Inception crop"),
                    tried ten times as in torchvision's RandomResizedCrop
    jittered_boxes  training: a window of the resized image, whose shorter side is drawn (Simonyan
                    and Zisserman 2015, "scale jittering"; He et al. 2016, section 3.4)
    center_boxes    evaluation: the square in the middle, a share of the shorter side

The box is cropped and then resized by Pillow, bilinear with antialiasing, along the rows first and
then along the columns, and rounded to bytes after each. Shape letters: N images, H W positions.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from normbench.data.counter_rng import Draws

ATTEMPTS = 10
ASPECTS = (3 / 4, 4 / 3)  # width over height, drawn evenly on a logarithmic scale


def random_boxes(sizes: Tensor, draws: Draws, area: float) -> Tensor:
    """Draw a box in every image: (N, 4) int64 of top, left, height and width.

    `sizes` (N, 2) are height and width, `area` is the smallest share of an image's pixels.
    """
    low, high = (math.log(limit) for limit in ASPECTS)
    boxes = _largest_boxes(sizes)  # for images where no attempt fits
    left = torch.arange(len(sizes))  # images that have no box that fits yet
    for attempt in range(ATTEMPTS):
        height, width = sizes[left].double().unbind(1)
        share, aspect, *place = draws.of(left).uniform(f"frame {attempt}", 4).double().unbind(1)
        pixels = height * width * (area + (1 - area) * share)
        ratio = torch.exp(low + (high - low) * aspect)
        wide, tall = (pixels * ratio).sqrt().round(), (pixels / ratio).sqrt().round()
        fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
        top, start = (place[0] * (height - tall + 1)), (place[1] * (width - wide + 1))
        boxes[left[fits]] = torch.stack([top, start, tall, wide], dim=1)[fits].long()
        left = left[~fits]
        if not len(left):
            break
    return boxes


def _largest_boxes(sizes: Tensor) -> Tensor:
    """Return the largest box in the middle whose aspect is allowed."""
    height, width = sizes.double().unbind(1)
    wide = torch.minimum(width, (height * ASPECTS[1]).round())
    tall = torch.minimum(height, (width / ASPECTS[0]).round())
    return _middle(sizes, tall.clamp(min=1), wide.clamp(min=1))


def jittered_boxes(sizes: Tensor, draws: Draws, side: int, short_side: tuple[int, int]) -> Tensor:
    """Draw a square in every image, (N, 4) as `random_boxes`.

    It is the window of `side` pixels at a random place of the image after this was resized to a
    shorter side from `short_side`, both ends included. The window is cut from the original image
    and then resized, so that an image is resized once.
    """
    least, most = short_side
    resized = least + draws.integers("short side", most - least + 1)
    height, width = sizes.double().unbind(1)
    square = (torch.minimum(height, width) * side / resized).round().clamp(min=1)
    place = draws.uniform("window", 2).double()
    top, left = place[:, 0] * (height - square + 1), place[:, 1] * (width - square + 1)
    return torch.stack([top, left, square, square], dim=1).long()


def center_boxes(sizes: Tensor, share: float) -> Tensor:
    """Return central squares (N, 4) of images of `sizes` (N, 2), `share` of the shorter side."""
    side = (sizes.min(dim=1).values.double() * share).round().clamp(min=1)
    return _middle(sizes, side, side)


def _middle(sizes: Tensor, tall: Tensor, wide: Tensor) -> Tensor:
    height, width = sizes.double().unbind(1)
    return torch.stack([(height - tall) // 2, (width - wide) // 2, tall, wide], dim=1).long()


def crop_and_resize(
    image: Image.Image, box: tuple[int, int, int, int], side: int
) -> NDArray[np.uint8]:
    """Return the `box` (top, left, height, width) of an RGB image as (3, side, side)."""
    top, left, height, width = box
    cropped = image.crop((left, top, left + width, top + height))
    # In two calls: which direction Pillow takes first has changed between its versions.
    rows = cropped.resize((side, height), Image.Resampling.BILINEAR)
    return np.asarray(rows.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
