"""Data sets: images with labels in splits, and their augmentation.

Images are bytes until they are on the device. On the way there they pass

    crop_and_resize   photographs alone: a box of each image, random in training
                      (normbench.data.random_crop)
    augment           training alone, bytes -> bytes: random windows and flips of many images
    train_input       bytes -> fp32; in evaluations eval_input

Maps of targets, of data sets for dense tasks, are further channels of an image until then.

Random numbers are drawn by seed, epoch and image, so they depend neither on the process that reads
an image nor on the other images of a batch. Shape letters: N images, C channels, H W positions.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, Protocol, Self

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt
from torch import Tensor

from normbench.data.augment import contrast, crop, flip
from normbench.data.counter_rng import Draws
from normbench.errors import BadInput

#: Seed of every split that normbench draws itself; no run's seed moves an image between splits.
SPLIT_SEED = 0
#: Shares of images and of pixels. The command line checks such types, so data sets need not.
HeldOut = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class Split(Protocol):
    """Images of one purpose, in memory or in files, and their labels."""

    @property
    def labels(self) -> Tensor:
        """(N,) int64."""

    def take(self, indices: Tensor) -> "Split":
        """Return the split of the images `indices`, in that order."""


class TensorSplit(NamedTuple):
    """Images (N, C, H, W) uint8 in memory, all of one size, and their labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def take(self, indices: Tensor) -> "TensorSplit":
        return TensorSplit(self.images[indices], self.labels[indices])


def concatenate(splits: Sequence[TensorSplit]) -> TensorSplit:
    """Return the images of all `splits` as one."""
    return TensorSplit(*(torch.cat(each) for each in zip(*splits, strict=True)))


class Splits(NamedTuple):
    """Images to train on, held out for validation (possibly none), and to test on."""

    train: Split
    val: Split
    test: Split


@dataclass(frozen=True)
class Dataset(ABC):
    """A data set as its yaml describes it.

    Args:
        val: fraction of the training images that is held out for validation; 0 holds out none.
        fraction: fraction of the training images of each class that is used; null: all.
        skew: alpha of the Dirichlet distribution by which classes are divided among workers, so
            that workers see unequal images (`normbench.data.skew`); the smaller, the more unequal.
            null: every worker draws from all images.
    """

    val: HeldOut = 0.1
    fraction: Share | None = None
    skew: Annotated[float, Field(gt=0, le=1e6)] | None = None
    side: int | None = field(default=None, init=False)  # of training images, from the recipe
    white: ClassVar[int] = 255  # byte of a white pixel
    maps: ClassVar[int] = 0  # channels of targets behind those of an image (`normbench.data.maps`)
    in_memory: ClassVar[bool] = True  # False if images are in files and decoded when they are read
    resizes: ClassVar[bool] = False  # True if images of any size are resized to the network's input

    @property
    @abstractmethod
    def classes(self) -> int:
        """Number of classes."""

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the network's input in an evaluation."""

    @property
    def known_maps(self) -> Sequence[int]:
        """Channels of `maps` that are more than zeros."""
        return range(self.maps)

    @property
    def limits(self) -> str:
        """A sentence on what numbers on this data set cannot show, printed below tables."""
        return ""

    @property
    def train_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the network's input in training."""
        channels, height, width = self.image_shape
        return (channels, self.side or height, self.side or width)

    def with_side(self, side: int | None) -> Self:
        """Return this data set with training images of `side` pixels; None: as in evaluations.

        Raises:
            BadInput: its images are smaller, and are not resized.
        """
        if side is None:
            return self
        if side > (most := min(self.image_shape[1:])) and not self.resizes:
            raise BadInput(
                f"recipe.crop={side}: {type(self).__name__} has images of {most} pixels, and a "
                "window is no larger; recipe.crop=null takes them as they are"
            )
        data = copy(self)  # dataclasses.replace refuses fields that are not arguments
        object.__setattr__(data, "side", side)  # the data class is frozen
        return data

    def splits(self, official: tuple[Split, Split] | None = None) -> Splits:
        """Return training, validation and test images.

        Args:
            official: the official training and test images; None: load them.

        Raises:
            BadInput: a file is missing or damaged; the message names it and how to get it.
        """
        train, test = official or self.load()
        if self.fraction is not None and self.fraction < 1:
            train = train.take(_draw_fraction(train.labels, self.fraction))
        remaining, held_out = hold_out(train.labels, self.val)
        return Splits(train.take(remaining), train.take(held_out), test)

    @abstractmethod
    def load(self) -> tuple[Split, Split]:
        """Load the official training and test images; raise as `splits` does."""

    @property
    def official_sizes(self) -> tuple[int, int]:
        """Numbers of official training and test images, without reading files if possible."""
        train, test = self.load()
        return len(train.labels), len(test.labels)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of images to train on, to validate on and to test on."""
        train, test = self.official_sizes
        if self.fraction is not None and self.fraction < 1:
            train = math.ceil(self.fraction * train)
        val = math.ceil(self.val * train)  # scikit-learn's train_test_split rounds up
        return train - val, val, test

    def augment(self, images: Tensor, draws: Draws) -> Tensor:  # noqa: ARG002 (nothing is drawn)
        """Augment training images: (N, C, H, W) uint8 -> (N, C, H', W') uint8."""
        return images

    def train_input(self, images: Tensor, draws: Draws) -> Tensor:
        """Return augmented training images (N, C, H, W) uint8 as the network's input, fp32."""
        return self.eval_input(images, draws.images)

    @abstractmethod
    def eval_input(self, images: Tensor, indices: Tensor) -> Tensor:
        """Return images of an evaluation (N, C, H, W) uint8 as the network's input, fp32.

        `indices` (N,) are their places in their split, by which noise is drawn.
        """

    def prepared_file(self, split: str) -> Path:  # noqa: ARG002 (there is none)
        """Return the file to which `normbench.prepare` writes the images of "train" or "test".

        Raises:
            BadInput: the images are always in memory.
        """
        place = "is always in memory" if self.in_memory else "is read from its own files"
        raise BadInput(
            f"loader=ffcv: {type(self).__name__} {place} and has no files to prepare; "
            "loader=auto works"
        )


