"""The row: written in one piece, read with its types, refused when it is none; and the lock."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normbench import results, run_files
from normbench.errors import BadInput, count
from normbench.history import History, read_history
from normbench.run_files import RunLocked
from support.rows import row, write_row


def test_a_row_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = row(train_loss=0.25, groups=[4], versions={"torch": "2"}, shared_with=None)
    results.write(tmp_path, written)
    assert results.read_row(tmp_path / "row.json") == written


def test_a_row_takes_the_place_of_the_state(tmp_path: Path) -> None:
    run_files.write_state(tmp_path, "running", pid=1)
    assert run_files.read_state(tmp_path)["phase"] == "running"
    results.write(tmp_path, row())
    assert run_files.read_state(tmp_path) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["row.json"]


def test_numbers_that_json_does_not_know_are_no_part_of_a_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.write(tmp_path, row(train_loss=float("nan")))
    assert not (tmp_path / "row.json").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 0}, "has no row of schema 2"),
        ({"batch": "4"}, "has values of the wrong type: batch"),
        ({"batch": True, "seed": 0.5}, "wrong type: batch, seed"),
        ({"status": "fine"}, "wrong type: status"),
        ({"train_loss": "low"}, "wrong type: train_loss"),
        ({"surplus": 1}, "has unknown keys: surplus"),
    ],
)
def test_what_is_no_row_is_named_with_the_remedy(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    path = write_row(tmp_path) / "row.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BadInput, match=says) as error:
        results.read(tmp_path)
    assert str(path) in str(error.value)
    assert "will be trained again" in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"), [("{", "is not JSON"), ('{"schema": 2}', "lacks batch")]
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str, says: str) -> None:
    path = write_row(tmp_path) / "row.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=says):
        results.read_row(path)


def test_a_row_of_before_a_key_was_there_is_read(tmp_path: Path) -> None:
    path = write_row(tmp_path) / "row.json"
    older = json.loads(path.read_text())
    del older["coverage"]
    path.write_text(json.dumps(older))
    assert results.read_row(path).coverage == ""


@pytest.mark.parametrize(("compiled", "impl"), [(True, "compile"), (False, "eager")])
def test_rows_of_before_said_only_what_was_compiled(
    compiled: bool, impl: str, tmp_path: Path
) -> None:
    folder = write_row(tmp_path)
    written = json.loads((folder / "row.json").read_text())
    del written["impl"]
    (folder / "row.json").write_text(json.dumps({**written, "schema": 1, "compiled": compiled}))
    assert results.read_row(folder / "row.json").impl == impl


SCHEMA_1 = Path(__file__).parent / "row_schema_1.json"  # of BN on digits, written by schema 1


def test_a_row_of_schema_1_is_upgraded() -> None:
    raw = json.loads(SCHEMA_1.read_text())
    upgraded = results.read_row(SCHEMA_1)
    old = ("together", "graphs", "memory", "limits", "ratios", "of")
    new = (
        "stacked_seeds",
        "cuda_graphs",
        "device_memory",
        "data_limits",
        "sn_ratios",
        "probed_run",
    )
    assert [getattr(upgraded, name) for name in new] == [raw[name] for name in old]
    assert upgraded.schema == 2
    same = raw.keys() - {*old, "schema"}
    assert {name: getattr(upgraded, name) for name in same} == {name: raw[name] for name in same}


def test_rows_of_both_schemas_are_read_together(tmp_path: Path) -> None:
    write_row(tmp_path)
    (tmp_path / "old" / "run").mkdir(parents=True)
    shutil.copy(SCHEMA_1, tmp_path / "old" / "run" / "row.json")
    assert len(results.read(tmp_path)) == 2


def test_rows_are_sorted_by_norm_batch_and_seed(tmp_path: Path) -> None:
    cells = [("gn", 4, 0), ("bn", 16, 0), ("bn", 4, 1), ("bn", 4, 0)]
    for number, (norm, batch, seed) in enumerate(cells):
        write_row(tmp_path, id=f"{number:012x}", norm=norm, batch=batch, seed=seed)
    read = [(row.norm, row.batch, row.seed) for row in results.read(tmp_path)]
    assert read == sorted(cells)


def test_one_run_is_read_by_its_id(tmp_path: Path) -> None:
    for number in range(3):
        write_row(tmp_path, id=f"{number:012x}", seed=number)
    assert [row.seed for row in results.read(tmp_path, f"{1:012x}")] == [1]
    assert results.read(tmp_path, "f" * 12) == []


def test_a_study_holds_rows_and_histories_in_one_file(tmp_path: Path) -> None:
    for seed in range(3):
        folder = write_row(tmp_path / "runs", id=f"{seed:012x}", seed=seed)
        if seed:
            History(folder).add({"step": 5, "train_loss": 2.0})
    rows = results.read(tmp_path / "runs")
    study = tmp_path / "study" / results.STUDY
    results.write_study(study, tmp_path / "runs", rows)
    for root in (study, study.parent):
        assert results.read(root) == rows
        histories = [results.read_run_history(root, row) for row in rows]
        assert histories == [[], *[[{"step": 5, "train_loss": 2.0}]] * 2]
    before = study.read_bytes()
    results.write_study(study, study, rows)  # reads the histories from the file itself
    assert study.read_bytes() == before


def test_a_damaged_study_is_named(tmp_path: Path) -> None:
    write_row(tmp_path / "runs")
    study = tmp_path / results.STUDY
    results.write_study(study, tmp_path / "runs", results.read(tmp_path / "runs"))
    study.write_bytes(study.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"rows\.jsonl\.gz is damaged"):
        results.read(study)


def test_of_two_rows_of_one_run_the_later_counts(tmp_path: Path) -> None:
    write_row(tmp_path, "first", finished="2026-01-01T00:00:00+00:00", test_top1=1.0)
    write_row(tmp_path, "second", finished="2026-01-02T00:00:00+00:00", test_top1=2.0)
    write_row(tmp_path, "third", finished="2026-01-01T12:00:00+00:00", test_top1=3.0)
    (only,) = results.read(tmp_path)
    assert only.test_top1 == 2.0


def test_no_runs_are_no_rows(tmp_path: Path) -> None:
    assert results.read(tmp_path / "nowhere") == []


def test_a_curve_keeps_its_columns(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add({"step": 5, "train_loss": 2.0})
    history.add({"step": 10, "train_loss": 1.0, "val_top1": 50.0})
    assert list(read_history(tmp_path)) == [
        {"step": 5, "train_loss": 2.0},
        {"step": 10, "train_loss": 1.0, "val_top1": 50.0},
    ]


def test_a_locked_folder_is_busy_for_others_only_while_it_is_held(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with run_files.lock(folder):
        assert run_files.is_locked(folder)
        with pytest.raises(RunLocked), run_files.lock(folder):
            pass
    assert not run_files.is_locked(folder)


def _hold(folder: Path, ready: Any) -> None:
    with run_files.lock(folder):
        ready.set()
        time.sleep(60)


def test_a_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(30)
    assert run_files.is_locked(tmp_path)
    os.kill(holder.pid or 0, signal.SIGKILL)
    holder.join()
    assert not run_files.is_locked(tmp_path)


def _write_often(folder: Path, number: int) -> None:
    for step in range(100):
        results.write(folder, replace(row(), test_top1=float(number), train_loss=float(step)))


def test_writers_never_leave_half_a_row(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(tmp_path, n)) for n in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if (tmp_path / "row.json").exists():
            results.read_row(tmp_path / "row.json")
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["row.json"]


def test_a_number_with_its_noun() -> None:
    assert [count(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
