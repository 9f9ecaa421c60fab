"""Caltech-256 (Griffin, Holub and Perona 2007): photographs in 256 classes, without the clutter.

There are no official splits. As in Summers and Dinneen 2020, 40 images of a class are for training,
10 for validation and 30 for tests, drawn with a fixed seed. torchvision downloads the archive; its
class has the clutter, no splits, and assumes consecutive numbers in names of files, so the images
are listed as any folder of classes.
"""

from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torchvision import datasets as torchvision

from normbench.data.counter_rng import permutation
from normbench.data.dataset import SPLIT_SEED, HeldOut
from normbench.data.official_files import OfficialFiles
from normbench.data.photographs import FileSplit, Photographs, class_folders, list_images
from normbench.errors import BadInput

IMAGES, CLASSES = 29_780, 256  # without the 827 of the class 257.clutter
FOLDER = "caltech256/256_ObjectCategories"
REMEDY = (
    "data.download=true gets it, or unpack 256_ObjectCategories.tar of data.caltech.edu in "
    "data.root/caltech256"
)


@dataclass(frozen=True)
class Caltech256(Photographs):
    """A fixed number of training and of test images per class.

    Args:
        root: folder of caltech256/256_ObjectCategories.
        train: images per class for training and validation.
        test: images per class for tests.
        verify: count the images.
        download: get the archive where the folder is missing.
    """

    val: HeldOut = 0.2  # 10 of 50 images
    train: PositiveInt = 50
    test: PositiveInt = 30
    verify: bool = True
    download: bool = False

    classes = CLASSES

    @property
    def official_sizes(self) -> tuple[int, int]:
        return CLASSES * self.train, CLASSES * self.test

    def list_files(self) -> tuple[FileSplit, FileSplit]:
        files = OfficialFiles("caltech256", self.folder, {FOLDER: None}, REMEDY, verify=False)
        if self.download:
            files.download(lambda: torchvision.Caltech256(self.folder, download=True))
        names = [name for name in class_folders(files, FOLDER) if not name.startswith("257.")]
        if len(names) != CLASSES:
            problem = f"has {len(names)} classes, Caltech-256 {CLASSES} and 257.clutter"
            raise files.unusable(FOLDER, problem)
        images = list_images(files, FOLDER, names)
        if self.verify:
            counted = "images without clutter, Caltech-256"
            files.require_count(FOLDER, len(images.paths), counted, IMAGES)
        train, test = (images.take(indices) for indices in self._draw(images.labels, names))
        return train, test

    def _draw(self, labels: torch.Tensor, names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the indices of the images to train on and to test on."""
        train, test = [], []
        for label, name in enumerate(names):
            indices = (labels == label).nonzero()[:, 0]
            if len(indices) < self.train + self.test:
                raise BadInput(
                    f"data.train={self.train} data.test={self.test}: the class {name} has "
                    f"{len(indices)} images, and the smallest of Caltech-256 has 80"
                )
            order = indices[permutation(SPLIT_SEED, label, len(indices), "caltech256")]
            test.append(order[: self.test])  # first, so that data.train does not change them
            train.append(order[self.test : self.test + self.train])
        # Sorted: an index depends on which images there are and not on how they were drawn.
        return torch.cat(train).sort().values, torch.cat(test).sort().values

    def file_options(self, split: str) -> list[str]:
        return [f"{self.train}+{self.test}", *super().file_options(split)]
