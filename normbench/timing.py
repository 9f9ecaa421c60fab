"""How fast a plan trains: the measuring half of `normbench.bench`, which runs where torch is."""

from collections.abc import Callable
from typing import Any

from normbench.cells import Cell
from normbench.plan import Plan
from normbench.training import prepare, trainer_of


def measure(request: tuple[Cell, Plan], _tell: Callable[[Any], None]) -> float:
    """Images per second of the steps of a training."""
    cell, plan = request
    task, loaders = prepare(cell, _silent, _silent, plan=plan)
    trainer_of(cell, task, loaders).fit(task, loaders)
    return task.images_per_second


def _silent(*_: object) -> None:
    """Nobody listens."""
