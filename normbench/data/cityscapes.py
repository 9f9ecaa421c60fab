"""Cityscapes (Cordts et al. 2016): photographs of streets with 19 classes, finely labelled.

The test images are the official validation images, as those to test on have no public labels.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normbench.data.labelled_photographs import LabelledPhotographs, LabelledSplit, read_bytes
from normbench.data.official_files import OfficialFiles

COUNTS = {"train": 2_975, "val": 500}
IMAGE, MAP = "_leftImg8bit.png", "_gtFine_labelIds.png"
REMEDY = (
    "get leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from cityscapes-dataset.com and "
    "unpack them in data.root"
)
#: Numbers of the official classes in the maps, in the order of the benchmark; all others are void.
NUMBERS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)


@dataclass(frozen=True)
class Cityscapes(LabelledPhotographs):
    """2,975 training images and 500 test images of 2048x1024 pixels."""

    classes = len(NUMBERS)

    @property
    def official_sizes(self) -> tuple[int, int]:
        return (COUNTS["train"], COUNTS["val"]) if self.verify else super().official_sizes

    @property
    def _files(self) -> OfficialFiles:
        return OfficialFiles("cityscapes", self.folder, {}, REMEDY)

    def load(self) -> tuple[LabelledSplit, LabelledSplit]:
        train, test = (self._split(part) for part in COUNTS)
        return train, test

    def _split(self, part: str) -> LabelledSplit:
        images = sorted((self.folder / "leftImg8bit" / part).glob(f"*/*{IMAGE}"))
        if not images:
            raise self._files.unusable(f"leftImg8bit/{part}", f"has no CITY/*{IMAGE}")
        if self.verify:
            name = f"leftImg8bit/{part}"
            self._files.require_count(name, len(images), "images, Cityscapes", COUNTS[part])
        maps = [
            self.folder / "gtFine" / part / image.parent.name / image.name.replace(IMAGE, MAP)
            for image in images
        ]
        return LabelledSplit(images, maps, self)

    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        table = np.zeros(256, np.uint8)
        table[list(NUMBERS)] = np.arange(1, len(NUMBERS) + 1)
        return table[read_bytes(path)]
