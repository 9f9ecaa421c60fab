"""Which image which worker sees when, and in what portions images reach the device.

A Lightning batch is a chunk: the images of several optimizer steps, moved and augmented at once.
Shape letters: K steps of a chunk, A passes of a step, N images of a pass, C H W as ever.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from normbench.data.dataset import Dataset, Split, Splits
from normbench.draws import Draws, permutation
from normbench.plan import Plan
from normbench.reg import Mix, Regularization, mixed

EVALUATION_BATCH = 500


class Partners(NamedTuple):
    """What the images of K steps are mixed with: images (K, A, N, C, H, W), labels, indices.

    `share`, `boxes` and `label_share`, K of each, are those of `normbench.reg.Mix`.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    share: Tensor
    boxes: Tensor
    label_share: Tensor


class Chunk(NamedTuple):
    """K steps of training: images (K, A, N, C, H, W), labels and indices (K, A, N)."""

    images: Tensor
    labels: Tensor
    indices: Tensor
    seed: int
    epoch: int
    ends_epoch: bool
    partners: Partners | None = None

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
        return self.share(self.whole(epoch), device)

    def whole(self, epoch: int) -> Tensor:
        """Indices (steps, global batch) of the images of `epoch`."""
        order = permutation(self.seed, epoch, self.images)
        return order[: self.steps_per_epoch * self.global_batch].view(-1, self.global_batch)

    def share(self, steps: Tensor, device: int) -> Tensor:
        """(steps, global batch) -> (steps, A, N): what `device` takes of each, pass by pass."""
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

    def cut(self, epoch: int, steps_per_epoch: int, start: int = 0) -> Iterator[slice]:
        """The steps of each chunk from `start` on, counted from the beginning of `epoch`."""
        # `before` and log_every count steps of the run, the others steps of this epoch.
        before = epoch * steps_per_epoch
        end = min(steps_per_epoch, self.steps - before)
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
        reg: how images are mixed with others.
        device: which of the plan's devices this is.
    """

    def __init__(
        self,
        data: Dataset,
        splits: Splits,
        order: Order,
        schedule: Schedule,
        reg: Regularization | None = None,
        device: int = 0,
    ) -> None:
        super().__init__()
        self.data = data
        self.splits = splits
        self.order = order
        self.schedule = schedule
        self.reg = reg or Regularization()
        self.device = device

    def train_dataloader(self) -> "_Epochs":
        return _Epochs(self)

    def val_dataloader(self) -> "_Once":
        return _Once(self.splits.val, self.device, self.order.plan.devices)

    def test_dataloader(self) -> "_Once":
        return _Once(self.splits.test, self.device, self.order.plan.devices)

    def chunks(self, epoch: int, start: int = 0) -> Iterator[Chunk]:
        """The chunks of `epoch` from its step `start` on, bytes not yet augmented."""
        whole = self.order.whole(epoch)
        indices = self.order.share(whole, self.device)
        cuts = list(self.schedule.cut(epoch, self.order.steps_per_epoch, start))
        for cut in cuts:
            seen = indices[cut]
            images, labels = self.splits.train.take(seen)
            partners = self._partners(whole, cut, epoch)
            ends_epoch = cut == cuts[-1]
            yield Chunk(images, labels, seen, self.order.seed, epoch, ends_epoch, partners)

    def _partners(self, whole: Tensor, cut: slice, epoch: int) -> Partners | None:
        """What the images of the steps `cut` of an epoch are mixed with.

        The partner of an image may be another device's, so it is brought from the data set here.
        """
        order, size = self.order, self.data.image[1:]
        before, steps = epoch * order.steps_per_epoch, range(cut.start, cut.stop)
        drawn = [
            self.reg.mix(order.seed, before + step, order.global_batch, size) for step in steps
        ]
        mixes = [mix for mix in drawn if mix is not None]
        if not mixes:
            return None
        pairs = zip(steps, mixes, strict=True)
        mates = torch.stack([whole[step][mix.partners] for step, mix in pairs])
        indices = order.share(mates, self.device)
        return Partners(*self.splits.train.take(indices), indices, *_stacked(mixes))

    def after_training(self, steps: int) -> Iterator[Tensor]:
        """Augmented images (N, C, H, W) of the passes of `steps` steps that would come next.

        They are not mixed, as those of an evaluation are not.
        """
        epoch = math.ceil(self.schedule.steps / self.order.steps_per_epoch)
        while steps > 0:
            for seen in self.order.epoch(epoch, self.device)[:steps].split(1):  # (1, A, N)
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
    """The chunks of whatever epoch the training is in: what is left of it."""

    def __init__(self, loaders: Loaders) -> None:
        self.loaders = loaders

    def __iter__(self) -> Iterator[Chunk]:
        trainer = self.loaders.trainer
        assert trainer is not None
        # Lightning asks for a new iterator every epoch. Its own count of them begins anew when a
        # training goes on from a checkpoint, so the steps that are done say which epoch it is.
        done: int = trainer.lightning_module.done  # type: ignore[assignment]
        return self.loaders.chunks(*divmod(done, self.loaders.order.steps_per_epoch))


def augmented(data: Dataset, chunk: Chunk) -> Chunk:
    """`chunk` with each image augmented by its own draws of this epoch, and mixed."""
    images = _augmented(data, chunk, chunk.images, chunk.indices)
    if (partners := chunk.partners) is not None:
        others = _augmented(data, chunk, partners.images, partners.indices)
        images = mixed(images, others, partners.share, partners.boxes)
    return chunk._replace(images=images)


def _augmented(data: Dataset, chunk: Chunk, images: Tensor, indices: Tensor) -> Tensor:
    draws = Draws(chunk.seed, chunk.epoch, indices.flatten())
    # Augmentation knows images alone: (K, A, N, C, H, W) -> (K*A*N, C, H, W) and back.
    found: Tensor = data.augment(images.flatten(0, 2), draws).unflatten(0, indices.shape)
    return found


def _stacked(mixes: Sequence[Mix]) -> tuple[Tensor, Tensor, Tensor]:
    """Shares (K,), boxes (K, 4) and shares of labels (K,) of K steps."""
    share, label_share = ([getattr(m, name) for m in mixes] for name in ("share", "label_share"))
    return torch.tensor(share), torch.tensor([m.box for m in mixes]), torch.tensor(label_share)


class _Once:
    """Every image of `split` on exactly one device, `EVALUATION_BATCH` at a time."""

    def __init__(self, split: Split, device: int, devices: int) -> None:
        self.split = split
        # No device gets an image twice to make their numbers even: each counts once.
        self.parts = torch.arange(len(split.labels))[device::devices].split(EVALUATION_BATCH)

    def __len__(self) -> int:
        # A device that gets none still takes part, with an empty batch.
        return len(self.parts) if len(self.split.labels) else 0

    def __iter__(self) -> Iterator[Images]:
        for part in self.parts[: len(self)]:
            yield Images(*self.split.take(part), part)
