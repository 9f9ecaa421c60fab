"""Batches that loaders yield: chunks of several optimizer steps, and batches of an evaluation.

The images of a chunk are moved to the device and augmented at once. Its size changes no number that
a run produces.

Shape letters: K steps of a chunk, A forward passes of a step, N images of a pass, U distinct images
of a chunk, C H W channels, height and width.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset
from normbench.training.regularization import Mix, mix_images


class StepBatch(NamedTuple):
    """Images of one optimizer step."""

    images: Tensor  # (A, N, C, H, W)
    labels: Tensor  # (A, N)
    mix_targets: tuple[Tensor, ...]  # both (A, N), see `Chunk`
    draws: Callable[[int], Draws]  # returns the random numbers of a forward pass

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.images, self.labels, *self.mix_targets)

    def clone(self) -> "StepBatch":
        """Copy the tensors to memory of their own."""
        images, labels, *mix_targets = (tensor.clone() for tensor in self.tensors)
        return StepBatch(images, labels, tuple(mix_targets), self.draws)


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

    def draws(self, step: int, pass_number: int) -> Draws:
        """Return the random numbers for the images of forward pass `pass_number` of a step."""
        return Draws(self.seed, self.epoch, self.indices[step, pass_number])

    def step(self, number: int) -> StepBatch:
        """Return the images of one of the steps."""
        targets = tuple(target[number] for target in self.mix_targets)
        draws = partial(self.draws, number)
        return StepBatch(self.images[number], self.labels[number], targets, draws)


class EvaluationBatch(NamedTuple):
    """Images of an evaluation (N, C, H, W), their labels (N,) and their indices (N,)."""

    images: Tensor
    labels: Tensor
    indices: Tensor


def augment_chunk(data: Dataset, chunk: Chunk) -> Chunk:
    """Augment each image by its own random numbers of this epoch, then mix the images.

    Returns:
        The chunk with `images` (K, A, N, C, H, W) in fp32.
    """
    draws = Draws(chunk.seed, chunk.epoch, chunk.read_indices)
    pixels = chunk.images if chunk.augmented else data.augment(chunk.images, draws)
    pixels = data.train_input(pixels, draws)  # (U, C, H, W)
    if (mix := chunk.mix) is None:
        return chunk._replace(images=pixels.unflatten(0, chunk.indices.shape))
    # An image that is partner of another is read and augmented once.
    places = (torch.searchsorted(chunk.read_indices, i) for i in (chunk.indices, mix.partners))
    images, partners = (pixels.index_select(0, p.flatten()).unflatten(0, p.shape) for p in places)
    return chunk._replace(images=mix_images(images, partners, mix.share, mix.boxes))
