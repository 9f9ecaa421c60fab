"""Images of any size in files of their own, a folder a class.

Shape letters: N images, C channels, H W positions, S side of what the network sees.
"""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS

from normbench.data.counter_rng import Draws
from normbench.data.dataset import OfFiles
from normbench.data.random_crop import center_boxes, framed, random_boxes
from normbench.errors import BadInput


@dataclass(frozen=True)
class Files:
    """Image files and their labels (N,) int64.

    Args:
        paths: one an image.
        labels: (N,).
        longest: of a larger image's sides once it is read; None: as it is.
    """

    paths: Sequence[str]
    labels: Tensor
    longest: int | None = None

    @cached_property
    def digest(self) -> str:
        """Of names below their folder, which may move as a whole, and labels."""
        common = len(os.path.commonpath(self.paths))
        known = hashlib.sha256(self.labels.numpy().tobytes())
        known.update("\n".join(path[common:] for path in self.paths).encode())
        return known.hexdigest()

    def take(self, indices: Tensor) -> "Files":
        chosen = [self.paths[index] for index in indices.tolist()]
        return replace(self, paths=chosen, labels=self.labels[indices])

    def picture(self, index: int) -> Image.Image:
        """Image `index`, decoded.

        Raises:
            BadInput: it is damaged; the sentence names the file.
        """
        return reduced(decoded(self.paths[index]), self.longest)


@dataclass(frozen=True)
class Pictures:
    """Images of any size, decoded in memory, and their labels (N,) int64."""

    images: Sequence[NDArray[np.uint8]]  # (H, W, 3) each
    labels: Tensor

    def take(self, indices: Tensor) -> "Pictures":
        return Pictures([self.images[index] for index in indices.tolist()], self.labels[indices])

    def picture(self, index: int) -> Image.Image:
        """Image `index`."""
        return Image.fromarray(self.images[index])


def decoded(path: str) -> Image.Image:
    """The image in the file `path`, as RGB.

    Raises:
        BadInput: it is missing or damaged; the sentence names the file.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise BadInput(f"{path} is missing: it was there when its folder was listed") from None
    # Pillow's readers raise whatever a damaged file leads them to, struct.error and others.
    except Exception as error:
        raise BadInput(
            f"{path} is no image that can be read ({type(error).__name__}: {error}); "
            "replace the file or remove it"
        ) from None


def reduced(image: Image.Image, longest: int | None) -> Image.Image:
    """`image` with no side above `longest`."""
    if longest is None or max(image.size) <= longest:
        return image
    scale = longest / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    rows = image.resize((width, image.height), Image.Resampling.BILINEAR)
    return rows.resize((width, height), Image.Resampling.BILINEAR)


@dataclass(frozen=True)
class Folders(OfFiles):
    """Photographs in files, a box of each resized to what the network sees.

    Args:
        size: S, the side of the images of an evaluation, and of training unless the recipe asks
            for another.
        area: least share of an image's pixels that a training image shows.
        center: share of the shorter side that an image of an evaluation shows.
        resolution: the longer side that larger images are reduced to before all else; null: none.
        jpeg: share of the images that prepared files hold as JPEG and not as pixels. Its decoder
            rounds otherwise, so it is part of what a run is, and other loaders cannot read so.
    """

    val: float = 0.0
    size: int = 224
    area: float = 0.08
    center: float = 0.875
    resolution: int | None = None
    jpeg: float | None = None

    moments = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # ImageNet's

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("size", "resolution"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: pixels of a side are at least 1")
        for name in ("area", "center"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: a share is above 0, at most 1")
        if self.jpeg is not None and not 0 <= self.jpeg <= 1:
            raise ValueError(f"jpeg={self.jpeg}: a share of the images is from 0 to 1")

    @property
    def image(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    def at(self, side: int | None) -> Self:
        return self if side is None else self._resized(side)

    def boxes(self, sizes: Tensor, draws: Draws | None) -> Tensor:
        """What of images of `sizes` (N, 2) is seen: (N, 4); without `draws` in an evaluation."""
        if draws is None:
            return center_boxes(sizes, self.center)
        return random_boxes(sizes, draws, (self.area, 1.0))

    def framed(self, images: Sequence[Image.Image], draws: Draws | None) -> Tensor:
        """Decoded images as bytes (N, 3, S, S)."""
        side = self.image[1] if draws is None else self.trained_image[1]
        sizes = torch.tensor([image.size[::-1] for image in images]).view(-1, 2)
        boxes = self.boxes(sizes, draws).tolist()
        if not images:
            return torch.empty(0, 3, side, side, dtype=torch.uint8)
        pixels = [framed(image, box, side) for image, box in zip(images, boxes, strict=True)]
        return torch.from_numpy(np.stack(pixels))

    def load(self) -> tuple[Files, Files]:
        train, test = self.listing()
        return replace(train, longest=self.resolution), replace(test, longest=self.resolution)

    @abstractmethod
    def listing(self) -> tuple[Files, Files]:
        """The official training and test images as they are."""

    def _contents(self, split: str) -> list[str]:  # noqa: ARG002 (both alike)
        resolution = [] if self.resolution is None else [f"resolution{self.resolution}"]
        return resolution + ([f"jpeg{self.jpeg:g}"] if self.jpeg else [])


def class_folders(data: str, folder: Path, where: str) -> list[str]:
    """The sorted names of the folders in `folder`, each of which is a class.

    Raises:
        BadInput: there is no such folder, or none in it; `data` and `where` are said.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise BadInput(
            f"data={data}: {folder} cannot be listed ({error.strerror}); {where}"
        ) from None
    found = [name for name in found if not name.startswith(".")]
    if not found:
        raise BadInput(f"data={data}: {folder} has no folders, one a class; {where}")
    return found


def listed(data: str, folder: Path, classes: Sequence[str], where: str) -> Files:
    """The images in the folders `classes` of `folder`, with the places of these as labels.

    Raises:
        BadInput: a class has no image.
    """
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        images = images_in(folder / name)
        if not images:
            raise BadInput(f"data={data}: {folder / name} is missing or has no images; {where}")
        paths += images
        labels += [label] * len(images)
    return Files(paths, torch.tensor(labels, dtype=torch.int64))


def images_in(folder: Path) -> list[str]:
    """The sorted paths of the images in `folder` and in folders below it."""
    found = [
        str(Path(where) / name)
        for where, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name.lower().endswith(IMG_EXTENSIONS) and not name.startswith(".")
    ]
    return sorted(found)
