"""ADE20K (Zhou et al. 2017), the scene parsing benchmark: photographs with 150 classes.

The test images are the official validation images. What belongs to none of the classes is void.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normbench.data.labelled_photographs import (
    LabelledPhotographs,
    LabelledSplit,
    read_bytes,
    require_classes,
)
from normbench.data.official_files import OfficialFiles

TOP = "ADEChallengeData2016"
COUNTS = {"training": 20_210, "validation": 2_000}
REMEDY = "get ADEChallengeData2016.zip from sceneparsing.csail.mit.edu and unpack it in data.root"


@dataclass(frozen=True)
class Ade20k(LabelledPhotographs):
    """20,210 training images and 2,000 test images."""

    classes = 150

    @property
    def official_sizes(self) -> tuple[int, int]:
        return (COUNTS["training"], COUNTS["validation"]) if self.verify else super().official_sizes

    @property
    def _files(self) -> OfficialFiles:
        return OfficialFiles("ade20k", self.folder, {}, REMEDY)

    def load(self) -> tuple[LabelledSplit, LabelledSplit]:
        train, test = (self._split(part) for part in COUNTS)
        return train, test

    def _split(self, part: str) -> LabelledSplit:
        folder = self.folder / TOP
        images = sorted((folder / "images" / part).glob("*.jpg"))
        if not images:
            raise self._files.unusable(f"{TOP}/images/{part}", "has no images")
        if self.verify:
            name = f"{TOP}/images/{part}"
            self._files.require_count(name, len(images), "images, ADE20K", COUNTS[part])
        maps = [folder / "annotations" / part / f"{image.stem}.png" for image in images]
        return LabelledSplit(images, maps, self)

    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        return require_classes(path, read_bytes(path), self.classes)  # 0 is void there, too
