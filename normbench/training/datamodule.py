"""Which image which worker sees when, and in what portions images reach the device.

A Lightning batch is a chunk: the images of several optimizer steps, moved and augmented at once.
Shape letters: K steps of a chunk, A passes of a step, N images of a pass, C H W as ever.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from normbench.config.plan import Plan
from normbench.data.counter_rng import Draws, permutation
from normbench.data.dataset import Dataset, Splits
from normbench.data.reading import Means, Reader
from normbench.training.regularization import Regularization, mixed

LOOKED_AT = 1_000_000  # an epoch that no training reaches, for images that probes look at
EVALUATION_BATCH = 500
EVALUATION_VALUES = 2**24  # of images of an evaluation at once, which may be large


class Partners(NamedTuple):
    """What the images of K steps are mixed with: labels (K, A, N), and the places of the images.

    `share`, `boxes` and `label_share`, each (K, A, N) or (K, A, N, 4), are those of
    `normbench.training.regularization.Mix`.
    """

    labels: Tensor
    places: Tensor
    share: Tensor
    boxes: Tensor
    label_share: Tensor


class Step(NamedTuple):
    """One step of training: images (A, N, C, H, W), labels (A, N) and, if images are mixed, those
    of their partners and their share, both (A, N); `draws` are the random numbers of a pass."""

    images: Tensor
    labels: Tensor
    partners: tuple[Tensor, ...]
    draws: Callable[[int], Draws]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.images, self.labels, *self.partners)

    def copied(self) -> "Step":
        """The same in memory of its own."""
        images, labels, *partners = (each.clone() for each in self.tensors)
        return Step(images, labels, tuple(partners), self.draws)


class Chunk(NamedTuple):
    """K steps of training: images (K, A, N, C, H, W), labels and indices (K, A, N).

    On the way to the device there are `read` images (U, C, H, W) of the indices `known` (U,)
    instead, each of them once, and `places` (K, A, N) among them; without `places` they are in
    the order of the steps. `finished` ones are augmented already.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    seed: int
    epoch: int
    ends_epoch: bool
    known: Tensor
    places: Tensor | None = None
    finished: bool = False
    partners: Partners | None = None

    def draws(self, step: int, turn: int) -> Draws:
        """Random numbers for the images of one pass of one step."""
        return Draws(self.seed, self.epoch, self.indices[step, turn])

    def step(self, number: int) -> Step:
        """One of its steps."""
        mixed = self.partners
        partners = () if mixed is None else (mixed.labels[number], mixed.label_share[number])
        return Step(self.images[number], self.labels[number], partners, partial(self.draws, number))


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
    """The images of one run.

    Args:
        data: the data set.
        splits: its images.
        order: whose turn is when.
        schedule: how long, in what chunks.
        reg: how images are distorted and mixed with others.
        device: which of the plan's devices this is.
        processes: that read images beside the run, as `normbench.data.reading` says.
        means: by which the images come, for the row.
    """

    def __init__(
        self,
        data: Dataset,
        splits: Splits,
        order: Order,
        schedule: Schedule,
        reg: Regularization | None = None,
        device: int = 0,
        processes: int = 0,
        means: Means = "memory",
    ) -> None:
        super().__init__()
        self.means = means
        self.data = data
        self.splits = splits
        self.order = order
        self.schedule = schedule
        self.reg = reg or Regularization()
        self.device = device
        self.train, self.val, self.test = (
            Reader(data, part, order.seed, self.reg.distortion, processes) for part in splits
        )

    def warm_up(self) -> None:
        """Do what is done once, and belongs to no step."""
        for reader, epoch in ((self.train, 0), (self.val, None), (self.test, None)):
            reader.warm_up(epoch)

    def train_dataloader(self) -> "_Epochs":
        return _Epochs(self)

    def val_dataloader(self) -> "_Once":
        return _Once(self.val, self.device, self.order.plan.devices)

    def test_dataloader(self) -> "_Once":
        return _Once(self.test, self.device, self.order.plan.devices)

    def chunks(self, epoch: int, start: int = 0) -> Iterator[Chunk]:
        """The chunks of `epoch` from its step `start` on, bytes not yet on the device."""
        whole = self.order.whole(epoch)
        cuts = list(self.schedule.cut(epoch, self.order.steps_per_epoch, start))
        if not cuts:
            return
        # Of the whole epoch, so that what reads it never has to begin anew.
        known = [self._known(whole, cut, epoch) for cut in cuts]
        read = self.train.stream(torch.cat(known), epoch, [len(each) for each in known])
        for cut, indices, images in zip(cuts, known, read, strict=True):
            yield self._chunk(whole, cut, epoch, indices)._replace(
                images=images, ends_epoch=cut is cuts[-1]
            )

    def _known(self, whole: Tensor, cut: slice, epoch: int) -> Tensor:
        """Indices (U,) of the images that this device reads for the steps `cut` of an epoch."""
        steps = whole[cut]  # (K, global batch)
        own = self.order.share(steps, self.device).flatten()
        if not self.reg.mixes:
            return own
        if self.order.plan.devices > 1:  # the partner of an image may be another device's
            partners = [
                self.reg.partners(self.order.seed, number, self.order.global_batch)
                for number in self._numbers(cut, epoch)
            ]
            own = torch.cat([own, self._mates(steps, partners).flatten()])
        known: Tensor = own.unique()  # in order, as `_chunk` looks them up
        return known

    def _mates(self, steps: Tensor, partners: list[Tensor]) -> Tensor:
        """Indices (K, A, N) of the partners of this device's images of `steps` (K, global batch).

        Args:
            partners: of each step (global batch,), as `Regularization.partners` draws them.
        """
        return self.order.share(steps.gather(1, torch.stack(partners)), self.device)

    def _numbers(self, cut: slice, epoch: int) -> range:
        """Of the steps `cut` of an epoch, counted from the beginning of the run."""
        before = epoch * self.order.steps_per_epoch
        return range(before + cut.start, before + cut.stop)

    def _chunk(self, whole: Tensor, cut: slice, epoch: int, known: Tensor) -> Chunk:
        """What the steps `cut` of an epoch see; the images of `known` are not yet read."""
        order = self.order
        steps = whole[cut]  # (K, global batch)
        seen = order.share(steps, self.device)
        labels = self.splits.train.labels
        chunk = Chunk(
            torch.empty(0), labels[seen], seen, order.seed, epoch, ends_epoch=False,
            known=known, finished=self.train.distorts(epoch),
        )  # fmt: skip
        if not self.reg.mixes:
            return chunk
        size = self.data.trained_image[1:]
        mixes = [
            self.reg.mix(order.seed, number, order.global_batch, size)
            for number in self._numbers(cut, epoch)
        ]
        mates = self._mates(steps, [mix.partners for mix in mixes])
        share, boxes, label_share = (
            order.share(torch.stack([getattr(mix, name) for mix in mixes]), self.device)
            for name in ("share", "boxes", "label_share")
        )
        places, of_mates = torch.searchsorted(known, seen), torch.searchsorted(known, mates)
        with_whom = Partners(labels[mates], of_mates, share, boxes, label_share)
        return chunk._replace(places=places, partners=with_whom)

    def after_training(self, steps: int) -> Iterator[Tensor]:
        """Augmented images (N, C, H, W) of the passes of `steps` steps that would come next.

        They are not mixed, as those of an evaluation are not.
        """
        epoch = math.ceil(self.schedule.steps / self.order.steps_per_epoch)
        while steps > 0:
            every = self.order.epoch(epoch, self.device)[:steps].split(1)  # (1, A, N)
            sizes = [seen.numel() for seen in every]
            flat = torch.cat([seen.flatten() for seen in every])
            for seen, images in zip(every, self.train.stream(flat, epoch, sizes), strict=True):
                yield from self._ready(images, seen, epoch)[0]
                steps -= 1
            epoch += 1

    def some(self, number: int) -> Tensor:
        """Augmented training images (N, C, H, W), at most `number`: the same under every plan."""
        images = len(self.splits.train.labels)
        seen = permutation(self.order.seed, LOOKED_AT, images)[None, None, :number]  # (1, 1, N)
        (read,) = self.train.stream(seen.flatten(), LOOKED_AT, [seen.numel()])
        found: Tensor = self._ready(read, seen, LOOKED_AT)
        return found[0, 0]

    def _ready(self, read: Tensor, seen: Tensor, epoch: int) -> Tensor:
        """Images (K, A, N, C, H, W) of the indices `seen` (K, A, N), augmented and not mixed."""
        chunk = Chunk(
            read, seen, seen, self.order.seed, epoch, ends_epoch=False,
            known=seen.flatten(), finished=self.train.distorts(epoch),
        )  # fmt: skip
        return augmented(self.data, chunk).images

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
    draws = Draws(chunk.seed, chunk.epoch, chunk.known)
    read = chunk.images if chunk.finished else data.augment(chunk.images, draws)
    read = data.floats(read, draws)  # (U, C, H, W)
    if chunk.places is None or (partners := chunk.partners) is None:
        return chunk._replace(images=read.unflatten(0, chunk.indices.shape))
    own, others = (
        read.index_select(0, places.flatten()).unflatten(0, places.shape)
        for places in (chunk.places, partners.places)
    )
    return chunk._replace(images=mixed(own, others, partners.share, partners.boxes))


class _Once:
    """Every image of a split on exactly one device, some at a time."""

    def __init__(self, reader: Reader, device: int, devices: int) -> None:
        self.reader = reader
        values = math.prod(reader.data.image)
        batch = max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // values))
        # No device gets an image twice to make their numbers even: each counts once.
        self.parts = torch.arange(len(self.labels))[device::devices].split(batch)

    @property
    def labels(self) -> Tensor:
        return self.reader.part.labels

    def __len__(self) -> int:
        # A device that gets none still takes part, with an empty batch.
        return len(self.parts) if len(self.labels) else 0

    def __iter__(self) -> Iterator[Images]:
        if not len(self.parts[0]):
            if len(self):
                yield Images(
                    torch.empty(0, *self.reader.data.image), self.labels[:0], self.parts[0]
                )
            return
        sizes = [len(part) for part in self.parts]
        read = self.reader.stream(torch.cat(self.parts), None, sizes)
        for part, images in zip(self.parts, read, strict=True):
            yield Images(images, self.labels[part], part)
