"""Tuned entries: held-out images choose a value of an option, test images give its number."""

from dataclasses import replace
from typing import Any

import pytest

from normbench.errors import DamagedFile
from normbench.report.footnotes import footnotes
from normbench.report.pivot import tables
from normbench.report.table import Entry, Table
from normbench.report.table_spec import spec
from normbench.results import Row
from support.rows import config, run

SPEC: dict[str, Any] = {
    "title": "A tuned table",
    "metric": "test_top1",
    "tune": "recipe.lr",
    "rows": {
        "BN": {"norm": "bn"},
        "GN": {"norm": "gn"},
        "GN at 0.1": {"norm": "gn", "recipe.lr": 0.1},
        "GN - BN": {"minus": ["GN", "BN"]},
    },
    "columns": {"2": {"batch": 2}, "32": {"batch": 32}},
}


def run_with_rate(
    norm: str, batch: int, lr: float, val: float | None, test: float, seed: int = 0
) -> Row:
    """A run with an accuracy on held-out images, which took an hour; None: it diverged."""
    made = run(norm, batch, seed, test, options=f"recipe.lr={lr}", val_top1=val, seconds=3600.0)
    made = replace(made, id=f"{norm}{batch}{lr}{seed}", config=config(vars(made)))
    made.config["recipe"]["lr"] = lr
    return made if val is not None else replace(made, status="diverged", test_top1=None)


RUNS = [
    # The best on held-out images is not the best on test images.
    *(run_with_rate("bn", 2, lr, val, test) for lr, val, test in
      [(0.1, 60.0, 75.0), (0.2, 70.0, 71.0), (0.4, 65.0, 69.0)]),
    *(run_with_rate("bn", 32, lr, val, test) for lr, val, test in
      [(0.1, 70.0, 70.0), (0.2, 71.0, 71.0), (0.4, 72.0, 72.0)]),
    *(run_with_rate("gn", batch, lr, val, test) for batch in (2, 32) for lr, val, test in
      [(0.1, 80.0, 80.0), (0.2, 82.0, 81.0), (0.4, 81.0, 82.0)]),
]  # fmt: skip


def tuned_table(rows: list[Row], **changes: Any) -> Table:
    (table,) = tables([spec("tuned", SPEC | changes)], rows)
    return table


def entries_of(table: Table, row: str) -> list[Entry]:
    return [*table.lines[(row,)]]


def test_held_out_images_choose_and_test_images_count() -> None:
    table = tuned_table(RUNS)
    assert [entry.center for entry in entries_of(table, "BN")] == [71.0, 72.0]
    assert [entry.center for entry in entries_of(table, "GN")] == [81.0, 81.0]
    assert [entry.center for entry in entries_of(table, "GN at 0.1")] == [80.0, 80.0]
    assert [entry.center for entry in entries_of(table, "GN - BN")] == [10.0, 9.0]
    assert not any(entry.older for entry in table.entries)


def rates_of_bn(table: Table) -> set[float]:
    """The learning rate of BN at 2 images."""
    return {row.config["recipe"]["lr"] for row in entries_of(table, "BN")[0].runs}


def bn_at_2(*scores: tuple[float, list[float | None]]) -> list[Row]:
    """Runs of BN at 2 images: for each learning rate the scores of its seeds."""
    return [
        run_with_rate("bn", 2, lr, val, 70.0, seed)
        for lr, of_seeds in scores
        for seed, val in enumerate(of_seeds)
    ]


@pytest.mark.parametrize(
    ("scores", "rate"),
    [
        ([(0.1, [60.0, 90.0]), (0.2, [70.0, 70.0])], 0.1),  # the mean
        ([(0.1, [99.0]), (0.2, [70.0, 70.0]), (0.4, [60.0, 70.0])], 0.2),  # of all seeds
        ([(0.1, [99.0, None]), (0.2, [70.0, 70.0])], 0.2),  # none failed
        ([(0.1, [None, None]), (0.2, [70.0, None]), (0.4, [60.0, None])], 0.2),  # the fewest failed
    ],
)
def test_the_best_mean_of_the_most_seeds_is_chosen(
    scores: list[tuple[float, list[float | None]]], rate: float
) -> None:
    assert rates_of_bn(tuned_table(bn_at_2(*scores))) == {rate}


