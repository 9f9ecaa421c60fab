"""What a data set offers: images with labels in splits, their augmentation, its limits.

Images are bytes until they are on the device. On the way there they pass

    frame      files alone: a box of each image, resized; random in training
    (normbench.data.random_crop)
    augment    bytes -> bytes: windows and flips of many images at once
    floats     bytes -> fp32, in training; an evaluation has `present`

and whatever is random in it is drawn by seed, epoch and image, so that it does not matter who
reads an image, where, or beside which others. Shape letters: N images, C channels, H W positions.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from normbench.data.augment import crop, flip
from normbench.data.counter_rng import Draws
from normbench.errors import BadInput

#: Seed of every split that normbench draws itself; no run's seed moves an image between splits.
SPLIT_SEED = 0


class Part(Protocol):
    """Images of one purpose, wherever they are, and their labels (N,) int64."""

    @property
    def labels(self) -> Tensor:
        """(N,) int64."""

    def take(self, indices: Tensor) -> "Part":
        """Those of `indices`, in that order."""


class Split(NamedTuple):
    """Images (N, C, H, W) uint8 in memory, all of one size, and their labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def take(self, indices: Tensor) -> "Split":
        return Split(self.images[indices], self.labels[indices])


class Splits(NamedTuple):
    """What is trained on, what is held out of it (possibly nothing), what is tested on."""

    train: Part
    val: Part
    test: Part


@dataclass(frozen=True)
class Dataset(ABC):
    """A data set as its yaml describes it.

    Args:
        val: fraction of the training images that is held out for validation; 0 holds out none.
        fraction: of the training images that is used at all, of every class; null: all of them.
    """

    val: float = 0.1
    fraction: float | None = None
    side: int | None = field(default=None, init=False)  # the recipe's to say, by `at`

    def __post_init__(self) -> None:
        if not 0 <= self.val < 1:
            raise ValueError(
                f"val={self.val}: it is a fraction of the training images, 0 to below 1"
            )
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ValueError(
                f"fraction={self.fraction}: it is above 0 and at most 1, as 0.5; null takes all"
            )

    @property
    @abstractmethod
    def classes(self) -> int:
        """Classes to tell apart."""

    @property
    @abstractmethod
    def image(self) -> tuple[int, int, int]:
        """(C, H, W) of an evaluation as the network sees it."""

    @property
    def limits(self) -> str:
        """What numbers on this data set cannot show; printed below every table."""
        return ""

    @property
    def trained_image(self) -> tuple[int, int, int]:
        """(C, H, W) of training."""
        channels, height, width = self.image
        return (channels, self.side or height, self.side or width)

    def at(self, side: int | None) -> Self:
        """This data set with training images of `side` pixels; None: as in evaluations.

        Raises:
            BadInput: its images are smaller.
        """
        if side is None:
            return self
        if side > (most := min(self.image[1:])):
            raise BadInput(
                f"recipe.crop={side}: {type(self).__name__} has images of {most} pixels, and a "
                "window is no larger; recipe.crop=null takes them as they are"
            )
        return self._resized(side)

    def _resized(self, side: int) -> Self:
        data = copy(self)
        object.__setattr__(data, "side", side)
        return data

    def splits(self, parts: tuple[Part, Part] | None = None) -> Splits:
        """Training, validation and test images.

        Args:
            parts: the official training and test images, if somebody has them already.

        Raises:
            BadInput: a file is missing or damaged; the sentence names it and how to get it.
        """
        train, test = parts or self.load()
        if self.fraction is not None and self.fraction < 1:
            train = train.take(_kept(train.labels, self.fraction))
        kept, held = hold_out(train.labels, self.val)
        return Splits(train.take(kept), train.take(held), test)

    @abstractmethod
    def load(self) -> tuple[Part, Part]:
        """The official training and test images."""

    @property
    def official(self) -> tuple[int, int]:
        """How many those are; no file is read where it is known without."""
        train, test = self.load()
        return len(train.labels), len(test.labels)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many images each of the `splits` has."""
        train, test = self.official
        if self.fraction is not None and self.fraction < 1:
            train = held_out(train, self.fraction)
        val = held_out(train, self.val)
        return train - val, val, test

    def augment(self, images: Tensor, draws: Draws) -> Tensor:  # noqa: ARG002 (nothing is drawn)
        """Training images (N, C, H, W) uint8 -> (N, C, H', W') uint8, with this epoch's draws."""
        return images

    def floats(self, images: Tensor, draws: Draws) -> Tensor:
        """Augmented training images (N, C, H, W) uint8 -> fp32 as the network sees them."""
        return self.present(images, draws.images)

    @abstractmethod
    def present(self, images: Tensor, indices: Tensor) -> Tensor:
        """Images of an evaluation (N, C, H, W) uint8 -> fp32; `indices` (N,) in their split."""

    def stored(self, split: str) -> Path:  # noqa: ARG002 (there is none)
        """Where `normbench.prepare` writes the images of `split`, "train" or "test".

        Raises:
            BadInput: there is no point in it.
        """
        raise BadInput(
            f"loader=ffcv: {type(self).__name__} is always in memory and has no files to prepare; "
            "loader=auto works"
        )


