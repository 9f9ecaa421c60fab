"""What can be known before any training: whether each cell's data is there and its network runs.

Runs once, in a process of its own, before the first run starts. Networks are built on the meta
device, where shapes are computed and no numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from normbench import catalog
from normbench.cells import Accelerator, Cell, Choice
from normbench.errors import BadInput, Impossible
from normbench.norms.workers import set_workers
from normbench.training import host_memory


@dataclass(frozen=True)
class Verdicts:
    """What the check found.

    Args:
        impossible: for each cell why it cannot work, or nothing.
        accelerator: what trainer=auto means here.
        gpus: CUDA devices.
        memory: bytes of the device.
    """

    impossible: list[str]
    accelerator: Accelerator
    gpus: int
    memory: int


def check(cells: list[Cell], _tell: Callable[[Any], None]) -> Verdicts:
    """Look at every cell.

    Raises:
        BadInput: an option, a file or a size that no run can use.
    """
    gpus = torch.cuda.device_count()
    found: Accelerator = "gpu" if gpus else "cpu"
    # Seeds, and often batches, differ where data and networks do not: look at each once.
    sized = cache(_train_images)
    tried = cache(_try)
    reasons = []
    for cell in cells:
        _require_device(cell, gpus)
        for group in ("reg", "recipe"):
            catalog.build(group, getattr(cell, group).options)
        _require_images(cell, sized(_Key(cell.data)))
        reasons.append(tried(_Key(cell.norm), _Key(cell.model), _Key(cell.data), cell.batch))
    return Verdicts(reasons, found, gpus, _memory(found))


def _memory(accelerator: Accelerator) -> int:
    """Bytes of the device that runs train on."""
    if accelerator == "gpu":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return host_memory()


class _Key:
    """A choice that can stand in a cache: equal by name and options."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.key = (choice.name, repr(sorted(choice.options.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _train_images(data: _Key) -> int:
    return len(catalog.build("data", data.choice.options).splits().train.labels)


def _try(norm: _Key, model: _Key, data: _Key, batch: int) -> str:
    """Why one worker's forward pass of training cannot work, or nothing."""
    images = catalog.build("data", data.choice.options)
    with torch.device("meta"):
        network = catalog.build(
            "model",
            model.choice.options,
            norm=catalog.build("norm", norm.choice.options),
            num_classes=images.classes,
            in_chans=images.image[0],
        )
        try:
            set_workers(network, 1)
            network.train()(torch.empty(batch, *images.image))
        except Impossible as reason:
            return str(reason)
    return ""


def _require_images(cell: Cell, images: int) -> None:
    if cell.global_batch > images:
        raise BadInput(
            f"batch={cell.batch}: {cell.workers} workers of {cell.batch} images make a global "
            f"batch of {cell.global_batch}; data={cell.data.name} has {images} training images "
            f"(data.val={cell.data.options['val']} held out); choose less"
        )


def _require_device(cell: Cell, gpus: int) -> None:
    if cell.trainer.accelerator == "gpu" and not gpus:
        raise BadInput("trainer=gpu: no CUDA device is visible; trainer=cpu or trainer=auto works")
    on_cpu = cell.trainer.accelerator == "cpu" or not gpus
    if cell.precision == "16-mixed" and on_cpu:
        raise BadInput("precision=16-mixed needs a CUDA device; on the CPU bf16-mixed works")
