"""Cityscapes (Cordts et al. 2016): photographs of streets with 19 classes, finely labelled.

The test images are the official validation images, as those to test on have no public labels.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normbench.data.labelled_photographs import FolderPairs, read_bytes

IMAGE, MAP = "_leftImg8bit.png", "_gtFine_labelIds.png"
#: Numbers of the official classes in the maps, in the order of the benchmark; all others are void.
NUMBERS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)


@dataclass(frozen=True)
class Cityscapes(FolderPairs):
    """2,975 training images and 500 test images of 2048x1024 pixels."""

    classes = len(NUMBERS)
    key = "cityscapes"
    title = "Cityscapes"
    parts = {"leftImg8bit/train": 2_975, "leftImg8bit/val": 500}  # noqa: RUF012
    pattern = f"*/*{IMAGE}"
    remedy = (
        "get leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from cityscapes-dataset.com "
        "and unpack them in data.root"
    )

    def map_of(self, image: Path) -> Path:
        top, part, city = image.parents[3], image.parents[1].name, image.parent.name
        return top / "gtFine" / part / city / image.name.replace(IMAGE, MAP)

    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        table = np.zeros(256, np.uint8)
        table[list(NUMBERS)] = np.arange(1, len(NUMBERS) + 1)
        return table[read_bytes(path)]
