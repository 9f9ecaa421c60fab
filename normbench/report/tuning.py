"""Tuned entries: of several values of an option, that with the best mean on held-out images.

A table with `tune: recipe.lr` takes the runs of each entry from a grid of learning rates. The
held-out images choose the rate of an entry, and the test images give its number. Notes below the
table list the chosen values and the training time of all. A row or column that sets the option
itself is not tuned.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from normbench.errors import count, join_words
from normbench.records.json_fields import flatten
from normbench.report.metrics import metric_of_task
from normbench.report.table import MISSING, Entry, Table
from normbench.results import Row

Runs = tuple[Row, ...]


def choose_value(by_value: Sequence[Runs]) -> Runs:
    """Return the runs of the value with the best mean over seeds on held-out images.

    Only values with the most runs are compared. Of these, those with fewer runs that failed, or
    that have no held-out images, come first.
    """
    most = max(map(len, by_value), default=0)
    complete = [runs for runs in by_value if len(runs) == most]
    return min(complete, key=_rank, default=())


def _rank(runs: Runs) -> tuple[int, float]:
    """Return a key that is lower for better runs."""
    scores = [score for score in _scores(runs) if score is not None]
    sign = 1 if metric_of_task(runs[0]).better == "lower" else -1
    return len(runs) - len(scores), sign * fmean(scores) if scores else 0.0


def _scores(runs: Runs) -> list[Any]:
    """Return the main metric of the task on held-out images; None of a run without."""
    return [_held_out(row) if row.status == "ok" else None for row in runs]


def _held_out(row: Row) -> float | None:
    name = row.metric.replace("test_", "val_", 1)
    return row.val_top1 if name == "val_top1" else row.metrics.get(name)


def is_tuned(table: Table) -> bool:
    """Return True if an entry has runs with two or more values."""
    return any(len(_values(entry, table.spec.tune)) > 1 for entry in table.entries)


def _values(entry: Entry, option: str) -> set[str]:
    return {str(option_of(row, option)) for row in entry.tried}


def tuning_notes(table: Table) -> Iterator[str]:
    """Yield footnotes on the chosen values, those at an end of their grid, and the cost."""
    option = table.spec.tune
    if not option:
        return
    values, ends, unscored = [], [], []
    for row, (label, entries) in zip(table.spec.rows, table.lines.items(), strict=True):
        of_row = []
        for column, entry in zip(table.columns, entries, strict=True):
            if option in row.keys | column.keys or row.minus or column.minus:
                continue
            name = f"{' '.join(label)} at {column}"
            scored = any(score is not None for score in _scores(entry.runs))
            of_row.append(_value(entry.runs, option) if scored else MISSING)
            if entry.runs and not scored:
                unscored.append(name)
            elif _is_at_end(entry, option):
                ends.append(name)
        if {*of_row} - {MISSING}:
            values.append(f"{' '.join(label)} {', '.join(of_row)}")
    if values:
        yield (
            f"{option} is tuned: each entry has the value with the best mean on held-out images. "
            f"{'; '.join(values)}."
        )
    if unscored:
        yield (
            f"No value could be chosen for {join_words(unscored)}, whose runs failed or have no "
            "held-out images (data.val=0); one with the most runs is shown."
        )
    if ends:
        yield (
            "At an end of the values that were tried, so that one beyond may be better: "
            f"{', '.join(ends)}."
        )
    tried = {
        row.id: (row.seconds or 0.0) / row.stacked_seeds
        for entry in table.entries
        for row in entry.tried
        if row.shared_with is None
    }
    shown = tried.keys() & {row.id for row in table.runs}
    hours = [sum(tried.values()) / 3600, sum(tried[id_] for id_ in shown) / 3600]
    yield (
        f"All {count(len(tried), 'trained run')} took {hours[0]:.1f} hours, of which the "
        f"{len(shown)} shown took {hours[1]:.1f}."
    )


def _is_at_end(entry: Entry, option: str) -> bool:
    """Return True if the chosen value is the lowest or the highest of several numbers."""
    numbers = {option_of(row, option) for row in entry.tried}
    if not entry.runs or len(numbers) < 2 or not all(isinstance(n, int | float) for n in numbers):
        return False
    return option_of(entry.runs[0], option) in (min(numbers), max(numbers))


def _value(runs: Runs, option: str) -> str:
    value = option_of(runs[0], option)
    return f"{value:g}" if isinstance(value, float) else str(value)


def option_of(row: Row, option: str) -> Any:
    """Return the value of an option in a row, as recipe.lr; None if the row has none."""
    config: Mapping[str, Any] = flatten(row.config)
    return config.get(option)
