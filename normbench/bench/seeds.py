"""Processor time of stacked seeds over the same seeds one after the other.

Trainings of one cell with one worker, in one process and in turn, from the first step to the last.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from normbench.bench.measure import Timer, compare, measure_in_turn, save
from normbench.bench.options import BenchSeedsOptions
from normbench.bench.step import cell_of, time_training
from normbench.config.cells import Cell
from normbench.training.experiment import Experiment
from normbench.training.seed_stacking import StackedDataModule, StackedTrainingModule
from normbench.training.trainer import build_trainer, prepare
from normbench.training.training import Training


def bench_seeds(options: BenchSeedsOptions, words: Sequence[str]) -> None:
    """Time stacked seeds over the same seeds one after the other."""
    torch.set_num_threads(options.threads)
    cell = cell_of(words, options.steps)
    lines = []
    for number in options.seeds:
        seeds = [replace(cell, seed=seed) for seed in range(number)]
        entries: dict[str, Timer] = {
            "one after the other": partial(_time_in_turn, seeds),
            "stacked": partial(_time_stacked, seeds),
        }
        timings = measure_in_turn(entries, options.rounds)
        lines += compare(timings, "how", "milliseconds", 1e3, cell=cell.title, seeds=number)
    save(options.out, lines)


def _time_in_turn(seeds: Sequence[Cell]) -> float:
    """Return processor seconds of a step of each seed, summed."""
    total = 0.0
    for cell in seeds:
        module = prepare(Training(Experiment(cell)))
        total += time_training(build_trainer(module), module, module.datamodule)
    return total / module.steps


def _time_stacked(seeds: Sequence[Cell]) -> float:
    """Processor seconds of a step of all."""
    modules = [prepare(Training(Experiment(cell))) for cell in seeds]
    stacked = StackedTrainingModule(modules)
    seconds = time_training(build_trainer(modules[0]), stacked, StackedDataModule(stacked))
    return seconds / modules[0].steps
