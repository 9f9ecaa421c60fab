"""Runs that begin with another one: their seeds share an entry, and their starts are on an axis."""

from dataclasses import replace
from typing import Any

import pytest

from normbench.report.pivot import tables
from normbench.report.table import Table
from normbench.report.table_spec import spec
from normbench.results import Row
from support.rows import batch_size_tables, config, run

SPEC: dict[str, Any] = {
    "title": "A table",
    "metric": "test_top1",
    "rows": {"SN": {"norm": "sn"}},
    "columns": {"many": {"start.batch": 32}, "few": {"start.batch": 2}},
}


def begun(batch: int, seed: int, top1: float, **start: Any) -> Row:
    """A run that began with one of `batch` images per worker and its own seed."""
    begin = f"{100 * batch + seed:012x}@last"
    made = run("sn", 8, seed, top1, options=f"init_from={begin}", start={"batch": batch, **start})
    return replace(made, config={**config(vars(made)), "init_from": begin})


RUNS = [
    *(begun(32, seed, 70.0 + seed) for seed in range(3)),
    *(begun(2, seed, 60.0 + seed) for seed in range(2)),
]


def test_seeds_share_an_entry_and_starts_do_not() -> None:
    (table,) = tables([spec("made", SPEC)], RUNS, None)
    ((many, few),) = table.lines.values()
    assert many.values == {0: 70.0, 1: 71.0, 2: 72.0}
    assert few.values == {0: 60.0, 1: 61.0}
    assert not many.older
    assert not few.older


def test_a_table_of_axes_is_one_for_each_start() -> None:
    made = batch_size_tables(RUNS)
    assert sorted(len(table.runs) for table in made) == [2, 3]
    assert {titles(table) for table in made} == {"start.batch=2", "start.batch=32"}


def titles(table: Table) -> str:
    """The words of the setting that tell what the runs began with."""
    (word,) = (each for each in table.setting["options"].split() if each.startswith("start."))
    return str(word)


@pytest.mark.parametrize("start", [{}, {"recipe": "demo"}])
def test_another_description_is_another_setting(start: dict[str, Any]) -> None:
    found = tables([spec("made", SPEC)], [*RUNS, begun(2, 7, 50.0, **start)], None)
    assert len(found) == (2 if start else 1)
