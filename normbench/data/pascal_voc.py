"""Pascal VOC 2012 (Everingham et al. 2015): photographs with 20 classes and the background.

Training may add the images of SBD (Hariharan et al. 2011), whose maps are in files of MATLAB: all
of both but those to test on, 10,582 in all, known as train_aug. The test images are the official
validation images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from normbench.data.labelled_photographs import (
    ClassMaps,
    LabelledSplit,
    Pair,
    read_bytes,
    require_classes,
)
from normbench.errors import BadInput

VOC, SBD = "VOCdevkit/VOC2012", "benchmark_RELEASE/dataset"
SIZES = {"train": 1_464, "train_aug": 10_582}
TEST = 1_449


@dataclass(frozen=True)
class PascalVoc(ClassMaps):
    """1,464 or, with SBD, 10,582 training images and 1,449 test images.

    Args:
        train: "train" or "train_aug", with the images of SBD.
    """

    train: Literal["train", "train_aug"] = "train_aug"

    classes = 21

    key = "pascal_voc"
    title = "Pascal VOC"
    remedy = (
        "get VOCtrainval_11-May-2012.tar from host.robots.ox.ac.uk/pascal/VOC, and for "
        "data.train=train_aug also benchmark.tgz of SBD, and unpack them in data.root"
    )

    @property
    def parts(self) -> dict[str, int]:
        return {self.train: SIZES[self.train], "val": TEST}

    def load(self) -> tuple[LabelledSplit, LabelledSplit]:
        segmentation = f"{VOC}/ImageSets/Segmentation"
        lists = [f"{segmentation}/{part}.txt" for part in ("train", "val")]
        train, test = map(self._names, lists)
        maps = {name: f"{VOC}/SegmentationClass/{name}.png" for name in (*train, *test)}
        if self.train == "train_aug":
            of_sbd = [
                name for part in ("train", "val") for name in self._names(f"{SBD}/{part}.txt")
            ]
            maps = {name: f"{SBD}/cls/{name}.mat" for name in of_sbd} | maps
            train = sorted({*of_sbd, *train} - {*test})
        for part, place, names in zip(self.parts, lists, (train, test), strict=True):
            self.require_count(part, place, len(names))
        return self._split(train, maps), self._split(test, maps)

    def _names(self, name: str) -> list[str]:
        """Return the names of images in a list.

        Raises:
            BadInput: there is no such list.
        """
        with self.files.reading(name):
            return (self.folder / name).read_text().split()

    def _split(self, names: Sequence[str], maps: dict[str, str]) -> LabelledSplit:
        images = self.folder / VOC / "JPEGImages"
        pairs = [Pair(images / f"{name}.jpg", self.folder / maps[name]) for name in names]
        return LabelledSplit(pairs, self)

    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        values = _read_matlab(path) if path.suffix == ".mat" else read_bytes(path)
        return require_classes(path, values + 1, self.classes)  # bytes wrap: void is 255


def _read_matlab(path: Path) -> NDArray[np.uint8]:
    """Return the map of classes in a file of SBD.

    Raises:
        BadInput: it is missing or damaged.
    """
    from scipy.io import loadmat  # half a second

    try:
        values = loadmat(path)["GTcls"]["Segmentation"][0, 0]
        return np.asarray(values, np.uint8)
    except Exception as error:  # scipy raises whatever a damaged file leads it to
        raise BadInput(
            f"{path} is no map of SBD ({type(error).__name__}: {error}); get the official file"
        ) from None
