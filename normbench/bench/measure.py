"""Shared by all benchmarks: measurements in turn, medians, and the file of numbers."""

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tabulate import tabulate

from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.errors import BadInput
from normbench.execution.provenance import commit, now, processor, versions

Timer = Callable[[], float]  # does the work once; returns seconds, or images per second


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of measurements."""

    lower: float
    median: float
    upper: float

    def over(self, base: float) -> dict[str, float]:
        """Return the quartiles as ratios to `base`."""
        return {
            "ratio": self.median / base, "lower": self.lower / base, "upper": self.upper / base,
        }  # fmt: skip


def compose_cell(words: Sequence[str]) -> Cell:
    """Return the one cell of `words`.

    Raises:
        BadInput: they are of a grid.
    """
    cells, _ = compose([*words])
    if len(cells) != 1:
        raise BadInput("one cell is timed; this is a grid")
    return cells[0]


def measure_in_turn(
    entries: Mapping[str, Timer], rounds: int, *, warm_up: bool = True
) -> dict[str, Quartiles]:
    """Measure each entry once a round, so that a noisy moment affects all of them."""
    if warm_up:  # a first round, in which code is compiled and memory allocated, does not count
        for once in entries.values():
            once()
    values: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(rounds):
        for name, once in entries.items():
            values[name].append(once())
    return {name: quartiles(measured) for name, measured in values.items()}


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of at least one number."""
    return Quartiles(*np.quantile(values, (0.25, 0.5, 0.75)).tolist())


def compare(
    results: Mapping[str, Quartiles], name: str, unit: str, scale: float = 1, **columns: object
) -> list[dict[str, object]]:
    """Return a line for each of `results` with ratios to the first of them.

    `name` and `unit` are the columns of the names and of the medians, which are multiplied by
    `scale`, as 1000 for milliseconds. `columns` are the same in every line and come first.
    """
    base = next(iter(results.values())).median
    return [
        {**columns, name: entry, **result.over(base), unit: scale * result.median}
        for entry, result in results.items()
    ]


def save(out: Path | None, lines: Sequence[Mapping[str, object]]) -> None:
    """Print the lines; write them to the CSV `out`, if any, with machine and versions."""
    print(tabulate([[_round_digits(v) for v in line.values()] for line in lines], [*lines[0]]))
    if out is None:
        return
    installed = versions()
    origin = {
        "machine": _machine(), "torch": installed["torch"], "timm": installed["timm"],
        "commit": commit(), "measured": now(),
    }  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*lines[0], *origin], lineterminator="\n")
        writer.writeheader()
        for line in lines:
            writer.writerow(
                {key: _round_digits(value) for key, value in {**line, **origin}.items()}
            )
    print(out)


def _round_digits(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _machine() -> str:
    """Return the number of cores, and the processor."""
    return f"{os.cpu_count()} x {processor()}"
