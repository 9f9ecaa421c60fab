"""Images of a run: which worker sees which image when, and in which portions they are read.

Shape letters: K steps of a chunk, A forward passes of a step, N images of a pass, U distinct images
of a chunk, C H W channels, height and width.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from normbench.config.plan import Plan
from normbench.data.counter_rng import permutation
from normbench.data.dataset import Dataset, Splits
from normbench.data.reading import LoaderName, Reader
from normbench.training.chunk import Chunk, Chunking, EvaluationBatch, MixPartners, augment_chunk
from normbench.training.regularization import Regularization

PROBE_EPOCH = 1_000_000  # seeds the images of probes; no training has as many epochs
EVALUATION_BATCH = 500
EVALUATION_VALUES = 2**24  # the most values of an evaluation batch, for large images


@dataclass(frozen=True)
class WorkerSampler:
    """The images of every step: one permutation an epoch, drawn from (seed, epoch).

    Image k of a global batch belongs to worker k mod W. Images that do not fill a global batch are
    left out of that epoch.

    Args:
        images: training images.
        global_batch: images of an optimizer step.
        plan: layout of the workers on the devices.
        seed: of the run.
    """

    images: int
    global_batch: int
    plan: Plan
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return self.images // self.global_batch

    def device_indices(self, epoch: int, device: int = 0) -> Tensor:
        """Return the indices (steps, A, N) of the images that `device` sees in `epoch`."""
        return self.select_device(self.global_batches(epoch), device)

    def global_batches(self, epoch: int) -> Tensor:
        """Return the indices (steps, global batch) of the images of `epoch`."""
        order = permutation(self.seed, epoch, self.images)
        return order[: self.steps_per_epoch * self.global_batch].view(-1, self.global_batch)

    def select_device(self, steps: Tensor, device: int) -> Tensor:
        """Select what `device` takes of each step, by pass: (steps, global batch, ...) -> (steps,
        A, N, ...)."""
        turns = range(self.plan.accumulation)
        return torch.stack([steps[:, self.plan.share(device, turn)] for turn in turns], dim=1)


class DataModule(LightningDataModule):
    """Training, validation and test images of one run.

    Args:
        data: the data set.
        splits: its images.
        sampler: order of the training images.
        chunking: division of the run into chunks.
        reg: distortion and mixing of training images.
        device: index of this device in the plan.
        processes: processes or threads that read images beside the run
            (`normbench.data.reading`).
        loader: by which images are read, for the row.
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
        self.data = data
        self.splits = splits
        self.sampler = sampler
        self.chunking = chunking
        self.reg = reg or Regularization()
        self.device = device
        self.loader = loader
        self.train, self.val, self.test = (
            Reader(data, part, sampler.seed, self.reg.policies, processes) for part in splits
        )

    @property
    def holds_out(self) -> bool:
        """True if there are validation images."""
        return len(self.splits.val.labels) > 0

    def warm_up(self) -> None:
        """Do what is done once and belongs to no step, such as compiling FFCV's pipelines."""
        for reader, epoch in ((self.train, 0), (self.val, None), (self.test, None)):
            reader.warm_up(epoch)

    def train_dataloader(self) -> "_RemainingChunks":
        return _RemainingChunks(self)

    def val_dataloader(self) -> "_EvaluationLoader":
        return _EvaluationLoader(self.val, self.device, self.sampler.plan.devices)

    def test_dataloader(self) -> "_EvaluationLoader":
        return _EvaluationLoader(self.test, self.device, self.sampler.plan.devices)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Convert bytes to floats, on the device."""
        if isinstance(batch, EvaluationBatch):
            return batch._replace(images=self.data.eval_input(batch.images, batch.indices))
        return augment_chunk(self.data, batch)

    def read_chunks(self, epoch: int, start: int = 0) -> Iterator[Chunk]:
        """Yield the chunks of `epoch` from its step `start` on, as bytes in main memory."""
        batches = self.sampler.global_batches(epoch)
        cuts = list(self.chunking.split_epoch(epoch, self.sampler.steps_per_epoch, start))
        if not cuts:
            return
        # One stream for the whole epoch, so that the reading processes start once.
        indices = [self._indices_to_read(batches[cut], self._run_steps(cut, epoch)) for cut in cuts]
        stream = self.train.stream(torch.cat(indices), epoch, [len(each) for each in indices])
        for cut, read_indices, images in zip(cuts, indices, stream, strict=True):
            chunk = self._chunk(batches[cut], self._run_steps(cut, epoch), epoch, read_indices)
            yield chunk._replace(images=images, ends_epoch=cut is cuts[-1])

    def _run_steps(self, cut: slice, epoch: int) -> range:
        """Convert the steps `cut` of an epoch to steps of the run."""
        before = epoch * self.sampler.steps_per_epoch
        return range(before + cut.start, before + cut.stop)

    def _indices_to_read(self, batches: Tensor, steps: range) -> Tensor:
        """Return the indices (U,) that this device reads for `batches` (K, global batch)."""
        sampler = self.sampler
        indices = sampler.select_device(batches, self.device).flatten()
        if not self.reg.mixes:
            return indices
        if sampler.plan.devices > 1:  # the partner of an image may be on another device
            partners = [
                self.reg.draw_partners(sampler.seed, step, sampler.global_batch) for step in steps
            ]
            indices = torch.cat([indices, self._partner_indices(batches, partners).flatten()])
        unique: Tensor = indices.unique()  # sorted, as `_chunk` searches in them
        return unique

    def _partner_indices(self, batches: Tensor, partners: list[Tensor]) -> Tensor:
        """Return the indices (K, A, N) of the partners of this device's images.

        Args:
            batches: (K, global batch) indices.
            partners: of each step (global batch,) places, from `Regularization.draw_partners`.
        """
        return self.sampler.select_device(batches.gather(1, torch.stack(partners)), self.device)

    def _chunk(self, batches: Tensor, steps: range, epoch: int, read_indices: Tensor) -> Chunk:
        """Describe a chunk whose images are not read yet.

        Args:
            batches: (K, global batch) indices.
            steps: their numbers in the run.
            epoch: in which they lie.
            read_indices: (U,) from `_indices_to_read`.
        """
        sampler = self.sampler
        indices = sampler.select_device(batches, self.device)
        labels = self.splits.train.labels
        chunk = Chunk(
            torch.empty(0), labels[indices], indices, sampler.seed, epoch, ends_epoch=False,
            read_indices=read_indices, augmented=self.train.augments(epoch),
        )  # fmt: skip
        if not self.reg.mixes:
            return chunk
        size = self.data.train_shape[1:]
        mixes = [
            self.reg.draw_mix(sampler.seed, step, sampler.global_batch, size) for step in steps
        ]
        partner_indices = self._partner_indices(batches, [mix.partners for mix in mixes])
        share, boxes, label_share = (
            sampler.select_device(torch.stack([getattr(mix, name) for mix in mixes]), self.device)
            for name in ("share", "boxes", "label_share")
        )
        partners = MixPartners(
            labels[partner_indices],
            torch.searchsorted(read_indices, partner_indices),
            share,
            boxes,
            label_share,
        )
        return chunk._replace(places=torch.searchsorted(read_indices, indices), partners=partners)

    def batches_after_training(self, steps: int) -> Iterator[Tensor]:
        """Yield augmented images (N, C, H, W) of the passes of the `steps` after the training.

        They are not mixed, as those of an evaluation are not.
        """
        epoch = math.ceil(self.chunking.steps / self.sampler.steps_per_epoch)
        while steps > 0:
            batches = self.sampler.device_indices(epoch, self.device)[:steps].split(1)  # (1, A, N)
            sizes = [indices.numel() for indices in batches]
            flat = torch.cat([indices.flatten() for indices in batches])
            stream = self.train.stream(flat, epoch, sizes)
            for indices, images in zip(batches, stream, strict=True):
                yield from self._augment(images, indices, epoch)[0]
                steps -= 1
            epoch += 1

    def sample_training_images(self, number: int) -> Tensor:
        """Return at most `number` augmented images (N, C, H, W), the same under every plan."""
        images = len(self.splits.train.labels)
        indices = permutation(self.sampler.seed, PROBE_EPOCH, images)[None, None, :number]
        (pixels,) = self.train.stream(indices.flatten(), PROBE_EPOCH, [indices.numel()])
        augmented: Tensor = self._augment(pixels, indices, PROBE_EPOCH)
        return augmented[0, 0]

    def _augment(self, pixels: Tensor, indices: Tensor, epoch: int) -> Tensor:
        """Augment the images of `indices` (K, A, N) without mixing them: (K, A, N, C, H, W)."""
        chunk = Chunk(
            pixels, indices, indices, self.sampler.seed, epoch, ends_epoch=False,
            read_indices=indices.flatten(), augmented=self.train.augments(epoch),
        )  # fmt: skip
        return augment_chunk(self.data, chunk).images


class _RemainingChunks:
    """The chunks that are left of the epoch in which the training is."""

    def __init__(self, images: DataModule) -> None:
        self.images = images

    def __iter__(self) -> Iterator[Chunk]:
        trainer = self.images.trainer
        assert trainer is not None
        # Lightning asks for a new iterator every epoch. Its own epoch counter restarts at 0 when a
        # training resumes from a checkpoint, so the epoch follows from the completed steps.
        done: int = trainer.lightning_module.done  # type: ignore[assignment]
        return self.images.read_chunks(*divmod(done, self.images.sampler.steps_per_epoch))


class _EvaluationLoader:
    """Batches of a split; every image goes to exactly one device."""

    def __init__(self, reader: Reader, device: int, devices: int) -> None:
        self.reader = reader
        values = math.prod(reader.data.image_shape)
        batch = max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // values))
        # Devices may get unequal numbers: repeating images to even them out would count them twice.
        self.parts = torch.arange(len(self.labels))[device::devices].split(batch)

    @property
    def labels(self) -> Tensor:
        return self.reader.split.labels

    def __len__(self) -> int:
        # A device without images still takes part, with an empty batch.
        return len(self.parts) if len(self.labels) else 0

    def __iter__(self) -> Iterator[EvaluationBatch]:
        if not len(self.parts[0]):
            if len(self):
                yield EvaluationBatch(
                    torch.empty(0, *self.reader.data.image_shape), self.labels[:0], self.parts[0]
                )
            return
        sizes = [len(part) for part in self.parts]
        stream = self.reader.stream(torch.cat(self.parts), None, sizes)
        for part, images in zip(self.parts, stream, strict=True):
            yield EvaluationBatch(images, self.labels[part], part)
