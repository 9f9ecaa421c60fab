"""ADE20K (Zhou et al. 2017), the scene parsing benchmark: photographs with 150 classes.

The test images are the official validation images. What belongs to none of the classes is void.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normbench.data.labelled_photographs import FolderPairs, read_bytes, require_classes

IMAGES = "ADEChallengeData2016/images"


@dataclass(frozen=True)
class Ade20k(FolderPairs):
    """20,210 training images and 2,000 test images."""

    classes = 150
    key = "ade20k"
    title = "ADE20K"
    parts = {f"{IMAGES}/training": 20_210, f"{IMAGES}/validation": 2_000}  # noqa: RUF012
    pattern = "*.jpg"
    remedy = (
        "get ADEChallengeData2016.zip from sceneparsing.csail.mit.edu and unpack it in data.root"
    )

    def map_of(self, image: Path) -> Path:
        top = image.parents[2]
        return top / "annotations" / image.parent.name / f"{image.stem}.png"

    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        return require_classes(path, read_bytes(path), self.classes)  # 0 is void there, too