@dataclass(frozen=True)
class OfFiles(Dataset):
    """Images in files of a folder.

    Args:
        root: folder of the official files.
        beton: folder of what `normbench.prepare` writes; null: `root`.
        flip: exchange left and right in half of the training images.
    """

    root: str = "data"
    beton: str | None = None
    flip: bool = True

    @property
    @abstractmethod
    def moments(self) -> tuple[Sequence[float], Sequence[float]]:
        """Mean and deviation of the training pixels of every channel, white being 1."""

    @property
    def folder(self) -> Path:
        """`root`, from wherever it is said."""
        return Path(self.root).expanduser()

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        return flip(images, draws) if self.flip else images

    def present(self, images: Tensor, indices: Tensor) -> Tensor:  # noqa: ARG002 (nothing is drawn)
        return standardize(images, *self.moments)

    def stored(self, split: str) -> Path:
        words, folder = [type(self).__name__.lower(), split, *self._contents(split)], self.folder
        if self.beton is not None:  # which may have files of other folders, too
            folder = Path(self.beton).expanduser()
            words.append(hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:6])
        return folder / f"{'-'.join(words)}.beton"

    def _contents(self, split: str) -> list[str]:  # noqa: ARG002 (it is all of it)
        """Words for options that say which images of a split are stored, and how."""
        return []


@dataclass(frozen=True)
class Arrays(OfFiles):
    """Small images of one size, all of them in memory.

    Args:
        padding: pixels of zeros around a training image before a random window of the old size;
            0 takes the image as it is.
    """

    padding: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.padding < 0:
            raise ValueError(f"padding={self.padding}: pixels are not below 0")

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        padding = self.padding if self.side is None else 0
        return super().augment(crop(images, draws, padding, self.side), draws)


def standardize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes (N, C, H, W) as fp32 of about mean 0 and deviation 1 in every channel."""
    center, spread = (images.new_tensor(each, dtype=torch.float32) for each in (mean, std))
    return images.float().div_(255).sub_(center[:, None, None]).div_(spread[:, None, None])


def held_out(images: int, fraction: float) -> int:
    """How many of so many images are held out."""
    return math.ceil(fraction * images)


def hold_out(labels: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Indices of the images that stay and of those that are held out, stratified by class.

    Raises:
        BadInput: one of the two parts would have fewer images than there are classes.
    """
    everything = torch.arange(len(labels))
    if fraction == 0:
        return everything, everything[:0]
    classes, number = len(labels.unique()), held_out(len(labels), fraction)
    least = math.ceil(100 * classes / len(labels)) / 100
    if (
        not classes <= number <= len(labels) - classes
        or labels.unique(return_counts=True)[1].min() < 2
    ):
        raise BadInput(
            f"data.val={fraction} holds out {number} of {len(labels)} images in {classes} "
            "classes, and then not every class is on either side; data.val=0 works, and with 2 "
            f"images of every class one from {least:.2f} to {1 - least:.2f}"
        )
    kept, held = train_test_split(
        everything.numpy(), test_size=fraction, stratify=labels.numpy(), random_state=SPLIT_SEED
    )
    # Sorted, so that an image's index depends on which images stay and not on how they were drawn.
    return torch.from_numpy(kept).sort().values, torch.from_numpy(held).sort().values


def _kept(labels: Tensor, fraction: float) -> Tensor:
    try:
        left_out, kept = hold_out(labels, fraction)
    except BadInput:
        raise BadInput(
            f"data.fraction={fraction} of {len(labels)} images in {len(labels.unique())} classes "
            "does not take some of every class and leave some; data.fraction=0.5 or null works"
        ) from None
    del left_out
    return kept
