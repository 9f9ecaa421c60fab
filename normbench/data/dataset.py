"""What a data set offers: its images as bytes, how they become floats, and its limits.

Shape letters: N images, C channels, H W positions.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from normbench.draws import Draws
from normbench.errors import BadInput

#: Seed of every split that normbench draws itself; no run's seed moves an image between splits.
SPLIT_SEED = 0


class Split(NamedTuple):
    """Images (N, C, H, W) uint8 and their labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def take(self, indices: Tensor) -> "Split":
        return Split(self.images[indices], self.labels[indices])


class Splits(NamedTuple):
    """What is trained on, what is held out of it (possibly nothing), what is tested on."""

    train: Split
    val: Split
    test: Split


@dataclass(frozen=True)
class Dataset(ABC):
    """A data set as its yaml describes it.

    Args:
        val: fraction of the training images that is held out for validation; 0 holds out none.
    """

    val: float = 0.1

    classes: ClassVar[int]
    image: ClassVar[tuple[int, int, int]]  # (C, H, W) as the network sees it
    #: What numbers on this data set cannot show; printed below every table.
    limits: ClassVar[str]

    def __post_init__(self) -> None:
        if not 0 <= self.val < 1:
            raise ValueError(
                f"val={self.val}: it is a fraction of the training images, 0 to below 1"
            )

    def splits(self) -> Splits:
        """Training, validation and test images.

        Raises:
            BadInput: a file is missing or damaged; the sentence names it and how to get it.
        """
        train, test = self.load()
        kept, held = hold_out(train.labels, self.val)
        return Splits(train.take(kept), train.take(held), test)

    @abstractmethod
    def load(self) -> tuple[Split, Split]:
        """The official training and test images."""

    @abstractmethod
    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        """Training images (N, C, H, W) uint8 -> fp32, with this epoch's random augmentation."""

    @abstractmethod
    def present(self, images: Tensor, indices: Tensor) -> Tensor:
        """Images of an evaluation (N, C, H, W) uint8 -> fp32; `indices` (N,) in their split."""


def hold_out(labels: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Indices of the images that stay and of those that are held out, stratified by class.

    Raises:
        BadInput: one of the two parts would have fewer images than there are classes.
    """
    everything = torch.arange(len(labels))
    if fraction == 0:
        return everything, everything[:0]
    classes, held_out = len(labels.unique()), math.ceil(fraction * len(labels))
    if not classes <= held_out <= len(labels) - classes:
        raise BadInput(
            f"data.val={fraction} holds out {held_out} of {len(labels)} images in {classes} "
            f"classes, too few for one of a class on either side; data.val=0.1 or 0 works"
        )
    kept, held = train_test_split(
        everything.numpy(), test_size=fraction, stratify=labels.numpy(), random_state=SPLIT_SEED
    )
    # Sorted, so that an image's index depends on which images stay and not on how they were drawn.
    return torch.from_numpy(kept).sort().values, torch.from_numpy(held).sort().values
