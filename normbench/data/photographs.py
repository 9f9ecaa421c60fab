"""Photographs of any size in files of their own, a folder a class.

Shape letters: N images, C channels, H W positions, S side of the network's input.
"""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor
from torchvision.datasets.folder import is_image_file, make_dataset

from normbench.data.augment import lighting
from normbench.data.counter_rng import Draws
from normbench.data.dataset import DatasetOnDisk, HeldOut, Share, standardize
from normbench.data.official_files import OfficialFiles
from normbench.data.random_crop import (
    center_boxes,
    crop_and_resize,
    jittered_boxes,
    random_boxes,
)
from normbench.errors import BadInput


@dataclass(frozen=True)
class FileSplit:
    """Image files and their labels (N,) int64."""

    paths: Sequence[str]
    labels: Tensor
    longest: int | None = None  # side in pixels to which larger images are shrunk

    @cached_property
    def digest(self) -> str:
        """SHA-256 of labels and paths below the common folder; the folder itself may move."""
        common = len(os.path.commonpath(self.paths))
        digest = hashlib.sha256(self.labels.numpy().tobytes())
        digest.update("\n".join(path[common:] for path in self.paths).encode())
        return digest.hexdigest()

    def take(self, indices: Tensor) -> "FileSplit":
        paths = [self.paths[index] for index in indices.tolist()]
        return replace(self, paths=paths, labels=self.labels[indices])

    def image(self, index: int) -> Image.Image:
        """Decode image `index`.

        Raises:
            BadInput: it is damaged; the message names the file.
        """
        return shrink(decode(self.paths[index]), self.longest)


@dataclass(frozen=True)
class DecodedSplit:
    """Images of any size decoded in memory, each (H, W, 3), and their labels (N,) int64."""

    images: Sequence[NDArray[np.uint8]]
    labels: Tensor

    def take(self, indices: Tensor) -> "DecodedSplit":
        images = [self.images[index] for index in indices.tolist()]
        return DecodedSplit(images, self.labels[indices])

    def image(self, index: int) -> Image.Image:
        """Return image `index`."""
        return Image.fromarray(self.images[index])


DEEP_MODES = ("I", "F")  # of Pillow, which cuts their values off at 255


def decode(path: str) -> Image.Image:
    """Decode the image in the file `path` as RGB.

    Raises:
        BadInput: it is missing or damaged, or has more than 8 bits for a color; the message names
            the file.
    """
    try:
        with Image.open(path) as image:
            if image.mode in DEEP_MODES or image.mode.startswith("I;"):
                raise BadInput(
                    f"{path} has more than 8 bits for a color (mode {image.mode}); convert it to 8"
                )
            return image.convert("RGB")
    except BadInput:
        raise
    except FileNotFoundError:
        raise BadInput(f"{path} is missing, though its folder or a list has it") from None
    # Pillow's readers raise whatever a damaged file leads them to, struct.error and others.
    except Exception as error:
        raise BadInput(
            f"{path} is no image that can be read ({type(error).__name__}: {error}); "
            "replace the file or remove it"
        ) from None


def shrink(image: Image.Image, longest: int | None) -> Image.Image:
    """Resize `image` so that no side is above `longest`; None: return it as it is."""
    if longest is None or max(image.size) <= longest:
        return image
    scale = longest / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    rows = image.resize((width, image.height), Image.Resampling.BILINEAR)
    return rows.resize((width, height), Image.Resampling.BILINEAR)


