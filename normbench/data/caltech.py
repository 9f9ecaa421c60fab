"""Caltech-256 (Griffin, Holub and Perona 2007): photographs in 256 classes, without the clutter.

There are no official splits. As in Summers and Dinneen 2020, 40 images of a class are trained on,
10 held out and 30 tested on; which they are follows from a fixed seed. torchvision downloads the
archive. The images are listed as any folder of classes, since torchvision's class has the clutter,
no splits, and takes the names of files for consecutive numbers.
"""

from dataclasses import dataclass

import torch
from torchvision import datasets as torchvision

from normbench.data.counter_rng import permutation
from normbench.data.dataset import SPLIT_SEED
from normbench.data.official_files import download_once
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
    """A fixed number of images of every class to train on, and of others to test on.

    Args:
        root: folder of caltech256/256_ObjectCategories.
        train: images of a class that are not tested on.
        test: images of a class that are.
        verify: count the images.
        download: get the archive where the folder is missing.
    """

    val: float = 0.2
    train: int = 50
    test: int = 30
    verify: bool = True
    download: bool = False

    classes = CLASSES

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train", "test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: images of a class, at least 1")

    @property
    def official_sizes(self) -> tuple[int, int]:
        return CLASSES * self.train, CLASSES * self.test

    def list_files(self) -> tuple[FileSplit, FileSplit]:
        folder = self.folder / FOLDER
        if self.download:
            download_once(
                "caltech256", self.folder, REMEDY, folder.is_dir,
                lambda: torchvision.Caltech256(self.folder, download=True),
            )  # fmt: skip
        names = class_folders("caltech256", folder, REMEDY)
        names = [name for name in names if not name.startswith("257.")]
        if len(names) != CLASSES:
            raise BadInput(
                f"data=caltech256: {folder} has {len(names)} classes, Caltech-256 {CLASSES} "
                f"and 257.clutter; {REMEDY}"
            )
        images = list_images("caltech256", folder, names, REMEDY)
        if self.verify and len(images.paths) != IMAGES:
            raise BadInput(
                f"data=caltech256: {folder} has {len(images.paths):,} images without "
                f"clutter, Caltech-256 {IMAGES:,} (data.verify=false takes it as it is); {REMEDY}"
            )
        train, test = (images.take(chosen) for chosen in self._draw(images.labels, names))
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
            test.append(order[: self.test])
            train.append(order[self.test : self.test + self.train])
        # Sorted: an index depends on which images there are and not on how they were drawn.
        return torch.cat(train).sort().values, torch.cat(test).sort().values

    def _name_parts(self, split: str) -> list[str]:
        return [f"{self.train}+{self.test}", *super()._name_parts(split)]
