"""COCO 2017 (Lin et al. 2014): photographs with boxes, classes and masks of objects.

The test images are the official validation images. Every image is resized until its longer side is
that of a window. An object's box is that of its visible pixels: where masks overlap, the smaller
object is in front. The pixels of crowds are void in segmentation; in detection they count as
background, and what is detected there as an error. So numbers differ a little from COCO's.
"""

import json
import pickle
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
from normbench.data.photographs import decode
from normbench.errors import BadInput

TEST = "val2017"
CLASSES = 80
MOST_OBJECTS = 255  # of an image: the numbers of a byte without 0


class Annotation(NamedTuple):
    """An object of an image."""

    label: int  # from 1 on
    outline: Any  # polygons, or run lengths
    area: float
    crowd: bool


class Photograph(NamedTuple):
    """An image file and its objects, pickled: reader processes would copy Python's objects."""

    path: Path
    objects: bytes
    size: tuple[int, int] | None  # width and height of its outlines, if the list has them


@dataclass(frozen=True)
class Coco(LabelledPhotographs):
    """117,266 training images with objects of 80 classes, and 5,000 test images.

    Args:
        size: longer side of a resized image, and side of the windows unless the recipe asks for
            another.
    """

    size: PositiveInt = 1024
    scales: tuple[Factor, Factor] = (1.0, 1.0)

    classes = 1 + CLASSES  # the background is 0
    maps = 2
    limits = (
        "Boxes are those of the visible pixels of objects, and crowds count as background in "
        "detection, so that numbers differ a little from COCO's."
    )
    key = "coco"
    title = "COCO"
    remedy = (
        "get train2017.zip, val2017.zip and annotations_trainval2017.zip from cocodataset.org and "
        "unpack them in data.root"
    )
    parts = {"train2017": 117_266, TEST: 5_000}  # noqa: RUF012

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    def load(self) -> tuple[LabelledSplit, LabelledSplit]:
        (train_categories, train), (test_categories, test) = map(self._read_list, self.parts)
        if train_categories != test_categories:
            raise self.files.unusable("annotations", "has lists with different categories")
        return LabelledSplit(train, self), LabelledSplit(test, self)

    def _read_list(self, part: str) -> tuple[list[int], list[Photograph]]:
        """Return the categories and the images of a part, both by ascending number.

        As in Detectron, training images have an object.

        Raises:
            BadInput: there is no list, it is damaged, or it is not the official one.
        """
        place = f"annotations/instances_{part}.json"
        objects: dict[int, list[Annotation]] = defaultdict(list)
        with self.files.reading(place):
            content = json.loads((self.folder / place).read_bytes())
            categories = sorted(each["id"] for each in content["categories"])
            labels = {number: label for label, number in enumerate(categories, 1)}
            for each in content["annotations"]:
                objects[each["image_id"]].append(self._annotation(each, labels, place))
            photographs = [
                Photograph(
                    self.folder / part / each["file_name"],
                    pickle.dumps(objects[each["id"]]),
                    (each["width"], each["height"]) if "width" in each else None,
                )
                for each in sorted(content["images"], key=lambda image: image["id"])
                if part == TEST or any(not one.crowd for one in objects[each["id"]])
            ]
        if len(categories) > CLASSES or (self.verify and len(categories) < CLASSES):
            raise self.files.unusable(place, f"has {len(categories)} categories, COCO {CLASSES}")
        if all(one.crowd for each in objects.values() for one in each):
            raise self.files.unusable(place, "has no single object, only crowds or none")
        self.require_count(part, place, len(photographs))
        return categories, photographs

    def _annotation(self, raw: dict[str, Any], labels: dict[int, int], place: str) -> Annotation:
        """Return an object of a list.

        Raises:
            BadInput: it has no outline, or a category that the list lacks.
        """
        name = f"annotation {raw.get('id')} of image {raw['image_id']}"
        outline = raw.get("segmentation")
        if raw["category_id"] not in labels:
            problem = f"has {name} with category {raw['category_id']}, which it does not list"
            raise self.files.unusable(place, problem)
        if isinstance(outline, list):  # numbers of Python take four times the memory
            outline = [np.asarray(polygon, np.float64) for polygon in outline]
            if outline and min(map(len, outline)) < 6:
                outline = None
        if not outline:
            problem = f"has {name} without an outline of three points, and a box gives no mask"
            raise self.files.unusable(place, problem)
        area = raw["area"] if "area" in raw else raw["bbox"][2] * raw["bbox"][3]
        crowd = bool(raw.get("iscrowd", False))
        return Annotation(labels[raw["category_id"]], outline, area, crowd)

    def fit(self, image: Image.Image) -> float:
        return self.size / max(image.size)

    def read(self, source: Photograph, factor: float) -> tuple[Image.Image, NDArray[np.uint8]]:  # noqa: ARG002
        image = decode(str(source.path))
        if source.size is not None and image.size != source.size:
            listed, found = (f"{width}x{height}" for width, height in (source.size, image.size))
            raise BadInput(
                f"{source.path} has {found} pixels, and its list says {listed}, for which the "
                "outlines of its objects are; use the file of that size"
            )
        classes = np.ones((image.height, image.width), np.uint8)  # the background
        instances = np.zeros_like(classes)
        number = 0
        for each in _by_falling_area(pickle.loads(source.objects)):
            mask = _draw(each.outline, source.path, image)
            if each.crowd:
                classes[mask] = instances[mask] = 0
                continue
            number += 1
            if number > MOST_OBJECTS:
                raise BadInput(
                    f"{source.path} has more than {MOST_OBJECTS} objects; shorten its list"
                )
            classes[mask], instances[mask] = 1 + each.label, number
        return image, np.stack([classes, instances])


def _by_falling_area(objects: Iterable[Annotation]) -> list[Annotation]:
    """Return crowds first, then large objects before small ones."""
    return sorted(objects, key=lambda each: (not each.crowd, -each.area))


def _draw(outline: Any, path: Path, image: Image.Image) -> NDArray[np.bool_]:
    """Return the pixels (H, W) inside of polygons or run lengths, as COCO's own code.

    Raises:
        BadInput: the outline is damaged, or of an image of another size.
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
            f"({type(error).__name__}: {error}); mend its annotation"
        ) from None
    return np.asarray(pixels, bool)
