"""Any photographs with masks of classes: PART/images/NAME.jpg and PART/masks/NAME.png.

The parts are train, and test to test on; val is read where there is no test.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from normbench.data.labelled_photographs import ClassMaps, LabelledSplit, Pair, read_bytes
from normbench.data.photographs import find_test_folder, is_visible_image
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
        test = find_test_folder(self.files)
        return self._split("train"), self._split(test)

    def _split(self, part: str) -> LabelledSplit:
        place = f"{part}/images"
        images = sorted(
            path for path in (self.folder / place).glob("*") if is_visible_image(str(path))
        )
        if not images:
            raise self.files.unusable(place, "is missing or has no images")
        first: dict[str, str] = {}
        for image in images:
            if (other := first.setdefault(image.stem, image.name)) != image.name:
                raise self.files.unusable(
                    place, f"has {other} and {image.name}, which would share {image.stem}.png"
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
