"""What seeds gain by being one network: together over one after the other, in processor time.

Trainings of one cell of one worker, in one process and in turn, from the first step to the last.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from normbench.bench.measured import Once, in_turn, leave, taken
from normbench.bench.step import cell_of, fitted
from normbench.config.cells import Cell
from normbench.errors import counted
from normbench.training.experiment import Experiment, Training
from normbench.training.seed_stacking import StackedDataModule, StackedTrainingModule
from normbench.training.trainer import build_trainer, prepare

OWN = {"seeds": "3,8", "rounds": "7", "steps": "300", "threads": "1", "out": ""}


def bench(words: Sequence[str]) -> None:
    """As the command says."""
    own, rest = taken(words, OWN)
    torch.set_num_threads(counted("threads", own["threads"], 1))
    rounds, steps = counted("rounds", own["rounds"], 7), counted("steps", own["steps"], 300)
    cell = cell_of(rest, steps)
    lines = []
    for number in (counted("seeds", word, 3) for word in own["seeds"].split(",")):
        seeds = [replace(cell, seed=seed) for seed in range(number)]
        entries: dict[str, Once] = {
            "one after the other": partial(_in_turn, seeds), "together": partial(_together, seeds),
        }  # fmt: skip
        found = in_turn(entries, rounds)
        base = found["one after the other"].median
        lines += [
            {
                "cell": cell.title, "seeds": number, "how": how, **took.over(base),
                "milliseconds": 1e3 * took.median,
            }
            for how, took in found.items()
        ]  # fmt: skip
    leave(own["out"], lines)


def _in_turn(seeds: Sequence[Cell]) -> float:
    """Processor seconds of a step of each."""
    total = 0.0
    for cell in seeds:
        module, images = prepare(Training(Experiment(cell)))
        total += fitted(build_trainer(module), module, images)
    return total / module.steps


def _together(seeds: Sequence[Cell]) -> float:
    """Processor seconds of a step of all."""
    modules = [prepare(Training(Experiment(cell)))[0] for cell in seeds]
    stacked = StackedTrainingModule(modules)
    seconds = fitted(build_trainer(modules[0]), stacked, StackedDataModule(stacked))
    return seconds / modules[0].steps
