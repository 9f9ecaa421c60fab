"""The ranks of a plan in tests/training/test_plans.py: trainings that record every step.

A record has the gradients, running statistics, updated parameters and their momentum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import Callback
from torch import Tensor

from normbench.config.cells import Cell
from normbench.config.plan import Plan
from normbench.norms.workers import set_workers
from normbench.training.checkpoint import restore_optimizer_state
from normbench.training.experiment import Experiment
from normbench.training.lightning_module import TrainingModule
from normbench.training.trainer import build_trainer, prepare
from normbench.training.training import Training

Mode = Literal["reference", "restarted", "free", "perturbed", "control"]
Seen = dict[str, list[Tensor]]

#: Steps that begin where the reference's did: each is a trial of its own, so that a few will do.
RESTARTS = 6


@dataclass(frozen=True)
class Errand:
    """Trainings of `cells` under one plan; what the reference saw lies in `folder`."""

    mode: Mode
    plan: Plan
    cells: dict[str, Cell]
    folder: Path


class Looking(Callback):
    """Looks at every step; `before` may move the module to where a step shall begin."""

    def __init__(self, before: Callable[[TrainingModule, int], None] | None = None) -> None:
        self.before = before
        self.seen: list[Seen] = []

    def on_train_batch_start(self, trainer: Any, module: Any, chunk: Any, index: int) -> None:
        if self.before is not None:
            self.before(module, index)

    def on_train_batch_end(
        self, trainer: Any, module: Any, out: Any, chunk: Any, index: int
    ) -> None:
        module.average_statistics()  # devices have moved theirs apart, which is no difference
        self.seen.append(look(module))


def look(module: TrainingModule) -> Seen:
    """The tensors after a step, by kind."""
    gradients = [each.grad for each in module.model.parameters()]
    optimizer: Any = module.optimizers(use_pl_optimizer=False)
    momentum = [each["momentum_buffer"] for each in optimizer.state.values()]
    found: dict[str, list[Tensor]] = {
        "gradients": [each for each in gradients if each is not None],
        "buffers": list(module.model.buffers()),
        "parameters": list(module.model.parameters()),
        "momentum": momentum,
    }
    return {name: [each.detach().clone() for each in found[name]] for name in found}


def run(errand: Errand, tell: Callable[[Any], None]) -> dict[str, list[dict[str, float]]]:
    """By name of a normalizer, for each step how far it is from the reference's."""
    return {name: _trained(errand, name, cell) for name, cell in errand.cells.items()}


def _trained(errand: Errand, name: str, cell: Cell) -> list[dict[str, float]]:
    folder = errand.folder / name
    module = prepare(Training(Experiment(cell, errand.plan)))
    looking = Looking(_beginning(errand, folder))
    if errand.mode == "control":
        set_workers(module.model, 1)
    trainer = build_trainer(module)
    trainer.callbacks.append(looking)  # type: ignore[attr-defined]
    if errand.mode in ("restarted", "control"):
        trainer.limit_train_batches = RESTARTS
    trainer.fit(module, module.datamodule)
    if errand.mode == "reference":
        torch.save(looking.seen, folder / "seen.pt")
        return []
    expected = torch.load(folder / "seen.pt")
    length = RESTARTS if errand.mode in ("restarted", "control") else len(expected)
    return [_apart(*pair) for pair in zip(looking.seen, expected[:length], strict=True)]


def _beginning(errand: Errand, folder: Path) -> Callable[[TrainingModule, int], None] | None:
    """What happens before a step: it is written where it begins, or it begins where one began."""

    def write(module: TrainingModule, index: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(module.training_state(), folder / f"{index}.pt")

    def restart(module: TrainingModule, index: int) -> None:
        state = torch.load(folder / f"{index}.pt")
        module.model.load_state_dict(state["model"])
        optimizer: Any = module.optimizers(use_pl_optimizer=False)
        restore_optimizer_state(optimizer, module.model, state["optimizer"])

    def perturb(module: TrainingModule, index: int) -> None:
        first = next(module.model.parameters())
        if index == 0:
            with torch.no_grad():
                first.copy_(torch.nextafter(first, torch.full_like(first, torch.inf)))

    chosen = {
        "reference": write, "restarted": restart, "control": restart, "perturbed": perturb,
    }  # fmt: skip
    return chosen.get(errand.mode)


def _apart(own: Seen, other: Seen) -> dict[str, float]:
    """For each kind of tensor the largest of their distances, relative to the largest value."""
    return {
        name: max([_distance(*pair) for pair in zip(own[name], other[name], strict=True)] or [0.0])
        for name in own
    }


def _distance(own: Tensor, other: Tensor) -> float:
    size = other.abs().max()
    return float((own - other).abs().max() / size) if size else float(own.abs().max())
