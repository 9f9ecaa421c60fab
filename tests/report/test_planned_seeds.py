"""The level of an interval: full with the number of seeds that a sweep names, else stricter."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from normbench.config.compose import compose
from normbench.config.files import SWEEPS, names
from normbench.errors import LeftOut
from normbench.report import planned_seeds as module
from normbench.report.planned_seeds import UNPLANNED_TEXT, confidence, named_seeds
from normbench.report.recommendation import recommendations
from normbench.report.recommendation_text import sentences
from normbench.report.statistics import welch_contrast
from normbench.results import Row
from support.claims import verdict
from support.rows import batch_size_tables, runs


@pytest.mark.parametrize(
    ("sweep", "numbers"),
    [
        ("evonorm_9_small", {3}),
        ("proxy_norm_15", {10}),
        ("proxy_norm_3_small", {3}),
        ("four_things_decay", {3, 10}),  # parts of its grid have 10, 3 and 1
        ("sn_ratios", {2, 3}),  # seed 0, and 1 and 2 of the same cell
        ("evonorm_9", set()),  # one seed is no plan
        ("default", set()),  # runs that no sweep file has started
        ("somebodys_own", set()),
    ],
)
def test_a_plan_is_the_number_of_seeds_in_the_file_of_a_sweep(
    sweep: str, numbers: set[int]
) -> None:
    assert named_seeds(sweep) == numbers


def test_every_sweep_with_several_seeds_has_a_plan() -> None:
    """Those that name one seed are too large for several."""
    for sweep in names(SWEEPS):
        text = (SWEEPS / f"{sweep}.yaml").read_text()
        several = re.search(r"\bseed: (range|\d+,)", text) is not None
        assert bool(named_seeds(sweep)) == several, sweep
        assert max(named_seeds(sweep), default=2) <= 10


@pytest.mark.parametrize(
    ("seeds", "numbers"),
    [
        ("range(0,4)", {4}), ("range(1, 9, 2)", {4}), ("range(5)", {5}), ("7,8", {2}),
        ("choice(1,2)", set()), ("range(1,2,3,4)", set()), ("range(a,b)", set()), ("0", set()),
    ],
)  # fmt: skip
def test_seeds_are_counted_in_hydras_ways_to_write_them(
    seeds: str, numbers: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEPS", tmp_path)
    (tmp_path / "own.yaml").write_text(f"hydra: {{sweeper: {{params: {{seed: '{seeds}'}}}}}}\n")
    assert named_seeds.__wrapped__("own") == numbers


def test_a_damaged_sweep_is_named_and_has_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEPS", tmp_path)
    (tmp_path / "own.yaml").write_text("hydra: [")
    with pytest.warns(LeftOut, match="own.yaml line 2"):
        assert named_seeds.__wrapped__("own") == set()


NOISE = (-0.3, 0.0, 0.3, 0.1, -0.1)


def two(first: int, second: int, sweep: str = "default") -> list[Row]:
    """Runs of bn and gn, a point apart, with so many seeds."""
    bn = runs("bn", 4, [75.0 + each for each in NOISE[:first]], sweep=sweep)
    return [*bn, *runs("gn", 4, [74.0 + each for each in NOISE[:second]], sweep=sweep)]


@pytest.mark.parametrize(
    ("rows", "level"),
    [
        (two(3, 3), 0.95), (two(2, 2), 0.999), (two(5, 5), 0.999), (two(3, 4), 0.999),
        (two(5, 5, "nf_1"), 0.95), (two(3, 3, "nf_1"), 0.999),
    ],
)  # fmt: skip
def test_a_claim_has_its_full_level_with_the_planned_number_of_seeds(
    rows: Sequence[Row], level: float
) -> None:
    result = verdict(rows, higher=[["BN", 4], ["GN", 4]])
    values = {norm: [r.test_top1 or 0 for r in rows if r.norm == norm] for norm in ("bn", "gn")}
    assert result.effect == welch_contrast([(1.0, values["bn"]), (-1.0, values["gn"])], level)
    assert (result.reason == UNPLANNED_TEXT) == (level == 0.999)


@pytest.mark.parametrize(
    ("typed", "seeds", "sweep", "level"),
    [
        ([5], 5, "default", 0.95), ([5], 4, "default", 0.999), ([5], 3, "default", 0.999),
        ([3, 5], 5, "default", 0.999), ([3, 3, 3, 5], 5, "default", 0.999),
        ([1], 3, "default", 0.95), ([1, 3], 3, "default", 0.95), ([1, 1, 3], 3, "default", 0.999),
        ([1], 5, "default", 0.999), ([None], 3, "default", 0.95),
        ([None, 5], 5, "default", 0.999), ([5], 5, "evonorm_9_small", 0.999),
        ([5], 3, "evonorm_9_small", 0.95),
        # Parts of this file have 10 and 3 seeds: the command tells of which part the runs are.
        ([10], 3, "four_things_decay", 0.999), ([3], 3, "four_things_decay", 0.95),
    ],
)  # fmt: skip
def test_a_plan_without_a_file_is_the_number_of_seeds_in_the_command_of_all(
    typed: list[int | None], seeds: int, sweep: str, level: float
) -> None:
    planned = [*typed, *typed[-1:] * 10]
    rows = [replace(row, command_seeds=planned[row.seed]) for row in two(seeds, seeds, sweep)]
    (table,) = batch_size_tables(rows)
    assert confidence(table.entries) == level


def test_a_command_tells_its_rows_how_many_seeds_it_has() -> None:
    cells, _ = compose(["-m", "norm=bn,gn", "batch=4,8", "seed=0,3,5", "data.val=0.1,0.2"])
    assert {cell.description("default")["command_seeds"] for cell in cells} == {3}
    assert len(cells) == 24


@pytest.mark.parametrize(("rows", "planned"), [(two(3, 3), True), (two(4, 3), False)])
def test_so_has_the_recommendation(rows: list[Row], planned: bool) -> None:
    (table,) = batch_size_tables(rows)
    said = sentences(table, recommendations(table))[0]
    assert (" Significantly worse: gn" in said) == planned
    mark = " 99.9 % intervals, because the number of seeds is not the planned one: gn."
    assert said.endswith(mark) != planned
