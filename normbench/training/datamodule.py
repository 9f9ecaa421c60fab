"""Images of a run, read in portions: chunks of training steps, and batches of evaluations.

Shape letters: K steps of a chunk, A forward passes of a step, N images of a pass, U distinct images
of a chunk, C H W channels, height and width.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from normbench.data.counter_rng import permutation
from normbench.data.dataset import Dataset, Splits
from normbench.data.reading import LoaderName, Reader, open_splits
from normbench.training.batches import Chunk, EvaluationBatch, augment_chunk, split_maps
from normbench.training.experiment import Experiment, count_readers
from normbench.training.hardware import current_rank
from normbench.training.regularization import Mix, Regularization
from normbench.training.sampler import Chunking, WorkerSampler

# Larger chunks gain nothing: augmentation then costs far less than the steps themselves.
CHUNK_IMAGES = 2000  # images of a chunk, about, if trainer.chunk is null
CHUNK_VALUES = 2**26  # the most values of a chunk, for large images
PROBE_EPOCH = 1_000_000  # seeds the images of probes; no training has as many epochs
EVALUATION_BATCH = 500
EVALUATION_VALUES = 2**24  # the most values of an evaluation batch, for large images

T = TypeVar("T")


class DataModule(LightningDataModule):
    """Training, validation and test images of one run, as one device of its plan sees them.

    They are read by `loader`, beside the run by so many `processes` or threads
    (`normbench.data.reading`).
    """

    def __init__(
        self,
        data: Dataset,
        splits: Splits,
        sampler: WorkerSampler,
        chunking: Chunking,
        reg: Regularization | None = None,
        device: int = 0,
        processes: int = 0,
        loader: LoaderName = "memory",
    ) -> None:
        super().__init__()
        self.data, self.splits = data, splits
        self.sampler, self.chunking = sampler, chunking
        self.reg = reg or Regularization()
        self.device, self.processes, self.loader = device, processes, loader
        self.train, self.val, self.test = (
            Reader(data, part, sampler.seed, self.reg.policies, processes) for part in splits
        )

    def with_seed(self, seed: int) -> "DataModule":
        """Return the images of another seed, from the same open files."""
        sampler = replace(self.sampler, seed=seed)
        return DataModule(
            self.data, self.splits, sampler, self.chunking, self.reg, self.device, self.processes,
            self.loader,
        )  # fmt: skip

    @property
    def holds_out(self) -> bool:
        """True if there are validation images."""
        return len(self.splits.val.labels) > 0

    @property
    def evaluation_batch(self) -> int:
        """Images of a batch of an evaluation."""
        shape = self.data.image_shape
        values = math.prod(shape)
        if self.data.maps:  # predictions have as many channels as there are classes
            values *= max(1, self.data.classes // shape[0])
        return max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // values))

    def warm_up(self) -> None:
        """Do what is done once and belongs to no step, such as compiling FFCV's pipelines."""
        for reader, epoch in ((self.train, 0), (self.val, None), (self.test, None)):
            reader.warm_up(epoch)

    def train_dataloader(self) -> "Restartable[Chunk]":
        return Restartable(self._read_remaining_chunks)

    def val_dataloader(self) -> "Restartable[EvaluationBatch]":
        return Restartable(partial(self._read_evaluation_batches, self.val))

    def test_dataloader(self) -> "Restartable[EvaluationBatch]":
        return Restartable(partial(self._read_evaluation_batches, self.test))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Convert bytes to floats, on the device."""
        if isinstance(batch, EvaluationBatch):
            images, maps = split_maps(self.data, batch.images)
            return batch._replace(images=self.data.eval_input(images, batch.indices), maps=maps)
        return augment_chunk(self.data, batch, self.reg.erasing)

    def _read_remaining_chunks(self) -> Iterator[Chunk]:
        """Read the chunks that are left of the epoch in which the training is."""
        assert self.trainer is not None
        # Lightning's own count of epochs restarts at 0 when a training resumes from a checkpoint.
        done: int = self.trainer.lightning_module.done  # type: ignore[assignment]
        return self.read_chunks(*divmod(done, self.sampler.steps_per_epoch))

    def _read_evaluation_batches(self, reader: Reader) -> Iterator[EvaluationBatch]:
        """Yield the images of a split; each goes to exactly one device."""
        labels, shape, size = reader.split.labels, self.data.image_shape, self.evaluation_batch
        # Devices may get unequal numbers: repeating images to even them out would count them twice.
        parts = torch.arange(len(labels))[self.device :: self.sampler.plan.devices].split(size)
        if not len(parts[0]):  # a device without images takes part with an empty batch
            channels = shape[0] + self.data.maps
            yield EvaluationBatch(torch.empty(0, channels, *shape[1:]), labels[:0], parts[0])
            return
        stream = reader.stream(torch.cat(parts), None, [len(part) for part in parts])
        for part, images in zip(parts, stream, strict=True):
            yield EvaluationBatch(images, labels[part], part)

    def read_chunks(self, epoch: int, start: int = 0) -> Iterator[Chunk]:
        """Yield the chunks of `epoch` from its step `start` on, as bytes in main memory."""
        per_epoch = self.sampler.steps_per_epoch
        before = epoch * per_epoch
        order = self.sampler.global_batches(epoch)
        cuts = self.chunking.split_epoch(epoch, per_epoch, start)
        #: Indices (K, global batch) of each chunk, and the numbers of its steps in the run.
        parts = [(order[cut], range(before + cut.start, before + cut.stop)) for cut in cuts]
        if not parts:
            return
        # One stream for the whole epoch, so that the reading processes start once.
        indices = [self._indices_to_read(batches, steps) for batches, steps in parts]
        stream = self.train.stream(torch.cat(indices), epoch, [len(each) for each in indices])
        for part, read_indices, images in zip(parts, indices, stream, strict=True):
            batches, steps = part
            chunk = self._chunk(images, self._select(batches), epoch, read_indices)
            if self.reg.mixes:
                chunk = self._add_mix(chunk, batches, steps)
            yield chunk._replace(ends_epoch=part is parts[-1])

    def _select(self, values: Tensor) -> Tensor:
        return self.sampler.select_device(values, self.device)

    def _indices_to_read(self, batches: Tensor, steps: range) -> Tensor:
        """Return the indices (U,) of the images that this device reads for K steps.

        Those of all devices are `batches` (K, global batch); `steps` are their numbers in the run.
        """
        indices = self._select(batches).flatten()
        if not self.reg.mixes:
            return indices
        sampler = self.sampler
        if sampler.plan.devices > 1:  # the partner of an image may be on another device
            draw = self.reg.draw_partners
            partners = [draw(sampler.seed, step, sampler.global_batch) for step in steps]
            of_partners = self._select(batches.gather(1, torch.stack(partners)))
            indices = torch.cat([indices, of_partners.flatten()])
        unique: Tensor = indices.unique()  # in ascending order
        return unique

    def _chunk(self, images: Tensor, indices: Tensor, epoch: int, read_indices: Tensor) -> Chunk:
        """Return a chunk whose images are not mixed."""
        return Chunk(
            images, self.splits.train.labels[indices], indices, self.sampler.seed, epoch,
            ends_epoch=False, read_indices=read_indices, augmented=self.train.augments(epoch),
        )  # fmt: skip

    def _add_mix(self, chunk: Chunk, batches: Tensor, steps: range) -> Chunk:
        """Add how the images of a chunk are mixed; arguments as of `_indices_to_read`."""
        seed, size = self.sampler.seed, self.data.train_shape[1:]
        draws = [self.reg.draw_mix(seed, step, self.sampler.global_batch, size) for step in steps]
        mix = Mix(*(torch.stack(values) for values in zip(*draws, strict=True)))
        mix = mix._replace(partners=batches.gather(1, mix.partners))  # places to indices
        mix = Mix(*map(self._select, mix))
        labels = self.splits.train.labels[mix.partners]
        return chunk._replace(mix=mix, mix_targets=(labels, mix.label_share))

    def batches_after_training(self, steps: int, *, joined: bool = False) -> Iterator[Tensor]:
        """Yield augmented images (N, C, H, W) of the passes of the `steps` after the training.

        As in an evaluation, images are not mixed. With `joined`, all images of a step on
        this device are one pass.
        """
        epoch = math.ceil(self.chunking.steps / self.sampler.steps_per_epoch)
        while steps > 0:
            batches = self._select(self.sampler.global_batches(epoch))[:steps]  # (K, A, N)
            sizes = [batches[0].numel()] * len(batches)
            stream = self.train.stream(batches.flatten(), epoch, sizes)
            for indices, images in zip(batches, stream, strict=True):
                passes = self._augment(images, indices[None], epoch)[0]  # (A, N, C, H, W)
                yield from passes.flatten(0, 1)[None] if joined else passes
            steps -= len(batches)
            epoch += 1

    def sample_training_images(self, number: int) -> Tensor:
        """Return at most `number` augmented images (N, C, H, W), the same under every plan."""
        images = len(self.splits.train.labels)
        indices = permutation(self.sampler.seed, PROBE_EPOCH, images)[None, None, :number]
        (pixels,) = self.train.stream(indices.flatten(), PROBE_EPOCH, [indices.numel()])
        augmented: Tensor = self._augment(pixels, indices, PROBE_EPOCH)
        return augmented[0, 0]

    def sample_held_out_batches(self, number: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (N, C, H, W) and labels (N,) of `number` batches of `size` held-out images.

        The images are shuffled, the same under every plan, and not augmented.
        """
        for pixels, labels, indices, _ in self._shuffle(self.val, number, size):
            yield self.data.eval_input(pixels, indices), labels

    def shuffled_test_batches(self, size: int) -> Iterator[EvaluationBatch]:
        """Yield all test images as bytes, in batches of `size` and a smaller last one.

        Their order is the same under every plan.
        """
        return self._shuffle(self.test, math.ceil(len(self.splits.test.labels) / size), size)

    def _shuffle(self, reader: Reader, number: int, size: int) -> Iterator[EvaluationBatch]:
        labels = reader.split.labels
        order = permutation(self.sampler.seed, PROBE_EPOCH, len(labels))[: number * size]
        parts = order.split(size)
        batches = reader.stream(order, None, [len(part) for part in parts])
        for indices, pixels in zip(parts, batches, strict=True):
            yield EvaluationBatch(pixels, labels[indices], indices)

    def _augment(self, pixels: Tensor, indices: Tensor, epoch: int) -> Tensor:
        """Augment the images of `indices` (K, A, N) without mixing them: (K, A, N, C, H, W)."""
        chunk = self._chunk(pixels, indices, epoch, indices.flatten())
        return augment_chunk(self.data, chunk, self.reg.erasing).images


class Restartable(Generic[T]):
    """Iterable that begins anew with each iterator, as Lightning takes one every epoch."""

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[T]:
        return self.begin()


def open_datamodule(experiment: Experiment) -> DataModule:
    """Open the data of the run: its training, validation and test images."""
    cell, plan, data, reg = experiment.cell, experiment.plan, experiment.data, experiment.reg
    splits, loader = open_splits(data, cell.loader, policies=bool(reg.policies))
    images = len(splits.train.labels)
    most = min(CHUNK_IMAGES, CHUNK_VALUES // math.prod(data.train_shape))
    chunk = cell.trainer.chunk or max(1, round(most / cell.global_batch))
    steps = experiment.recipe.count_steps(images, cell.global_batch)
    return DataModule(
        data,
        splits,
        WorkerSampler(images, cell.global_batch, plan, cell.seed, splits.train.labels, data.skew),
        Chunking(steps, chunk, cell.trainer.log_every),
        reg,
        device=current_rank() if plan.devices > 1 else 0,
        processes=0 if loader == "memory" and not reg.policies else count_readers(cell),
        loader=loader,
    )
