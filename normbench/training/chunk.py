"""Chunks: the images of several optimizer steps, moved to the device and augmented at once.

A Lightning batch is a chunk. Its size changes no number that a run produces.

Shape letters: K steps of a chunk, A forward passes of a step, N images of a pass, U distinct images
of a chunk, C H W channels, height and width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor

from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset
from normbench.training.regularization import mix_images


@dataclass(frozen=True)
class Chunking:
    """Division of a run into chunks.

    A chunk ends with the epoch, and at every step at which a record of the curve is due.

    Args:
        steps: optimizer steps of the run.
        chunk: the most steps of a chunk.
        log_every: steps between two records within an epoch.
    """

    steps: int
    chunk: int
    log_every: int

    def split_epoch(self, epoch: int, steps_per_epoch: int, start: int = 0) -> Iterator[slice]:
        """Yield the steps of each chunk from `start` on, counted from the beginning of `epoch`."""
        # `before` and log_every count steps of the run, the others steps of this epoch.
        before = epoch * steps_per_epoch
        end = min(steps_per_epoch, self.steps - before)
        while start < end:
            to_record = self.log_every - (before + start) % self.log_every
            stop = min(start + self.chunk, start + to_record, end)
            yield slice(start, stop)
            start = stop


class MixPartners(NamedTuple):
    """Partners with which the images of K steps are mixed.

    Args:
        labels: (K, A, N) labels of the partners.
        places: (K, A, N) positions of the partners among the images of the chunk.
        share: (K, A, N) weight of an image's own pixels, as in `regularization.Mix`.
        boxes: (K, A, N, 4) boxes that show the partner.
        label_share: (K, A, N) weight of an image's own label.
    """

    labels: Tensor
    places: Tensor
    share: Tensor
    boxes: Tensor
    label_share: Tensor


class StepBatch(NamedTuple):
    """Images of one optimizer step.

    Args:
        images: (A, N, C, H, W).
        labels: (A, N).
        mix_targets: of mixed images the partners' labels and the weights of the own ones, both
            (A, N); else empty.
        draws: returns the random numbers of a forward pass.
    """

    images: Tensor
    labels: Tensor
    mix_targets: tuple[Tensor, ...]
    draws: Callable[[int], Draws]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.images, self.labels, *self.mix_targets)

    def clone(self) -> "StepBatch":
        """Copy the tensors to memory of their own."""
        images, labels, *mix_targets = (tensor.clone() for tensor in self.tensors)
        return StepBatch(images, labels, tuple(mix_targets), self.draws)


class Chunk(NamedTuple):
    """K optimizer steps of training.

    Until `augment_chunk` has run, `images` holds each distinct image once, (U, C, H, W) uint8.

    Args:
        images: (K, A, N, C, H, W).
        labels: (K, A, N).
        indices: (K, A, N) of the images in the training split.
        seed: of the run.
        epoch: in which the steps lie.
        ends_epoch: the last step of the epoch is among them.
        read_indices: (U,) indices of the images that were read.
        places: (K, A, N) positions in `read_indices`; None: in the order of the steps.
        augmented: the reader has augmented the images already.
        partners: with which images are mixed; None: images are not mixed.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    seed: int
    epoch: int
    ends_epoch: bool
    read_indices: Tensor
    places: Tensor | None = None
    augmented: bool = False
    partners: MixPartners | None = None

    def draws(self, step: int, turn: int) -> Draws:
        """Return the random numbers for the images of forward pass `turn` of a step."""
        return Draws(self.seed, self.epoch, self.indices[step, turn])

    def step(self, number: int) -> StepBatch:
        """Return the images of one of the steps."""
        partners = self.partners
        targets = (
            () if partners is None else (partners.labels[number], partners.label_share[number])
        )
        return StepBatch(
            self.images[number], self.labels[number], targets, partial(self.draws, number)
        )


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
    if chunk.places is None or (partners := chunk.partners) is None:
        return chunk._replace(images=pixels.unflatten(0, chunk.indices.shape))
    images, others = (
        pixels.index_select(0, places.flatten()).unflatten(0, places.shape)
        for places in (chunk.places, partners.places)
    )
    return chunk._replace(images=mix_images(images, others, partners.share, partners.boxes))
