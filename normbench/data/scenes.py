"""Scenes of scattered digits: images with a class, an instance and a depth for every pixel.

Three to eight of scikit-learn's handwritten digits, enlarged to one of seven sizes, are painted at
random places from far to near, so that near ones hide what is behind them. A near digit is large
and bright: its depth is 1 at the largest size and grows as its side shrinks, and the background is
twice as far as the smallest. A scene follows from the random numbers of its image alone
(`normbench.data.counter_rng`), so it is the same in every batch and on every device.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.data.counter_rng import Draws
from normbench.data.dataset import TensorSplit

SIDES = (12, 16, 20, 24, 28, 34, 40)  # pixels
FEWEST, MOST = 3, 8  # digits of a scene
INK = 96  # a pixel of at least this brightness belongs to its digit
FARTHEST = 2 * SIDES[-1] / SIDES[0]  # depth of the background
_NUMBERS = 4  # random numbers of a digit: which one, side, row and column

Bytes = npt.NDArray[np.uint8]


class Scenes(NamedTuple):
    """N scenes of `side` pixels in height and width."""

    images: Tensor  # (N, 1, side, side) uint8, white is 255
    classes: Tensor  # (N, side, side) uint8: 0 is the background, d + 1 the digit d
    instances: Tensor  # (N, side, side) uint8: 0 is the background, 1 the digit farthest away ...
    depth: Tensor  # (N, side, side) fp32


def compose_scenes(digits: TensorSplit, draws: Draws, side: int) -> Scenes:
    """Compose a scene for each image of `draws` from `digits` (N, 1, 8, 8), 0 to 16.

    Raises:
        ValueError: a scene of `side` pixels does not hold the largest digit.
    """
    if side < SIDES[-1]:
        raise ValueError(f"side={side}: the largest digit has {SIDES[-1]} pixels; 64 works")
    numbers = draws.uniform("scene", 1 + MOST * _NUMBERS).cpu().numpy()
    labels = digits.labels.numpy()
    shape = (len(numbers), side, side)
    images, classes, instances = (np.zeros(shape, np.uint8) for _ in range(3))
    depth = np.full(shape, FARTHEST, np.float32)
    bank = _enlarge(digits.images)
    for scene, row in enumerate(numbers):
        count = FEWEST + int(row[0] * (MOST - FEWEST + 1))
        placed = sorted(
            row[1:].reshape(MOST, _NUMBERS)[:count].tolist(), key=lambda digit: digit[1]
        )
        for number, (which, size, top, left) in enumerate(placed, 1):
            rank = int(size * len(SIDES))
            length = SIDES[rank]
            chosen = int(which * len(labels))
            ink = bank[rank][chosen]
            places = side - length + 1
            y, x = int(top * places), int(left * places)
            here = (scene, slice(y, y + length), slice(x, x + length))
            mask = ink >= INK
            images[here][mask] = np.rint(ink[mask] * _brightness(rank))
            classes[here][mask] = labels[chosen] + 1
            instances[here][mask] = number
            depth[here][mask] = SIDES[-1] / length
    return Scenes(
        torch.from_numpy(images)[:, None], torch.from_numpy(classes),
        torch.from_numpy(instances), torch.from_numpy(depth),
    )  # fmt: skip


def _brightness(rank: int) -> float:
    """Return the factor of a digit's brightness: 1 at the largest size, 0.4 at the smallest."""
    return 0.4 + 0.6 * rank / (len(SIDES) - 1)


@lru_cache(maxsize=4)  # the digits of three splits; 9 MB for all 1,797
def _enlarge(images: Tensor) -> list[Bytes]:
    """Return digits (N, 1, 8, 8) in each of `SIDES`, (N, side, side); white is 255."""
    pixels = images.float() * (255 / 16)
    return [
        F.interpolate(pixels, (side, side), mode="bilinear", align_corners=False)
        .round()
        .to(torch.uint8)[:, 0]
        .numpy()
        for side in SIDES
    ]