@dataclass(frozen=True)
class ImagesOnDisk(Dataset):
    """Images in files of a folder.

    Args:
        root: folder of the official files.
        flip: exchange left and right in half of the training images.
    """

    root: str = "data"
    flip: bool = True

    @property
    @abstractmethod
    def moments(self) -> tuple[Sequence[float], Sequence[float]]:
        """Mean and standard deviation of the training pixels of every channel; white is 1."""

    @property
    def folder(self) -> Path:
        """`root` as a path, with ~ for the home folder."""
        return Path(self.root).expanduser()

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        return flip(images, draws) if self.flip else images

    def eval_input(self, images: Tensor, indices: Tensor) -> Tensor:  # noqa: ARG002 (no draws)
        return standardize(images, *self.moments)


@dataclass(frozen=True)
class DatasetOnDisk(ImagesOnDisk):
    """Images in files of a folder, or in those that `normbench.prepare` writes.

    Args:
        beton: folder of the files of `normbench.prepare`; null: `root`.
    """

    beton: str | None = None

    def prepared_file(self, split: str) -> Path:
        parts = [type(self).__name__.lower(), split, *self.file_options(split)]
        if self.beton is None:
            return self.folder / f"{'-'.join(parts)}.beton"
        # This folder may have files of the same data set from other roots.
        parts.append(hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:6])
        return Path(self.beton).expanduser() / f"{'-'.join(parts)}.beton"

    def file_options(self, split: str) -> list[str]:  # noqa: ARG002 (no option does)
        """Return options that change the images of a prepared file, as parts of its name."""
        return []


@dataclass(frozen=True)
class SmallImages(DatasetOnDisk):
    """Small images of one size, loaded into memory.

    Args:
        padding: pixels of zeros around a training image before a random window of the old size;
            0 takes the image as it is.
        contrast: standard deviation of the logarithm of a factor by which each standardized image
            is multiplied; null: the images keep their contrast.
    """

    padding: NonNegativeInt = 4
    contrast: NonNegativeFloat | None = None

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        padding = self.padding if self.side is None else 0
        return super().augment(crop(images, draws, padding, self.side), draws)

    def train_input(self, images: Tensor, draws: Draws) -> Tensor:
        return contrast(standardize(images, *self.moments), draws, self.contrast)

    def eval_input(self, images: Tensor, indices: Tensor) -> Tensor:
        return self.train_input(images, fixed_draws(indices))


def fixed_draws(indices: Tensor) -> Draws:
    """Return random numbers for images of an evaluation: the same in every run and epoch."""
    return Draws(seed=SPLIT_SEED, epoch=-1, images=indices)


def standardize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return bytes (N, C, H, W) as fp32 of about mean 0 and deviation 1 in every channel."""
    center, spread = (images.new_tensor(each, dtype=torch.float32) for each in (mean, std))
    return images.float().div_(255).sub_(center[:, None, None]).div_(spread[:, None, None])


def hold_out(labels: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Return indices of the images that stay and of those held out, stratified by class.

    Raises:
        BadInput: either would have fewer images than there are classes.
    """
    indices = torch.arange(len(labels))
    if fraction == 0 or not len(labels):
        return indices, indices[:0]
    counts = labels.unique(return_counts=True)[1]
    classes, number = len(counts), math.ceil(fraction * len(labels))
    if not classes <= number <= len(labels) - classes or counts.min() < 2:
        least = math.ceil(100 * classes / len(labels)) / 100
        raise BadInput(
            f"data.val={fraction} holds out {number} of {len(labels)} images in {classes} "
            "classes, and then not every class is on either side; data.val=0 works, and with 2 "
            f"images of every class one from {least:.2f} to {1 - least:.2f}"
        )
    from sklearn.model_selection import train_test_split  # a second that sizes alone do not need

    remaining, held_out = train_test_split(
        indices.numpy(), test_size=fraction, stratify=labels.numpy(), random_state=SPLIT_SEED
    )
    # Sorted: an index depends on which images stay and not on how they were drawn.
    return torch.from_numpy(remaining).sort().values, torch.from_numpy(held_out).sort().values


def _draw_fraction(labels: Tensor, fraction: float) -> Tensor:
    """Return the indices of a `fraction` of the images, stratified by class."""
    try:
        return hold_out(labels, fraction)[1]
    except BadInput:
        raise BadInput(
            f"data.fraction={fraction} of {len(labels)} images in {len(labels.unique())} classes "
            "does not take some of every class and leave some; data.fraction=0.5 or null works"
        ) from None
