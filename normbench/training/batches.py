"""Batches that loaders yield: chunks of several optimizer steps, and batches of an evaluation.

The images of a chunk are moved to the device and augmented at once. Its size changes no number that
a run produces.

Shape letters: K steps of a chunk, A forward passes of a step, N images of a pass, U distinct images
of a chunk, C H W channels, height and width, T channels of maps (`normbench.data.maps`).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from normbench.data.augment import erase
from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset
from normbench.training.regularization import Mix, mix_images


class StepBatch(NamedTuple):
    """Images of one optimizer step."""

    images: Tensor  # (A, N, C, H, W)
    targets: tuple[Tensor, ...]  # each (A, N, ...), see `Chunk.targets`
    draws: Callable[[int], Draws]  # returns the random numbers of a forward pass

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.images, *self.targets)

    def clone(self) -> "StepBatch":
        """Copy the tensors to memory of their own."""
        images, *targets = (tensor.clone() for tensor in self.tensors)
        return StepBatch(images, tuple(targets), self.draws)


class Chunk(NamedTuple):
    """K optimizer steps of training, all in one epoch."""

    images: Tensor  # (K, A, N, C, H, W); before `augment_chunk` each once, (U, C, H, W) uint8
    labels: Tensor  # (K, A, N)
    indices: Tensor  # (K, A, N) of the images in the training split
    seed: int  # of the run
    epoch: int
    ends_epoch: bool  # the last step of the epoch is among these
    read_indices: Tensor  # (U,) of the images that were read; of mixed images in ascending order
    augmented: bool = False  # the reader has augmented the images already
    mix: Mix | None = None  # each (K, A, N, ...); `partners` are indices in the training split
    # Of mixed images the labels of the partners and the weights of their own labels, (K, A, N).
    mix_targets: tuple[Tensor, ...] = ()
    maps: Tensor | None = None  # (K, A, N, T, H, W) uint8, of data sets that have them

    @property
    def targets(self) -> tuple[Tensor, ...]:
        """Targets of a task: the maps of a data set that has them, else labels."""
        return (self.labels, *self.mix_targets) if self.maps is None else (self.maps,)

    def draws(self, step: int, pass_number: int) -> Draws:
        """Return the random numbers for the images of forward pass `pass_number` of a step."""
        return Draws(self.seed, self.epoch, self.indices[step, pass_number])

    def step(self, number: int) -> StepBatch:
        """Return the images of one of the steps."""
        targets = tuple(target[number] for target in self.targets)
        return StepBatch(self.images[number], targets, partial(self.draws, number))


class EvaluationBatch(NamedTuple):
    """Images of an evaluation."""

    images: Tensor  # (N, C, H, W); in main memory with their maps, (N, C + T, H, W) uint8
    labels: Tensor  # (N,)
    indices: Tensor  # (N,)
    maps: Tensor | None = None  # (N, T, H, W) uint8, of data sets that have them

    @property
    def target(self) -> Tensor:
        """The first of the targets of `Chunk`."""
        return self.labels if self.maps is None else self.maps


def split_maps(data: Dataset, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return images (N, C, H, W) and their maps (N, T, H, W), which come as (N, C + T, H, W)."""
    if not data.maps:
        return pixels, None
    return pixels[:, : -data.maps], pixels[:, -data.maps :]


def augment_chunk(data: Dataset, chunk: Chunk, erasing: float | None = None) -> Chunk:
    """Augment each image by its own random numbers of this epoch, then mix the images.

    A box in the share `erasing` of them is replaced by noise (`normbench.data.augment`).

    Returns:
        The chunk with `images` (K, A, N, C, H, W) in fp32, and with `maps` if there are any.
    """
    draws = Draws(chunk.seed, chunk.epoch, chunk.read_indices)
    pixels = chunk.images if chunk.augmented else data.augment(chunk.images, draws)
    pixels, maps = split_maps(data, pixels)
    if maps is not None:
        chunk = chunk._replace(maps=maps.unflatten(0, chunk.indices.shape))
    pixels = data.train_input(pixels, draws)  # (U, C, H, W)
    if erasing:
        pixels = erase(pixels, draws, erasing)
    if (mix := chunk.mix) is None:
        return chunk._replace(images=pixels.unflatten(0, chunk.indices.shape))
    # An image that is partner of another is read and augmented once.
    places = (torch.searchsorted(chunk.read_indices, i) for i in (chunk.indices, mix.partners))
    images, partners = (pixels.index_select(0, p.flatten()).unflatten(0, p.shape) for p in places)
    return chunk._replace(images=mix_images(images, partners, mix.share, mix.boxes))
