"""How fast a plan trains and a loader reads: the half of `normbench.bench.runs` that has torch."""

import time
from collections.abc import Callable, Iterable
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
from normbench.data.dataset import Arrays, OfFiles, Part, Split
from normbench.data.files import Files
from normbench.errors import BadInput
from normbench.training.datamodule import DataModule
from normbench.training.experiment import Experiment, Training, count_readers
from normbench.training.trainer import build_trainer, prepare


def measure(request: tuple[Cell, Plan], _tell: Callable[[Any], None]) -> float:
    """Images per second of the steps of a training."""
    cell, plan = request
    module, images = prepare(Training(Experiment(cell, plan)))
    build_trainer(module).fit(module, images)
    return module.images_per_second


def feed(request: tuple[Cell, str], _tell: Callable[[Any], None]) -> float:
    """Images per second that a loader makes ready for a network, of an epoch after the first."""
    cell, loader = request
    torch.set_num_threads(cell.trainer.threads)
    if loader != "ffcv" and "jpeg" in cell.data.options:  # that says how FFCV's files are written
        options = {**cell.data.options, "jpeg": None}
        cell = replace(cell, data=replace(cell.data, options=options))
    if loader == "usual":
        images = Experiment(replace(cell, loader="torch")).open_images()
        return _second(_Usual(images, cell.batch, count_readers(cell)))
    images = Experiment(replace(cell, loader=loader)).open_images()  # type: ignore[arg-type]
    return _second(_Ours(images))


def _second(epochs: "_Ours | _Usual") -> float:
    """Images per second of a second pass: in the first, code is compiled and files are cached."""
    for _ in epochs.passed(0):
        pass
    images, started = 0, time.monotonic()
    for batch in epochs.passed(1):
        images += batch
    return images / (time.monotonic() - started)


class _Ours:
    """The chunks of a run, augmented."""

    def __init__(self, images: DataModule) -> None:
        self.images = images
        # However short the training is that the recipe asks for.
        steps = 2 * images.sampler.steps_per_epoch
        images.chunking = replace(images.chunking, steps=steps)

    def passed(self, epoch: int) -> Iterable[int]:
        """The numbers of images that came."""
        for chunk in self.images.read_chunks(epoch):
            ready: Tensor = self.images.on_after_batch_transfer(chunk, 0).images
            yield ready.shape[:3].numel()


class _Usual:
    """The same images by transforms of torchvision in a DataLoader of torch."""

    def __init__(self, images: DataModule, batch: int, processes: int) -> None:
        if not isinstance(images.data, OfFiles):
            raise BadInput("loaders=usual: it is for data sets of files, as data=fashion_mnist")
        pictures = _Pictures(images.data, images.splits.train)
        self.loader = DataLoader(
            pictures, batch, shuffle=True, num_workers=processes, drop_last=True,
            persistent_workers=processes > 0,
        )  # fmt: skip

    def passed(self, _epoch: int) -> Iterable[int]:
        """The numbers of images that came."""
        for images, _ in self.loader:
            yield len(images)


class _Pictures(TorchDataset[tuple[Tensor, int]]):
    """Images one by one, as tensors."""

    def __init__(self, data: OfFiles, part: Part) -> None:
        self.part = part
        _, side, _ = data.trained_image
        mean, std = data.moments
        crop = transforms.RandomResizedCrop(side)
        if isinstance(data, Arrays):
            crop = transforms.RandomCrop(side, padding=data.padding)
        self.transform = transforms.Compose([
            crop, transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.part.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if isinstance(self.part, Split):
            pixels = self.part.images[index].permute(1, 2, 0).numpy()
            picture = Image.fromarray(np.squeeze(pixels))
        else:
            assert isinstance(self.part, Files)
            picture = self.part.picture(index)
        return self.transform(picture), int(self.part.labels[index])
