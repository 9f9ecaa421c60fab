"""Cells of small, long and interrupted trainings, composed from words of a command line."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from normbench.catalog import model, normalizer
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.config.plan import Plan
from normbench.errors import Impossible
from normbench.records.history import CurveRecord
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.experiment import Experiment
from normbench.training.trainer import train
from normbench.training.training import Listener, Training

PLUGIN = Path(__file__).parents[1] / "plugin"

#: A training of a quarter of a second on one thread.
SHORT = ("recipe.images=2560", "logger=none", "trainer=cpu")
#: A training of hours, for tests that stop it.
LONG = ("recipe.images=100000000", "logger=none", "trainer=cpu")
#: A training of two seconds that writes a checkpoint after every chunk of 5 steps.
RESUMABLE = (
    "recipe.images=12800", "logger=none", "trainer=cpu", "trainer.chunk=5", "checkpoint.every=0",
)  # fmt: skip
#: Adds the normalizers of tests/plugin/conf, most of which fail on purpose.
BROKEN = ("--config-dir", str(PLUGIN / "conf"))


def composed(*arguments: str) -> Cell:
    """Return the one cell of a command line, whatever its files say now."""
    (only,), _ = compose(list(arguments))
    return only


@cache
def cell(*arguments: str) -> Cell:
    """Return the one cell of a command line, composed once for all tests."""
    return composed(*arguments)


def run_folder(*arguments: str) -> Path:
    """Return the folder of a command line's one run, relative to the working directory."""
    return Path("runs") / "default" / cell(*arguments).id


def network_for(norm: str) -> dict[str, Any]:
    """Return options of a small network that can be trained with `norm`."""
    for options in (
        {"name": "resnet14"},
        {"name": "resnet14_v2"},
        {"name": "resnet14", "stem_stride": 1},
    ):
        try:
            with torch.device("meta"):
                network = model(norm=normalizer(norm), num_classes=10, in_chans=1, **options)
                network(torch.empty(8, 1, 8, 8))
        except Impossible:
            continue
        return options
    raise LookupError(f"no network of these tests takes {norm}")


def arguments_for(norm: str) -> list[str]:
    """Return `norm` and a small network for it as arguments of a command line."""
    options = network_for(norm)
    more = [f"model.{key}={value}" for key, value in options.items() if key != "name"]
    return [f"norm={norm}", f"model={options['name']}", *more]


class Interrupted(Exception):  # noqa: N818
    """A listener has stopped the training."""


class Curve(Listener):
    """Records of a training, which it may interrupt.

    Args:
        last_step: the training is interrupted when it reports this step or a later one.
    """

    def __init__(self, last_step: int | None = None) -> None:
        self.records: list[CurveRecord] = []
        self.last_step = last_step

    def on_record(self, record: CurveRecord) -> None:
        self.records.append(record)

    def on_progress(self, done: int, steps: int, loss: float) -> None:
        if self.last_step is not None and done >= self.last_step:
            raise Interrupted


def train_cell(
    cell: Cell,
    plan: Plan | None = None,
    checkpoints: Checkpoints | None = None,
    state: State | None = None,
) -> tuple[dict[str, Any], list[CurveRecord]]:
    """Train, and return the fields of the row and the curve, without times, speed and memory."""
    curve = Curve()
    fields = train(Training(Experiment(cell, plan), curve, checkpoints, state))
    measured = ("seconds", "images_per_second", "peak_memory", "device_memory", "devices")
    return {key: value for key, value in fields.items() if key not in measured}, curve.records
