"""Any photographs with masks of classes: PART/images/NAME.jpg and PART/masks/NAME.png.

The parts are train, and test to test on; val is read where there is no test.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torchvision.datasets.folder import IMG_EXTENSIONS

from normbench.data.labelled_photographs import ClassMaps, LabelledSplit, Pair, read_bytes
from normbench.errors import BadInput

MOST_CLASSES = 254  # in bytes, with one for void pixels


@dataclass(frozen=True)
class MaskFolder(ClassMaps):
    """A user's images, each with a grey or palette PNG that has the class of every pixel.

    Args:
        root: folder of train/images/*, train/masks/*.png and the same in test or val.
        classes: number of classes.
        void: value of pixels that count nowhere.
        name: name of these images in ids and tables, wherever their folder is; null: the folder.
    """

    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] = 2
    void: Annotated[int, Field(ge=0, le=255)] = 255
    name: str | None = None
    verify: bool = field(default=False, init=False)  # there are no official numbers of images

    key = "mask_folder"
    title = "a folder of masks"
    parts = {}  # noqa: RUF012 (no official numbers)
    remedy = (
        "data.root=FOLDER names a folder of train/images/*, train/masks/*.png and the same in test "
        "(or val)"
    )

    def load(self) -> tuple[LabelledSplit, LabelledSplit]:
        if not self.folder.is_dir():
            raise self.files.unusable("", "is no folder")
        test = next((name for name in ("test", "val") if (self.folder / name).is_dir()), None)
        if test is None:
            raise self.files.unusable("", "has neither test/ nor val/")
        return self._split("train"), self._split(test)

    def _split(self, part: str) -> LabelledSplit:
        place = f"{part}/images"
        images = sorted(
            path
            for path in (self.folder / place).glob("*")
            if path.suffix.lower() in IMG_EXTENSIONS and not path.name.startswith(".")
        )
        if not images:
            raise self.files.unusable(place, "is missing or has no images")
        for one, other in pairwise(images):
            if one.stem == other.stem:
                raise self.files.unusable(
                    place, f"has {one.name} and {other.name}, which would share {one.stem}.png"
                )
        masks = [self.folder / part / "masks" / f"{image.stem}.png" for image in images]
        if missing := [mask for mask in masks if not mask.exists()]:
            name = str(missing[0].relative_to(self.folder))
            raise self.files.unusable(name, "is missing")
        return LabelledSplit([*map(Pair, images, masks)], self)

    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        values = read_bytes(path, "a mask is a grey or palette PNG with a class in each pixel")
        labelled = values != self.void
        if (largest := int(values.max(initial=0, where=labelled))) >= self.classes:
            more = f"data.classes={largest + 1} works, or " if largest < MOST_CLASSES else ""
            raise BadInput(
                f"{path} has a pixel of value {largest}, and the last of data.classes="
                f"{self.classes} is {self.classes - 1}; {more}data.void={largest} if such pixels "
                "count nowhere"
            )
        return np.where(labelled, values + np.uint8(1), np.uint8(0))
