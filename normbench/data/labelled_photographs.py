"""Photographs with a target for every pixel, in the official files of a data set.

    training    the image is resized by `fit` and by a random factor from `scales`, and a window is
                cut at a random place, with `centered` in the middle
    evaluation  the image is resized by `fit`, and the window in its middle is cut

An image that is smaller than the window is padded, in training at a random place and else on all
sides, by ImageNet's mean color and by unknown pixels. Maps are resized to the nearest pixel.

Shape letters: N images, T maps (`normbench.data.maps`), H W positions.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, PositiveInt
from torch import Tensor

from normbench.data.counter_rng import Draws
from normbench.data.dataset import HeldOut, ImagesOnDisk
from normbench.data.official_files import OfficialFiles
from normbench.data.photographs import Photographs, decode
from normbench.errors import BadInput

MEAN, DEVIATION = Photographs.moments  # ImageNet's
Factor = Annotated[float, Field(gt=0, le=100)]


@dataclass(frozen=True)
class LabelledSplit:
    """Images, each given by a source that `data.read` takes."""

    sources: Sequence[Any]
    data: "LabelledPhotographs"

    @property
    def labels(self) -> Tensor:
        """(N,) int64, all 0: an image has no class of its own."""
        return torch.zeros(len(self.sources), dtype=torch.int64)

    def take(self, indices: Tensor) -> Self:
        return replace(self, sources=[self.sources[index] for index in indices.tolist()])

    def read(self, indices: Tensor, draws: Draws | None) -> Tensor:
        """Return windows with their maps (N, 3 + T, H, W) uint8.

        Without `draws` they are those of an evaluation.

        Raises:
            BadInput: a file is missing or damaged; it is named.
        """
        places = [None] * len(indices) if draws is None else draws.uniform("window", 3).tolist()
        return torch.stack(
            [
                torch.from_numpy(self._window(index, numbers))
                for index, numbers in zip(indices.tolist(), places, strict=True)
            ]
        )

    def _window(self, index: int, numbers: Sequence[float] | None) -> NDArray[np.uint8]:
        """Return image and maps `index` (3 + T, H, W), by three random numbers or as evaluated."""
        data, factor = self.data, 1.0
        _, height, width = data.image_shape if numbers is None else data.train_shape
        places: Sequence[float | None] = (None, None)
        if numbers is not None:
            least, most = data.scales
            factor = least + (most - least) * numbers[0]
            if not data.centered:
                places = numbers[1:]
        image, maps = data.read(self.sources[index], factor)
        factor *= data.fit(image)
        rows = _Cut.of(image.height, factor, height, places[0])
        columns = _Cut.of(image.width, factor, width, places[1])
        box = (columns.start, rows.start, columns.stop, rows.stop)
        size = (columns.length, rows.length)
        pixels = np.empty((3 + len(maps), height, width), np.uint8)
        pixels[:3] = np.array([round(255 * value) for value in MEAN], np.uint8)[:, None, None]
        pixels[3:] = 0
        here = (rows.target, columns.target)
        window = image.resize(size, Image.Resampling.BILINEAR, box)
        pixels[:3, *here] = np.asarray(window).transpose(2, 0, 1)
        for place, each in enumerate(maps, 3):
            nearest = Image.fromarray(each).resize(size, Image.Resampling.NEAREST, box)
            pixels[place, *here] = np.asarray(nearest)
        return pixels


@dataclass(frozen=True)
class _Cut:
    """Pixels `start` to `stop` of an image along one axis, which fill `length` ones at `place`."""

    start: float
    stop: float
    place: int
    length: int

    @property
    def target(self) -> slice:
        """Pixels of the window."""
        return slice(self.place, self.place + self.length)

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
class LabelledPhotographs(ImagesOnDisk):
    """Photographs with maps of targets.

    Args:
        verify: count the images.
        scales: least and largest factor by which a training image is resized.
        centered: cut windows from the middle in training, too.
    """

    val: HeldOut = 0.0
    verify: bool = True
    scales: tuple[Factor, Factor] = (0.5, 2.0)
    centered: bool = False

    key: ClassVar[str]  # of the data set in conf/data
    title: ClassVar[str]
    remedy: ClassVar[str]  # how to get the files

    in_memory = False
    resizes = True
    moments = (MEAN, DEVIATION)

    def __post_init__(self) -> None:
        if self.scales[0] > self.scales[1]:
            least, most = self.scales
            raise ValueError(f"scales=[{least},{most}]: the smaller one comes first")

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, int]:
        """Training and test, with their official numbers of images."""

    @property
    def official_sizes(self) -> tuple[int, int]:
        if not self.verify:
            return super().official_sizes
        train, test = self.parts.values()
        return train, test

    @property
    def files(self) -> OfficialFiles:
        """The official files, for messages about them."""
        return OfficialFiles(self.key, self.folder, {}, self.remedy)

    def require_count(self, part: str, place: str, images: int) -> None:
        """Raise BadInput unless a part has its official number of images, or nothing is verified.

        `place` is the file or folder that lists them.
        """
        if self.verify:
            self.files.require_count(place, images, f"images, {self.title}", self.parts[part])

    def fit(self, image: Image.Image) -> float:  # noqa: ARG002 (as it is)
        """Return the factor by which an image is resized in evaluations, too."""
        return 1.0

    @abstractmethod
    def read(self, source: Any, factor: float) -> tuple[Image.Image, NDArray[np.uint8]]:
        """Return an image and its maps (T, H, W), before it is resized.

        `factor` is the random one from `scales`, without `fit`.

        Raises:
            BadInput: a file is missing or damaged; it is named.
        """


class Pair(NamedTuple):
    """Files of an image and of its map of classes."""

    image: Path
    classes: Path


@dataclass(frozen=True)
class ClassMaps(LabelledPhotographs):
    """Photographs with maps of classes in files of their own; a source is a `Pair`.

    Args:
        size: side of the windows in an evaluation, and in training unless the recipe asks for
            another.
    """

    size: PositiveInt = 513

    maps = 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    @abstractmethod
    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        """Return the map in a file as bytes (H, W): 0 is void, and c + 1 the class c.

        Raises:
            BadInput: it is damaged; the message names the file.
        """

    def read(self, source: Pair, factor: float) -> tuple[Image.Image, NDArray[np.uint8]]:  # noqa: ARG002
        image, classes = decode(str(source.image)), self.read_classes(source.classes)
        if classes.shape != (image.height, image.width):
            raise BadInput(
                f"{source.classes} has {classes.shape[1]}x{classes.shape[0]} pixels and "
                f"{source.image} {image.width}x{image.height}; replace the wrong one"
            )
        return image, classes[None]


@dataclass(frozen=True)
class FolderPairs(ClassMaps):
    """Images in a folder for training and another for tests, each with a map elsewhere."""

    pattern: ClassVar[str]  # of the images in a folder, which is the name of a part

    @abstractmethod
    def map_of(self, image: Path) -> Path:
        """Return the file of the map of an image."""

    def load(self) -> tuple[LabelledSplit, LabelledSplit]:
        train, test = map(self._split, self.parts)
        return train, test

    def _split(self, part: str) -> LabelledSplit:
        images = sorted((self.folder / part).glob(self.pattern))
        if not images:
            raise self.files.unusable(part, f"has no {self.pattern}")
        self.require_count(part, part, len(images))
        return LabelledSplit([Pair(image, self.map_of(image)) for image in images], self)


def read_bytes(path: Path, remedy: str = "get the official file") -> NDArray[np.uint8]:
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
            f"{path} is no map of classes ({type(error).__name__}: {error}); {remedy}"
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