@dataclass(frozen=True)
class Photographs(DatasetOnDisk):
    """Photographs in files, of each of which a box is resized to the network's input.

    Args:
        size: S, the side of the images in an evaluation, and in training unless the recipe asks
            for another.
        area: least share of an image's pixels in the random box of training.
        center: share of the shorter side in the central box of an evaluation.
        short_side: least and largest shorter side in pixels, drawn for each training image, to
            which it is resized before a window of `size` is cut at random ("scale augmentation" of
            He et al. 2016); null: boxes of random area and aspect, by `area`.
        lighting: standard deviation of the random weights of ImageNet's principal components of
            color, which are added to training images, as 0.1; null: none.
        resolution: longer side to which larger images are shrunk first; null: not shrunk.
        jpeg: share of the images that prepared files hold as JPEG instead of pixels, for
            loader=ffcv alone. FFCV's decoder rounds differently from Pillow's, so this is part of a
            run's id.
    """

    val: HeldOut = 0.0
    size: PositiveInt = 224
    area: Share = 0.08
    center: Share = 0.875
    resolution: PositiveInt | None = None
    jpeg: Annotated[float, Field(ge=0, le=1)] | None = None
    short_side: tuple[PositiveInt, PositiveInt] | None = None
    lighting: NonNegativeFloat | None = None

    moments = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # ImageNet's
    in_memory: ClassVar[bool] = False
    resizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if refusal := self._refuse_short_side(self.size, "data.size"):
            raise ValueError(refusal)
        if self.short_side is not None and self.area != type(self).area:
            raise ValueError(
                f"area={self.area}: with short_side windows have a fixed size; leave out area, or "
                "use short_side=null"
            )

    def with_side(self, side: int | None) -> Self:
        if side is not None and (refusal := self._refuse_short_side(side, "recipe.crop")):
            raise BadInput(f"data.{refusal}")
        return super().with_side(side)

    def _refuse_short_side(self, side: int, option: str) -> str:
        """Return why windows of `side` pixels cannot be cut; "" if they can."""
        if self.short_side is None or side <= self.short_side[0] <= self.short_side[1]:
            return ""
        least, most = self.short_side
        return (
            f"short_side=[{least},{most}]: windows of {option}={side} pixels are cut from images "
            f"of these shorter sides; two numbers from {side} on work, the smaller one first, as "
            f"[{round(side * 8 / 7)},{round(side * 15 / 7)}]"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    def boxes(self, sizes: Tensor, draws: Draws | None) -> Tensor:
        """Return the box of each image that the network gets: (N, 4), as `random_boxes`.

        `sizes` (N, 2) are height and width; without `draws` the boxes are those of an evaluation.
        """
        if draws is None:
            return center_boxes(sizes, self.center)
        if self.short_side is not None:
            return jittered_boxes(sizes, draws, self.train_shape[1], self.short_side)
        return random_boxes(sizes, draws, self.area)

    def train_input(self, images: Tensor, draws: Draws) -> Tensor:
        if self.lighting is None:
            return super().train_input(images, draws)
        pixels = lighting(images.float().div_(255), draws, self.lighting)
        return standardize(pixels.mul_(255), *self.moments)

    def crop_and_resize(self, images: Sequence[Image.Image], draws: Draws | None) -> Tensor:
        """Return the boxes of decoded images as bytes (N, 3, S, S)."""
        side = self.image_shape[1] if draws is None else self.train_shape[1]
        sizes = torch.tensor([image.size[::-1] for image in images]).view(-1, 2)
        pixels = np.empty((len(images), 3, side, side), np.uint8)
        boxes = self.boxes(sizes, draws).tolist()
        for place, (image, box) in enumerate(zip(images, boxes, strict=True)):
            pixels[place] = crop_and_resize(image, box, side)
        return torch.from_numpy(pixels)

    def load(self) -> tuple[FileSplit, FileSplit]:
        train, test = self.list_files()
        return replace(train, longest=self.resolution), replace(test, longest=self.resolution)

    @abstractmethod
    def list_files(self) -> tuple[FileSplit, FileSplit]:
        """List the official training and test images.

        Raises:
            BadInput: images or folders are missing.
        """

    def file_options(self, split: str) -> list[str]:  # noqa: ARG002 (both alike)
        resolution = [] if self.resolution is None else [f"resolution{self.resolution}"]
        return resolution + ([f"jpeg{self.jpeg:g}"] if self.jpeg else [])


def class_folders(files: OfficialFiles, folder: str) -> list[str]:
    """Return the sorted names of the folders in `folder`, each of which is a class.

    Raises:
        BadInput: there is no such folder, or fewer than two are in it.
    """
    try:
        with os.scandir(files.root / folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise files.unusable(folder, f"cannot be listed ({error.strerror})") from None
    names = [name for name in names if not name.startswith(".")]  # as .ipynb_checkpoints
    if not names:
        raise files.unusable(folder, "has no folders, one a class")
    if len(names) < 2:
        raise files.unusable(folder, f"has one class, {names[0]}, and there is nothing to learn")
    return names


def list_images(files: OfficialFiles, folder: str, classes: Sequence[str]) -> FileSplit:
    """List the images in and below the folders `classes` of `folder`; labels are their places.

    Raises:
        BadInput: a class has no image.
    """
    labels = {name: label for label, name in enumerate(classes)}
    root = files.root / folder
    images = make_dataset(root, labels, is_valid_file=is_visible_image, allow_empty=True)
    # A class may have hidden folders, as .ipynb_checkpoints.
    below = len(str(root))
    images = [(path, label) for path, label in images if "/." not in path[below:]]
    if empty := set(labels.values()) - {label for _, label in images}:
        name = f"{folder}/{classes[min(empty)]}".lstrip("/")
        raise files.unusable(name, "is missing or has no images")
    # By class and then by path, also where a class has folders, so that an index names one image.
    images.sort(key=lambda image: image[::-1])
    return FileSplit([path for path, _ in images], torch.tensor([label for _, label in images]))


def find_test_folder(files: OfficialFiles) -> str:
    """Return the folder of a user's test images: test, or val where there is none.

    Raises:
        BadInput: there is neither, or no folder at all.
    """
    if not files.root.is_dir():
        raise BadInput(f"data={files.data}: data.root={files.root} is no folder; {files.remedy}")
    test = next((name for name in ("test", "val") if (files.root / name).is_dir()), None)
    if test is None:
        raise files.unusable("", "has neither test/ nor val/")
    return test


def is_visible_image(path: str) -> bool:
    """Return True for the name of an image that is no hidden file."""
    return is_image_file(path) and not Path(path).name.startswith(".")  # macOS adds ._NAME.jpg
