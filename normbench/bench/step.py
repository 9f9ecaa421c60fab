"""What the harness adds to an optimizer step: a training over a bare loop of PyTorch.

Both take the same steps on the same images of one cell, from the same loader, in one process and in
turn; processor time is what counts. The bare loop has forward, cross-entropy, backward, optimizer
and schedule; the training has all that a run has but validation, so also what reg and an average of
the weights add, where they are asked for.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from torch.nn import functional as F

from normbench.bench.measured import Once, in_turn, leave, taken
from normbench.cells import Cell
from normbench.compose import compose
from normbench.errors import BadInput, counted
from normbench.training import prepare, trainer_of

OWN = {"rounds": "7", "steps": "300", "threads": "1", "out": ""}
#: The least that a network can be, so that the harness is all there is.
SMALLEST = ("model=resnet18_cifar", "model.depths=[1]", "model.strides=[2]", "model.width=1")


def bench(words: Sequence[str]) -> None:
    """As the command says."""
    own, rest = taken(words, OWN)
    torch.set_num_threads(counted("threads", own["threads"], 1))
    rounds, steps = counted("rounds", own["rounds"], 7), counted("steps", own["steps"], 300)
    lines = []
    others = [word for word in rest if not re.match(r"model[.=]", word)]
    for name, of in {"smallest": (*others, *SMALLEST), "as typed": rest}.items():
        cell = cell_of(of, steps)
        entries: dict[str, Once] = {
            "bare loop": partial(_bare, cell), "bare again": partial(_bare, cell),
            "normbench": partial(_ours, cell),
        }  # fmt: skip
        found = in_turn(entries, rounds)
        base = found["bare loop"].median
        lines += [
            {
                "network": name, "cell": cell.title, "loop": loop, **took.over(base),
                "microseconds": 1e6 * took.median, "more": 1e6 * (took.median - base),
            }
            for loop, took in found.items()
        ]  # fmt: skip
    leave(own["out"], lines)


def cell_of(words: Sequence[str], steps: int) -> Cell:
    """One cell of one worker, a training of so many steps."""
    fixed = ("data.val=0", "trainer=cpu", "logger=none", "protocol=fixed_workers", "workers=1")
    cells, _ = compose([*words, *fixed])
    if len(cells) != 1:
        raise BadInput("one cell is timed; this is a grid")
    (cell,) = cells
    length = {"images": steps * cell.batch, "epochs": None}
    options = {**cell.recipe.options, **length}
    return replace(cell, recipe=replace(cell.recipe, options=options))


class _Clock(Callback):
    """Processor seconds between the beginning of the first step and the end of the last one."""

    seconds = 0.0

    def on_train_start(self, *_: Any) -> None:
        self.seconds = -time.process_time()

    def on_train_end(self, *_: Any) -> None:
        self.seconds += time.process_time()


def _ours(cell: Cell) -> float:
    """Processor seconds of a step of the training."""
    task, loaders = prepare(cell)
    return fitted(trainer_of(cell, task, loaders), task, loaders) / task.steps


def fitted(trainer: Trainer, module: LightningModule, images: LightningDataModule) -> float:
    """Processor seconds from the first step of a training to the last."""
    clock = _Clock()
    trainer.callbacks.append(clock)  # type: ignore[attr-defined]
    trainer.fit(module, images)
    return clock.seconds


def _bare(cell: Cell) -> float:
    """Processor seconds of a step of the loop that one would write by hand."""
    task, loaders = prepare(cell)
    network = task.model.train()
    optimizer = task.recipe.optimizer(network, cell.global_batch)
    schedule = task.recipe.scheduler(optimizer, task.steps)
    done, epoch, started = 0, 0, time.process_time()
    while done < task.steps:
        for chunk in loaders.chunks(epoch):
            ready = loaders.on_after_batch_transfer(chunk, 0)
            steps = ready.images.flatten(0, 1), ready.labels.flatten(0, 1)
            for images, labels in zip(*steps, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(network(images), labels).backward()
                optimizer.step()
                schedule.step()
                done += 1
        epoch += 1
    return (time.process_time() - started) / task.steps
