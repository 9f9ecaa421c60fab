"""Photographs with a class for every pixel, the two in files of their own.

    training    the image is resized by a random factor, and a window of S x S pixels is cut at a
                random place
    evaluation  the window in the middle of the image as it is

An image that is smaller than the window is padded, in training at a random place and else on all
sides, by ImageNet's mean color and by void pixels. Maps are resized to the nearest pixel.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, PositiveInt
from torch import Tensor

from normbench.data.augment import flip
from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset, HeldOut, standardize
from normbench.data.photographs import Photographs, decode
from normbench.errors import BadInput

MEAN, DEVIATION = Photographs.moments  # ImageNet's
Factor = Annotated[float, Field(gt=0, le=100)]


@dataclass(frozen=True)
class LabelledSplit:
    """Files of images, and of their maps of classes."""

    images: Sequence[Path]
    maps: Sequence[Path]
    data: "LabelledPhotographs"

    @property
    def labels(self) -> Tensor:
        """(N,) int64, all 0: an image has no class of its own."""
        return torch.zeros(len(self.images), dtype=torch.int64)

    def take(self, indices: Tensor) -> Self:
        chosen = indices.tolist()
        images, maps = ([each[index] for index in chosen] for each in (self.images, self.maps))
        return replace(self, images=images, maps=maps)

    def read(self, indices: Tensor, draws: Draws | None) -> Tensor:
        """Return windows with their maps of classes (N, 3 + 1, S, S) uint8.

        Without `draws` they are those of an evaluation.

        Raises:
            BadInput: a file is damaged, or image and map are of different sizes; it is named.
        """
        places = [None] * len(indices) if draws is None else draws.uniform("window", 3).tolist()
        return torch.stack(
            [
                torch.from_numpy(self._window(index, numbers))
                for index, numbers in zip(indices.tolist(), places, strict=True)
            ]
        )

    def _window(self, index: int, numbers: Sequence[float] | None) -> NDArray[np.uint8]:
        """Return image and map `index` (4, S, S), by three random numbers or as evaluated."""
        image, classes = decode(str(self.images[index])), self.data.read_classes(self.maps[index])
        if classes.shape != (image.height, image.width):
            raise BadInput(
                f"{self.maps[index]} has {classes.shape[1]}x{classes.shape[0]} pixels and "
                f"{self.images[index]} {image.width}x{image.height}; replace the wrong one"
            )
        side, factor = self.data.train_shape[1], 1.0
        if numbers is not None:
            least, most = self.data.scales
            factor = least + (most - least) * numbers[0]
        else:
            side = self.data.size
        rows, columns = (
            _Cut.of(length, factor, side, None if numbers is None else numbers[place])
            for place, length in ((1, image.height), (2, image.width))
        )
        box = (columns.start, rows.start, columns.stop, rows.stop)
        size = (columns.length, rows.length)
        pixels = np.empty((4, side, side), np.uint8)
        pixels[:3] = np.array([round(255 * value) for value in MEAN], np.uint8)[:, None, None]
        pixels[3] = 0
        here = (slice(None), *(slice(cut.place, cut.place + cut.length) for cut in (rows, columns)))
        window = image.resize(size, Image.Resampling.BILINEAR, box)
        pixels[:3][here] = np.asarray(window).transpose(2, 0, 1)
        nearest = Image.fromarray(classes).resize(size, Image.Resampling.NEAREST, box)
        pixels[3][here[1:]] = np.asarray(nearest)
        return pixels


@dataclass(frozen=True)
class _Cut:
    """Along one axis, from `start` to `stop` of the image becomes `length` pixels at `place`."""

    start: float
    stop: float
    place: int
    length: int

    @classmethod
    def of(cls, image: int, factor: float, side: int, number: float | None) -> "_Cut":
        """Cut a window of `side` from an `image` resized by `factor`, by a number in [0, 1).

        None: in the middle.
        """
        resized = max(1, round(image * factor))
        room = abs(resized - side)
        offset = room // 2 if number is None else int(number * (room + 1))
        if resized <= side:
            return cls(0, image, offset, resized)
        scale = image / resized
        return cls(offset * scale, (offset + side) * scale, 0, side)


@dataclass(frozen=True)
class LabelledPhotographs(Dataset):
    """Photographs with maps of classes.

    Args:
        root: folder of the official files.
        verify: count the images.
        size: S, the side of the windows in an evaluation, and in training unless the recipe asks
            for another.
        scales: least and largest factor by which a training image is resized.
        flip: exchange left and right in half of the training images.
    """

    val: HeldOut = 0.0
    root: str = "data"
    verify: bool = True
    size: PositiveInt = 513
    scales: tuple[Factor, Factor] = (0.5, 2.0)
    flip: bool = True

    maps = 1
    in_memory = False
    resizes = True

    def __post_init__(self) -> None:
        if self.scales[0] > self.scales[1]:
            least, most = self.scales
            raise ValueError(f"scales=[{least},{most}]: the smaller one comes first")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    @property
    def folder(self) -> Path:
        """`root` as a path, with ~ for the home folder."""
        return Path(self.root).expanduser()

    @abstractmethod
    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        """Return the map in a file as bytes (H, W): 0 is void, and c + 1 the class c.

        Raises:
            BadInput: it is damaged; the message names the file.
        """

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        return flip(images, draws) if self.flip else images

    def eval_input(self, images: Tensor, indices: Tensor) -> Tensor:  # noqa: ARG002 (no draws)
        return standardize(images, MEAN, DEVIATION)


def read_bytes(path: Path) -> NDArray[np.uint8]:
    """Return the values of a grey or palette image (H, W).

    Raises:
        BadInput: it is missing, damaged or of another kind; the message names the file.
    """
    try:
        with Image.open(path) as image:
            if image.mode not in ("L", "P"):
                raise ValueError(f"its pixels are {image.mode}, not one byte each")
            return np.array(image)
    # Pillow's readers raise whatever a damaged file leads them to.
    except Exception as error:
        raise BadInput(
            f"{path} is no map of classes ({type(error).__name__}: {error}); get the official file"
        ) from None


def require_classes(path: Path, values: NDArray[np.uint8], classes: int) -> NDArray[np.uint8]:
    """Return values of which 0 is void and c + 1 the class c.

    Raises:
        BadInput: one is above `classes`.
    """
    if (largest := int(values.max(initial=0))) > classes:
        raise BadInput(
            f"{path} has a class {largest - 1}, and the data set has {classes}; get the official "
            "file"
        )
    return values
