"""COCO 2017 (Lin et al. 2014): photographs with boxes, classes and masks of objects.

The test images are the official validation images. Every image is resized until its longer side is
that of a window. An object's box is that of its visible pixels: where masks overlap, the smaller
object is in front, so numbers may differ a little from those on the official boxes. The pixels of
crowds are void.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import PositiveInt

from normbench.data.labelled_photographs import Factor, LabelledPhotographs, LabelledSplit
from normbench.data.official_files import OfficialFiles
from normbench.data.photographs import decode
from normbench.errors import BadInput

#: Training images with an object, and images to test on.
COUNTS = {"train2017": 117_266, "val2017": 5_000}
CLASSES = 80
MOST_OBJECTS = 255  # of an image: the numbers of a byte without 0
REMEDY = (
    "get train2017.zip, val2017.zip and annotations_trainval2017.zip from cocodataset.org and "
    "unpack them in data.root"
)


class Annotation(NamedTuple):
    """An object of an image."""

    label: int  # from 1 on
    outline: Any  # polygons, or run lengths
    area: float
    crowd: bool


class Photograph(NamedTuple):
    """An image file and its objects."""

    path: Path
    objects: tuple[Annotation, ...]


@dataclass(frozen=True)
class Coco(LabelledPhotographs):
    """117,266 training images with objects of 80 classes, and 5,000 test images.

    Args:
        size: side of the windows in an evaluation, and in training unless the recipe asks for
            another; the longer side of an image.
    """

    size: PositiveInt = 1024
    scales: tuple[Factor, Factor] = (1.0, 1.0)

    classes = 1 + CLASSES  # the background is 0
    maps = 2
    limits = (
        "Boxes are those of the visible pixels of objects in windows, so that numbers differ a "
        "little from COCO's."
    )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    @property
    def counts(self) -> tuple[int, int]:
        train, test = COUNTS.values()
        return train, test

    def load(self) -> tuple[LabelledSplit, LabelledSplit]:
        train, test = map(self._photographs, COUNTS)
        # As in Detectron, images without an object are for tests alone.
        train = [each for each in train if any(not one.crowd for one in each.objects)]
        if self.verify:
            for (name, count), found in zip(COUNTS.items(), (train, test), strict=True):
                self._files.require_count(name, len(found), "images, COCO", count)
        return LabelledSplit(train, self), LabelledSplit(test, self)

    @property
    def _files(self) -> OfficialFiles:
        return OfficialFiles("coco", self.folder, {}, REMEDY)

    def _photographs(self, part: str) -> list[Photograph]:
        """Return the images of a part by ascending number.

        Raises:
            BadInput: there is no list of them, or it is damaged.
        """
        name = f"annotations/instances_{part}.json"
        with self._files.reading(name):
            content = json.loads((self.folder / name).read_bytes())
            categories = [each["id"] for each in content["categories"]]
            labels = {number: label for label, number in enumerate(sorted(categories), 1)}
            objects = defaultdict(list)
            for each in content["annotations"]:
                objects[each["image_id"]].append(_annotation(each, labels))
            photographs = [
                Photograph(self.folder / part / each["file_name"], tuple(objects[each["id"]]))
                for each in sorted(content["images"], key=lambda image: image["id"])
            ]
        if len(labels) > CLASSES:
            raise self._files.unusable(name, f"has {len(labels)} categories, COCO {CLASSES}")
        return photographs

    def fit(self, image: Image.Image) -> float:
        return self.size / max(image.size)

    def read(self, source: Photograph, factor: float) -> tuple[Image.Image, NDArray[np.uint8]]:  # noqa: ARG002
        image = decode(str(source.path))
        classes = np.ones((image.height, image.width), np.uint8)  # the background
        instances = np.zeros_like(classes)
        number = 0
        for each in _by_falling_area(source.objects):
            mask = _draw(each.outline, source.path, image)
            if each.crowd:
                classes[mask] = instances[mask] = 0
                continue
            number += 1
            if number > MOST_OBJECTS:
                raise BadInput(f"{source.path} has more than {MOST_OBJECTS} objects")
            classes[mask], instances[mask] = 1 + each.label, number
        return image, np.stack([classes, instances])


def _annotation(raw: dict[str, Any], labels: dict[int, int]) -> Annotation:
    outline = raw["segmentation"]
    if isinstance(outline, list):  # numbers of Python take four times the memory
        outline = [np.asarray(polygon, np.float64) for polygon in outline]
    return Annotation(labels[raw["category_id"]], outline, raw["area"], bool(raw["iscrowd"]))


def _by_falling_area(objects: Iterable[Annotation]) -> list[Annotation]:
    """Return crowds first, then large objects before small ones."""
    return sorted(objects, key=lambda each: (not each.crowd, -each.area))


def _draw(outline: Any, path: Path, image: Image.Image) -> NDArray[np.bool_]:
    """Return the pixels (H, W) inside of polygons or run lengths, as COCO's own code.

    Raises:
        BadInput: the outline is none, or of an image of another size.
    """
    from faster_coco_eval.core import mask  # other data sets need none of it

    try:
        polygons = outline if isinstance(outline, dict) else [each.tolist() for each in outline]
        pixels = mask.decode(mask.segmToRle(polygons, image.width, image.height))
        if pixels.shape != (image.height, image.width):
            raise ValueError(f"it is {pixels.shape[1]}x{pixels.shape[0]}")
    except Exception as error:  # its C++ raises several kinds
        raise BadInput(
            f"{path} has {image.width}x{image.height} pixels and an outline that does not fit "
            f"({type(error).__name__}: {error}); get the official files"
        ) from None
    return np.asarray(pixels, bool)
