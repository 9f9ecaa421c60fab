"""Confidence of intervals: 95 % with the planned number of seeds, 99.9 % with any other.

Whoever adds seeds until a claim is decided looks at many intervals, of which one may decide by
chance. So only one look has the full level: that with the number of seeds in the sweep's file or,
where no file names several, in the command that trained all of them. docs/statistics.md has the
error of this rule.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from normbench.config.files import SWEEPS, load, names
from normbench.errors import DamagedFile, leave_out
from normbench.report.statistics import CONFIDENCE
from normbench.report.table import Entry
from normbench.results import Row

UNPLANNED = 0.999
WITHOUT_PLAN = 3  # seeds, where neither a file of sweeps/ nor the command names several
UNPLANNED_TEXT = "99.9 % interval, because the number of seeds is not the planned one"


def configuration(row: Row) -> str:
    """Return the text of everything but the seed that is meant to change the numbers of a run."""
    return json.dumps({k: v for k, v in row.config.items() if k != "seed"}, sort_keys=True)


def confidence(entries: Iterable[Entry]) -> float:
    """Return the confidence of an interval from these entries."""
    planned = all(is_planned(len(entry.values), entry.source_runs) for entry in entries)
    return CONFIDENCE if planned else UNPLANNED


def verdict_level(entries: Iterable[Entry]) -> float:
    """Return the confidence of a verdict on entries, which may be the best of several."""
    return confidence(each for entry in entries for each in (entry, *entry.known_rivals))


def is_planned(seeds: int, rows: Sequence[Row]) -> bool:
    """Return True if the results of `seeds` were planned by the sweep or command of these rows."""
    return seeds in _planned_numbers(rows)


def next_planned(entry: Entry) -> tuple[int, int] | None:
    """Return the next planned number of seeds of an entry, and the seeds of its command.

    The latter is the `command_seeds` that the missing rows need: rows that were typed one by one
    are completed one by one, others by the command that names all of their seeds. None if the entry
    has all planned seeds, or none are planned.
    """
    rows = entry.source_runs
    numbers = [number for number in _planned_numbers(rows) if number > len(entry.values)]
    if not numbers:
        return None
    by_file = any(named_seeds(row.sweep) for row in rows)
    return min(numbers), min(numbers) if by_file or _typed(rows) else 1


def _planned_numbers(rows: Sequence[Row]) -> frozenset[int]:
    """Return the planned numbers of seeds; none if commands that named several disagree.

    Of a file whose parts have different numbers, that which the command had for these runs.
    """
    named = frozenset().union(*(named_seeds(row.sweep) for row in rows))
    typed = _typed(rows)
    if named:
        return frozenset({max(named & typed)}) if named & typed else named
    if not typed:
        return frozenset({WITHOUT_PLAN})
    return typed if len(typed) == 1 else frozenset()


def _typed(rows: Sequence[Row]) -> frozenset[int]:
    """Return the numbers of seeds in the commands of the runs; none if no number is a plan.

    0 stands for the rows that do not say it beside others that do.
    """
    typed = {row.command_seeds for row in rows}  # None: an older row, which does not say
    # A single seed has no interval, so whoever has typed one first has not looked at any.
    if len({row.seed for row in rows if row.command_seeds == 1}) == 1:
        typed -= {1}
    return frozenset() if typed <= {1, None} else frozenset(each or 0 for each in typed)


@cache
def named_seeds(sweep: str) -> frozenset[int]:
    """Return the numbers of seeds, if several, in the file of a sweep; parts of a grid may differ.

    A damaged file is left out.
    """
    named: list[set[int]] = []
    if sweep in names(SWEEPS):
        try:
            named = [*_named_seeds(load(SWEEPS / f"{sweep}.yaml"))]
        except DamagedFile as damage:
            leave_out(damage)
    # A cell may have seeds of several parts of the grid.
    numbers = {*map(len, named), len(set().union(*named))}
    return frozenset(numbers - {0, 1})


def _named_seeds(content: Any) -> Iterator[set[int]]:
    """Yield the seeds of every key `seed`, at any depth."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key == "seed":
                yield _parse_seeds(str(value))
            else:
                yield from _named_seeds(value)
    elif isinstance(content, list):
        for part in content:
            yield from _named_seeds(part)


def _parse_seeds(text: str) -> set[int]:
    """Return the seeds of `0,1,2` or `range(0,3)`; none of another expression of Hydra's."""
    bounds = re.fullmatch(r"range\(([\d, ]+)\)", text)
    try:
        numbers = [int(part) for part in (bounds[1] if bounds else text).split(",")]
        return set(range(*numbers)) if bounds else set(numbers)
    except (ValueError, TypeError):
        return set()
