"""Caltech-256 (Griffin, Holub and Perona 2007): photographs in 256 classes, without the clutter.

It has no official splits. As in Summers and Dinneen 2020, 40 images of a class are trained on, 10
held out and 30 tested on, which every class has; which they are follows from a fixed seed.
"""

from dataclasses import dataclass

import torch
from torchvision import datasets as torchvision

from normbench.data.checksums import fetch
from normbench.data.counter_rng import permutation
from normbench.data.dataset import SPLIT_SEED
from normbench.data.files import Files, Folders, class_folders, listed
from normbench.errors import BadInput

IMAGES, CLASSES = 29_780, 256  # without the 827 of the class 257.clutter
FOLDER = "caltech256/256_ObjectCategories"
WHERE = (
    "data.download=true gets it, or unpack 256_ObjectCategories.tar of data.caltech.edu in "
    "data.root/caltech256"
)


@dataclass(frozen=True)
class Caltech256(Folders):
    """So many images of every class to train on, so many others to test on.

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
    def official(self) -> tuple[int, int]:
        return CLASSES * self.train, CLASSES * self.test

    def listing(self) -> tuple[Files, Files]:
        root = self.folder
        if self.download:
            there = (root / FOLDER).is_dir
            fetch(
                "caltech256",
                root,
                WHERE,
                there,
                lambda to: torchvision.Caltech256(to, download=True),
            )
        found = class_folders("caltech256", root / FOLDER, WHERE)
        names = [name for name in found if not name.startswith("257.")]
        if len(names) != CLASSES:
            raise BadInput(
                f"data=caltech256: {root / FOLDER} has {len(names)} classes, Caltech-256 {CLASSES} "
                f"and 257.clutter; {WHERE}"
            )
        everything = listed("caltech256", root / FOLDER, names, WHERE)
        if self.verify and len(everything.paths) != IMAGES:
            raise BadInput(
                f"data=caltech256: {root / FOLDER} has {len(everything.paths):,} images without "
                f"clutter, Caltech-256 {IMAGES:,} (data.verify=false takes it as it is); {WHERE}"
            )
        train, test = (everything.take(part) for part in self._parts(everything.labels, names))
        return train, test

    def _parts(self, labels: torch.Tensor, names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices of the images to train on and to test on."""
        trained, tested = [], []
        for label, name in enumerate(names):
            own = (labels == label).nonzero()[:, 0]
            if len(own) < self.train + self.test:
                raise BadInput(
                    f"data.train={self.train} data.test={self.test}: the class {name} has "
                    f"{len(own)} images, and the smallest of Caltech-256 has 80"
                )
            order = own[permutation(SPLIT_SEED, label, len(own), "caltech256")]
            tested.append(order[: self.test])
            trained.append(order[self.test : self.test + self.train])
        # Sorted: an index depends on which images there are and not on how they were drawn.
        parts = (torch.cat(each).sort().values for each in (trained, tested))
        return next(parts), next(parts)

    def _contents(self, split: str) -> list[str]:
        return [f"{self.train}+{self.test}", *super()._contents(split)]
