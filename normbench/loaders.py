"""Which image which worker sees when, and in what portions images reach the device.

A Lightning batch is a chunk: the images of several optimizer steps, moved and augmented at once.
Shape letters: K steps of a chunk, A passes of a step, N images of a pass, C H W as ever.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from normbench.data.dataset import Dataset, Split, Splits
from normbench.draws import Draws, permutation
from normbench.plan import Plan

EVALUATION_BATCH = 500


class Chunk(NamedTuple):
    """K steps of training: images (K, A, N, C, H, W), labels and indices (K, A, N)."""

    images: Tensor
    labels: Tensor
    indices: Tensor
    seed: int
    epoch: int
    ends_epoch: bool

    def draws(self, step: int, turn: int) -> Draws:
        """Random numbers for the images of one pass of one step."""
        return Draws(self.seed, self.epoch, self.indices[step, turn])


class Images(NamedTuple):
    """Images of an evaluation (N, C, H, W), labels and indices (N,)."""

    images: Tensor
    labels: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Order:
    """The images of every step: one permutation an epoch, drawn from (seed, epoch).

    What does not fill a global batch is left out of that epoch.
    """

    images: int
    global_batch: int
    plan: Plan
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return self.images // self.global_batch

    def epoch(self, epoch: int, device: int = 0) -> Tensor:
        """Indices (steps, A, N) of the images that `device` sees in `epoch`."""
        order = permutation(self.seed, epoch, self.images)
        # (steps, global batch); of each row a device takes its share, pass by pass.
        steps = order[: self.steps_per_epoch * self.global_batch].view(-1, self.global_batch)
        turns = range(self.plan.accumulation)
        return torch.stack([steps[:, self.plan.share(device, turn)] for turn in turns], dim=1)


@dataclass(frozen=True)
class Schedule:
    """How a run of `steps` optimizer steps falls into chunks.

    A chunk ends with the epoch, and wherever a record of the curve is due.
    """

    steps: int
    chunk: int
    log_every: int

    def cut(self, epoch: int, steps_per_epoch: int) -> Iterator[slice]:
        """The steps of each chunk, counted from the beginning of `epoch`."""
        # `before` and log_every count steps of the run, the others steps of this epoch.
        before = epoch * steps_per_epoch
        end = min(steps_per_epoch, self.steps - before)
        start = 0
        while start < end:
            to_record = self.log_every - (before + start) % self.log_every
            stop = min(start + self.chunk, start + to_record, end)
            yield slice(start, stop)
            start = stop


class Loaders(LightningDataModule):
    """The images of one run, from memory.

    Args:
        data: the data set.
        splits: its images.
        order: whose turn is when.
        schedule: how long, in what chunks.
    """

    def __init__(self, data: Dataset, splits: Splits, order: Order, schedule: Schedule) -> None:
        super().__init__()
        self.data = data
        self.splits = splits
        self.order = order
        self.schedule = schedule

    def train_dataloader(self) -> "_Epochs":
        return _Epochs(self)

    def val_dataloader(self) -> "_Once":
        return _Once(self.splits.val)

    def test_dataloader(self) -> "_Once":
        return _Once(self.splits.test)

    def chunks(self, epoch: int) -> Iterator[Chunk]:
        """The chunks of `epoch`, bytes not yet augmented."""
        indices = self.order.epoch(epoch)
        cuts = list(self.schedule.cut(epoch, self.order.steps_per_epoch))
        for cut in cuts:
            seen = indices[cut]
            images, labels = self.splits.train.take(seen)
            ends_epoch = cut == cuts[-1]
            yield Chunk(images, labels, seen, self.order.seed, epoch, ends_epoch)

    def after_training(self, steps: int) -> Iterator[Tensor]:
        """Augmented images (N, C, H, W) of the passes of `steps` steps that would come next."""
        epoch = math.ceil(self.schedule.steps / self.order.steps_per_epoch)
        while steps > 0:
            for seen in self.order.epoch(epoch)[:steps].split(1):  # (1, A, N)
                images, labels = self.splits.train.take(seen)
                chunk = Chunk(images, labels, seen, self.order.seed, epoch, ends_epoch=False)
                yield from augmented(self.data, chunk).images[0]
                steps -= 1
            epoch += 1

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Bytes become floats, on the device."""
        if isinstance(batch, Images):
            return batch._replace(images=self.data.present(batch.images, batch.indices))
        return augmented(self.data, batch)


class _Epochs:
    """The chunks of whatever epoch the trainer is in."""

    def __init__(self, loaders: Loaders) -> None:
        self.loaders = loaders

    def __iter__(self) -> Iterator[Chunk]:
        trainer = self.loaders.trainer
        assert trainer is not None
        # Lightning asks for a new iterator every epoch, and this is how it says which.
        return self.loaders.chunks(trainer.current_epoch)


def augmented(data: Dataset, chunk: Chunk) -> Chunk:
    """`chunk` with each image augmented by its own draws of this epoch."""
    draws = Draws(chunk.seed, chunk.epoch, chunk.indices.flatten())
    # Augmentation knows images alone: (K, A, N, C, H, W) -> (K*A*N, C, H, W) and back.
    images = data.augment(chunk.images.flatten(0, 2), draws)
    return chunk._replace(images=images.unflatten(0, chunk.indices.shape))


class _Once:
    """Every image of `split` exactly once, `EVALUATION_BATCH` at a time."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.parts = torch.arange(len(split.labels)).split(EVALUATION_BATCH)

    def __len__(self) -> int:
        return len(self.parts) if len(self.split.labels) else 0

    def __iter__(self) -> Iterator[Images]:
        for part in self.parts[: len(self)]:
            yield Images(*self.split.take(part), part)
