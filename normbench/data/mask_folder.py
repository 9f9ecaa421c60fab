"""Any photographs with masks of classes: PART/images/NAME.jpg and PART/masks/NAME.png.

The parts are train, and test or val to test on.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torchvision.datasets.folder import IMG_EXTENSIONS

from normbench.data.labelled_photographs import ClassMaps, LabelledSplit, Pair, read_bytes
from normbench.errors import BadInput


@dataclass(frozen=True)
class MaskFolder(ClassMaps):
    """A user's images, each with a grey or palette PNG that has the class of every pixel.

    Args:
        classes: number of classes.
        void: value of pixels that count nowhere.
        name: name of these images in ids and tables, wherever their folder is; null: the folder.
    """

    classes: Annotated[int, Field(ge=2, le=254)] = 2
    void: Annotated[int, Field(ge=0, le=255)] = 255
    name: str | None = None
    verify: bool = field(default=False, init=False)  # there are no official numbers of images

    key = "mask_folder"
    title = "own images"
    parts = {}  # noqa: RUF012 (of no official number)
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
        masks = [self.folder / part / "masks" / f"{image.stem}.png" for image in images]
        if missing := [mask for mask in masks if not mask.exists()]:
            name = str(missing[0].relative_to(self.folder))
            raise self.files.unusable(name, "is missing")
        return LabelledSplit([*map(Pair, images, masks)], self)

    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        values = read_bytes(path, "a mask is a grey or palette PNG with a class in each pixel")
        known = values != self.void
        if (largest := int(values.max(initial=0, where=known))) >= self.classes:
            raise BadInput(
                f"{path} has a pixel of value {largest}: with data.classes={self.classes} classes "
                f"are 0 to {self.classes - 1}, and void pixels have data.void={self.void}"
            )
        return np.where(known, values + np.uint8(1), np.uint8(0))
