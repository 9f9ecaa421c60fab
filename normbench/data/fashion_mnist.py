"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 70,000 grey images of 28x28 pixels, 10 classes.

Read by torchvision from the four official idx files, gzipped as they are published. torchvision's
class wants them unpacked in folders of its own naming, so they are unpacked into a temporary file
for its functions.
"""

import gzip
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from torchvision.datasets.mnist import read_image_file, read_label_file

from normbench.data.dataset import SmallImages, TensorSplit
from normbench.data.official_files import OfficialFiles

SIDE = 28  # pixels of the official images
CLASSES = 10
IMAGES_PER_CLASS = 6_000, 1_000  # images to train on and to test on
REMEDY = (
    "on Debian `apt-get install dataset-fashion-mnist` puts the four files into "
    "/usr/share/datasets/fashion-mnist; elsewhere take them from the data set's page "
    "(github.com/zalandoresearch/fashion-mnist) and say data.root=FOLDER"
)


@dataclass(frozen=True)
class FashionMNIST(SmallImages):
    """60,000 training and 10,000 test images, as the official files have them.

    Args:
        root: folder of the four `*-ubyte.gz` files.
        size: side of the images in pixels, by averages over the original ones; null: 28.
        labels: classes to use, by their numbers 0 to 9; [7, 2] makes class 7 the new 0, and 2 the
            new 1. null: all.
    """

    root: str = "/usr/share/datasets/fashion-mnist"
    padding: NonNegativeInt = 2
    size: Annotated[int, Field(ge=1, le=SIDE)] | None = None
    labels: tuple[Annotated[int, Field(ge=0, lt=CLASSES)], ...] | None = None

    moments = ((0.2860,), (0.3530,))

    def __post_init__(self) -> None:
        if self.labels is not None and len({*self.labels}) != max(2, len(self.labels)):
            raise ValueError(
                f"labels={list(self.labels)}: name two or more different classes, as [0,1]"
            )

    @property
    def classes(self) -> int:
        return CLASSES if self.labels is None else len(self.labels)

    @property
    def official_sizes(self) -> tuple[int, int]:
        train, test = (self.classes * images for images in IMAGES_PER_CLASS)
        return train, test

    @property
    def image_shape(self) -> tuple[int, int, int]:
        side = self.size or SIDE
        return 1, side, side

    @property
    def limits(self) -> str:
        _, height, width = self.image_shape
        return (
            f"Grey images of {height}x{width} pixels in a small network and a short training: "
            "a demonstration, no evidence about photographs or ImageNet."
        )

    def load(self) -> tuple[TensorSplit, TensorSplit]:
        pairs = [
            (f"{split}-images-idx3-ubyte.gz", f"{split}-labels-idx1-ubyte.gz")
            for split in ("train", "t10k")
        ]
        sums = dict.fromkeys(chain.from_iterable(pairs))
        files = OfficialFiles("fashion_mnist", self.folder, sums, REMEDY, verify=False)
        files.check()
        train, test = (self._resize(self._choose(_read_pair(files, *pair))) for pair in pairs)
        return train, test

    def file_options(self, split: str) -> list[str]:
        chosen = [] if self.labels is None else ["".join(map(str, self.labels))]
        size = [] if self.size is None else [f"size{self.size}"]
        return [*super().file_options(split), *chosen, *size]

    def _choose(self, split: TensorSplit) -> TensorSplit:
        """Return the images of the classes `labels`, with their new numbers."""
        if self.labels is None:
            return split
        numbers = torch.full((CLASSES,), -1)
        numbers[list(self.labels)] = torch.arange(len(self.labels))
        renumbered = numbers[split.labels]
        return TensorSplit(split.images, renumbered).take((renumbered >= 0).nonzero()[:, 0])

    def _resize(self, split: TensorSplit) -> TensorSplit:
        """Average the images of `split` to `size` pixels."""
        if self.size in (None, SIDE):
            return split
        averages = adaptive_avg_pool2d(split.images.float(), self.image_shape[1:])
        return TensorSplit(averages.round().to(split.images.dtype), split.labels)


def _read_pair(files: OfficialFiles, images: str, labels: str) -> TensorSplit:
    """Read the two files of a split."""
    pixels = _read_idx(files, images, read_image_file)  # (N, H, W)
    if pixels.shape[1:] != (SIDE, SIDE):
        shape = tuple(pixels.shape[1:])
        raise files.unusable(images, f"has images of {shape}, not of 28x28 pixels")
    classes = _read_idx(files, labels, read_label_file)
    return files.split(labels, pixels[:, None], classes, (1, SIDE, SIDE), CLASSES)


def _read_idx(files: OfficialFiles, name: str, read: Callable[[str], Tensor]) -> Tensor:
    """Unpack the file `name` and `read` it."""
    with files.reading(name), TemporaryDirectory() as folder:
        unpacked = Path(folder, "idx")
        with gzip.open(files.root / name) as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target)
        return read(str(unpacked))
