"""Measurements of `plans_and_loaders` in a worker process, which imports torch."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms

from normbench.config.cells import Cell
from normbench.config.plan import Plan
from normbench.data.dataset import DatasetOnDisk, SmallImages, Split, TensorSplit
from normbench.data.photographs import FileSplit
from normbench.errors import BadInput
from normbench.training.datamodule import DataModule, open_datamodule
from normbench.training.experiment import Experiment, count_readers
from normbench.training.trainer import build_trainer, prepare
from normbench.training.training import Training

Epochs = Callable[[int], Iterable[int]]  # number of an epoch -> numbers of images, as they come


def measure(request: tuple[Cell, Plan], _report: Callable[[Any], None]) -> float:
    """Return images per second of the steps of a training."""
    cell, plan = request
    module = prepare(Training(Experiment(cell, plan)))
    build_trainer(module).fit(module, module.datamodule)
    return module.images_per_second


def feed(request: tuple[Cell, str], _report: Callable[[Any], None]) -> float:
    """Return images per second that a loader makes ready for a network, after a first epoch."""
    cell, loader = request
    torch.set_num_threads(cell.trainer.threads)
    if loader != "ffcv" and "jpeg" in cell.data.options:  # an option of FFCV's files alone
        options = {**cell.data.options, "jpeg": None}
        cell = replace(cell, data=replace(cell.data, options=options))
    if loader == "usual":
        datamodule = open_datamodule(Experiment(replace(cell, loader="torch")))
        return _time_second_epoch(_usual_epochs(datamodule, cell.batch, count_readers(cell)))
    cell = replace(cell, loader=loader)  # type: ignore[arg-type]
    datamodule = open_datamodule(Experiment(cell))
    return _time_second_epoch(_our_epochs(datamodule))


def _time_second_epoch(epochs: Epochs) -> float:
    """Return images per second of the second epoch: the first compiles code and caches files."""
    sum(epochs(0))
    started = time.monotonic()
    return sum(epochs(1)) / (time.monotonic() - started)


def _our_epochs(datamodule: DataModule) -> Epochs:
    """Return a function that yields the sizes of the augmented chunks of an epoch, in images."""
    # However short the training is that the recipe asks for.
    steps = 2 * datamodule.sampler.steps_per_epoch
    datamodule.chunking = replace(datamodule.chunking, steps=steps)

    def read_epoch(epoch: int) -> Iterator[int]:
        for chunk in datamodule.read_chunks(epoch):
            ready: Tensor = datamodule.on_after_batch_transfer(chunk, 0).images
            yield ready.shape[:3].numel()

    return read_epoch


def _usual_epochs(datamodule: DataModule, batch: int, processes: int) -> Epochs:
    """Return epochs of the same images by torchvision's transforms in torch's DataLoader."""
    if not isinstance(datamodule.data, DatasetOnDisk):
        raise BadInput("loaders=usual: it is for data sets of files, as data=fashion_mnist")
    # Persistent, so that the second epoch does not start the processes again.
    loader = DataLoader(
        _Images(datamodule.data, datamodule.splits.train), batch, shuffle=True,
        num_workers=processes, drop_last=True, persistent_workers=processes > 0,
    )  # fmt: skip
    return lambda _epoch: (len(images) for images, _ in loader)


class _Images(TorchDataset[tuple[Tensor, int]]):
    """A dataset for a DataLoader: one image as a tensor per index."""

    def __init__(self, data: DatasetOnDisk, split: Split) -> None:
        self.split = split
        _, side, _ = data.train_shape
        mean, std = data.moments
        crop = transforms.RandomResizedCrop(side)
        if isinstance(data, SmallImages):
            crop = transforms.RandomCrop(side, padding=data.padding)
        self.transform = transforms.Compose([
            crop, transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.split.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if isinstance(self.split, TensorSplit):
            pixels = self.split.images[index].permute(1, 2, 0).numpy()
            # PIL takes a gray image without a channel.
            picture = Image.fromarray(np.squeeze(pixels))
        else:
            assert isinstance(self.split, FileSplit)
            picture = self.split.image(index)
        return self.transform(picture), int(self.split.labels[index])
