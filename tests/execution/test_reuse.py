"""Rows that cells of the same computation share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normbench import results, run_files
from normbench.execution.reuse import copy_row, shareable_rows
from normbench.records.history import History, read_history
from normbench.records.hits import write_hits
from normbench.results import Row
from support.cells import cell


def trained(*words: str) -> Row:
    """The row of a trained cell whose computation does not depend on the workers."""
    trained_cell = cell(*words)
    fields = trained_cell.description("first")
    return Row(**fields, status="ok", test_top1=90.0, computation=trained_cell.computation)


def test_trained_rows_of_a_computation_can_be_shared() -> None:
    row = trained("norm=gn", "batch=4")
    assert shareable_rows([row]) == {row.computation: row}
    diverged = replace(row, status="diverged")
    assert shareable_rows([diverged]) == {row.computation: diverged}


def test_other_rows_are_not_shared() -> None:
    row = trained("norm=gn", "batch=4")
    others = [
        replace(row, computation=""),
        replace(row, status="oom"),
        replace(row, status="impossible"),
        replace(row, shared_with="0123456789ab"),
    ]
    assert shareable_rows(others) == {}


def test_a_copied_row_describes_the_other_cell_and_has_its_files(tmp_path: Path) -> None:
    row = replace(trained("norm=gn", "batch=4"), test_images=10)
    results.write(tmp_path / "first" / row.id, row)
    write_hits(tmp_path / "first" / row.id, [True] * 9 + [False])
    History(tmp_path / "first" / row.id).add({"step": 5, "train_loss": 2.0})
    other = cell("norm=gn", "batch=8")
    (tmp_path / "second" / other.id).mkdir(parents=True)  # of a run that was interrupted
    copy_row(row, other, tmp_path, "second")
    (copy,) = results.read(tmp_path, other.id)
    assert copy.finished
    fields: dict[str, Any] = {"shared_with": row.id, "finished": copy.finished}
    assert copy == replace(row, **other.description("second"), **fields)
    assert list(read_history(tmp_path / "second" / other.id)) == [{"step": 5, "train_loss": 2.0}]
    assert results.find_test_hits(tmp_path, copy) == 0b1111111110


def test_a_row_without_a_curve_is_copied_alone(tmp_path: Path) -> None:
    row, other = trained("norm=gn", "batch=4"), cell("norm=gn", "batch=8")
    copy_row(row, other, tmp_path, "second")
    assert sorted(path.name for path in (tmp_path / "second" / other.id).iterdir()) == [
        "lock",
        "row.json",
    ]


def test_nothing_is_copied_where_another_command_trains(tmp_path: Path) -> None:
    source, other = trained("norm=gn", "batch=4"), cell("norm=gn", "batch=2")
    folder = tmp_path / "default" / other.id
    with run_files.lock(folder), pytest.raises(run_files.RunLocked):
        copy_row(source, other, tmp_path, "default")
    assert not (folder / "row.json").exists()
    copy_row(source, other, tmp_path, "default")
    assert (folder / "row.json").exists()