def test_of_a_changed_yaml_the_latest_runs_are_compared() -> None:
    latest = [replace(row, finished="2") for row in bn_at_2((0.1, [60.0]), (0.2, [70.0]))]
    older = [replace(row, id=f"{row.id}old", finished="1") for row in bn_at_2((0.1, [99.0]))]
    for row in older:
        row.config["norm"]["eps"] = 1e-3
    table = tuned_table(latest + older)
    assert rates_of_bn(table) == {0.2}
    assert entries_of(table, "BN")[0].older == 1


def test_a_table_appears_if_one_of_its_runs_is_new_but_not_chosen() -> None:
    (table,) = tables([spec("tuned", SPEC)], RUNS, {"gn20.40"})
    assert "gn20.40" not in {row.id for row in table.runs}


def test_shared_runs_cost_nothing() -> None:
    shared = [replace(row, shared_with="x") if row.batch == 32 else row for row in RUNS]
    assert "All 6 trained runs took 6.0 hours" in "\n".join(footnotes(tuned_table(shared)))


def test_missing_entries_keep_their_columns() -> None:
    notes = "\n".join(footnotes(tuned_table([row for row in RUNS if row.batch == 32])))
    assert "BN –, 0.4; GN –, 0.2." in notes


def test_the_lowest_error_is_chosen() -> None:
    rows = [
        replace(
            row,
            metric="test_rms",
            metrics={"val_rms": row.val_top1 or 0.0, "test_rms": row.test_top1 or 0.0},
        )
        for row in RUNS
    ]
    table = tuned_table(rows, metric="test_rms")
    assert [entry.center for entry in entries_of(table, "BN")] == [75.0, 70.0]


def test_a_table_with_single_values_is_left_out() -> None:
    single = [row for row in RUNS if row.config["recipe"]["lr"] == 0.1]
    assert tables([spec("tuned", SPEC)], single) == []


def test_runs_of_a_choice_are_in_no_other_table_of_ours() -> None:
    axes = {"title": "All", "metric": "test_top1", "rows": "norm", "columns": "batch"}
    both = tables([spec("tuned", SPEC), spec("all", axes)], RUNS)
    assert [table.spec.name for table in both] == ["tuned"]


def test_the_notes_of_a_table_of_ours_are_shown() -> None:
    assert "As typed." in footnotes(tuned_table(RUNS, notes=["As typed."]))


def test_notes_say_what_was_chosen_and_what_it_cost() -> None:
    notes = "\n".join(footnotes(tuned_table(RUNS)))
    assert "recipe.lr is tuned" in notes
    assert "BN 0.2, 0.4; GN 0.2, 0.2." in notes
    assert "one beyond may be better: BN at 32." in notes
    assert "All 12 trained runs took 12.0 hours, of which the 6 shown took 6.0." in notes
    assert "No value could" not in notes
    assert "tuned" not in "\n".join(footnotes(tuned_table(RUNS[:1], tune="")))


def test_without_held_out_images_nothing_is_chosen() -> None:
    notes = "\n".join(footnotes(tuned_table([replace(row, val_top1=None) for row in RUNS])))
    names = "BN at 2, BN at 32, GN at 2 and GN at 32"
    assert f"No value could be chosen for {names}, whose runs failed or have no held-out" in notes
    assert "one beyond may be better" not in notes


def test_an_unknown_option_is_refused() -> None:
    for option, says in [("lr.peak", "lr.peak is no option of a run"), ("lr", "as recipe.lr")]:
        with pytest.raises(DamagedFile, match=says):
            spec("tuned", SPEC | {"tune": option})
