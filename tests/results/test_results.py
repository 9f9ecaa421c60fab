"""The row: written in one piece, read with its types, refused when it is none; and the lock."""

import gzip
import json
import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normbench import results, run_files
from normbench.errors import BadInput, DamagedFile, LeftOut, count
from normbench.records import studies
from normbench.records.history import History, last_record, read_history
from normbench.records.hits import TEST_HITS, write_hits
from normbench.records.studies import STUDY
from normbench.run_files import RunLocked, write_json
from support.damage import DAMAGES, damage_file
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
        ({"status": "fine"}, "has status=fine, which is none of ok, "),
        ({"train_loss": "low"}, "wrong type: train_loss"),
        ({"surplus": 1}, "has unknown keys: surplus"),
        ({"groups": [4, "5"]}, "wrong type: groups"),
        ({"versions": {"torch": 2}}, "wrong type: versions"),
        ({"test_top1": None}, "has status=ok and no test_top1"),
        ({"test_top1": 100.1}, "has test_top1=100.1, which no run can have"),
        ({"batch": 0}, "has batch=0, which no run can have"),
        ({"test_loss": float("nan")}, "is not JSON: NaN is not a JSON number"),
        ({"train_loss": 10**400}, "has status=ok and train_loss=1000"),
        ({"sn_ratios": {"mean.bn": 10**400}}, "has the ratio mean.bn="),
        ({"example_weighing": {"alpha": 10**400}}, "has the number alpha="),
        ({"shared_with": "../../0123456789ab"}, "has shared_with="),
        ({"data": "\ud800"}, "is not JSON: 'utf-8' codec can't encode"),
    ],
)
def test_a_damaged_row_is_left_out_and_named_with_the_remedy(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    path = write_row(tmp_path) / "row.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DamagedFile, match=says) as error:
        results.read_row(path)
    assert str(path) in str(error.value)
    assert "the command of this run trains it again" in str(error.value)
    intact = write_row(tmp_path, id="f" * 12)
    with pytest.warns(LeftOut) as warnings:
        assert results.read(tmp_path) == [results.read_row(intact / "row.json")]
    assert [str(warning.message) for warning in warnings] == [str(error.value)]


def test_a_row_of_another_run_is_left_out(tmp_path: Path) -> None:
    """The files of a run are found by its id, which must not lead elsewhere."""
    write_row(tmp_path).rename(tmp_path / "default" / ("f" * 12))
    with pytest.warns(LeftOut, match="is the row of '0123456789ab'; move it"):
        assert results.read(tmp_path) == []


@pytest.mark.parametrize("sweep", ["default", "../../default"])
def test_the_folder_of_a_sweep_gives_its_name(tmp_path: Path, sweep: str) -> None:
    folder = write_row(tmp_path)
    write_json(
        folder / "row.json", {**json.loads((folder / "row.json").read_text()), "sweep": sweep}
    )
    folder.parent.rename(tmp_path / "first_try")
    assert [row.sweep for row in results.read(tmp_path)] == ["first_try"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_what_is_no_file_of_a_row_is_left_out(tmp_path: Path, kind: str) -> None:
    path = write_row(tmp_path) / "row.json"
    damage_file(path, kind)
    with pytest.warns(LeftOut, match=f"^{path} "):
        assert results.read(tmp_path) == []


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
    old = tmp_path / "default" / json.loads(SCHEMA_1.read_text())["id"]
    old.mkdir()
    shutil.copy(SCHEMA_1, old / "row.json")
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
    study = tmp_path / "study" / STUDY
    results.write_study(study, [(tmp_path / "runs", row) for row in rows])
    for root in (study, study.parent):
        assert results.read(root) == rows
        histories = [results.read_run_history(root, row) for row in rows]
        assert histories == [[], *[[{"step": 5, "train_loss": 2.0}]] * 2]
    before = study.read_bytes()
    results.write_study(
        study, [(study, row) for row in rows]
    )  # reads the histories from the file itself
    assert study.read_bytes() == before


def test_a_damaged_study_is_named(tmp_path: Path) -> None:
    write_row(tmp_path / "runs")
    study = tmp_path / STUDY
    results.write_study(
        study, [(tmp_path / "runs", row) for row in results.read(tmp_path / "runs")]
    )
    study.write_bytes(study.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"rows\.jsonl\.gz is damaged"):
        results.read(study)


def test_a_damaged_line_of_a_study_is_left_out(tmp_path: Path) -> None:
    for seed in range(4):
        folder = write_row(tmp_path / "runs", id=f"{seed:012x}", seed=seed)
        History(folder).add({"step": 5, "train_loss": 2.0})
    study = tmp_path / STUDY
    results.write_study(
        study, [(tmp_path / "runs", row) for row in results.read(tmp_path / "runs")]
    )
    first, second, third, fourth = gzip.decompress(study.read_bytes()).splitlines()
    second, third = second[:-9], third.replace(b'"default"', b'"../../default"')
    lines = (first, second, third, fourth.replace(b"2.0", b'"2"'))
    study.write_bytes(gzip.compress(b"\n".join(lines)))
    for _ in range(2):  # also if the file was read before
        with pytest.warns(LeftOut) as warnings:
            assert [row.seed for row in results.read(study)] == [0]
        assert [str(each.message).partition(" is damaged: ")[0] for each in warnings] == [
            f"{study} line {number}" for number in (2, 3, 4)
        ]


def test_a_study_has_gaps_where_a_loss_is_infinite(tmp_path: Path) -> None:
    History(write_row(tmp_path)).add({"step": 5, "epoch": 1, "train_loss": float("inf")})
    study = tmp_path / STUDY
    results.write_study(study, [(tmp_path, row) for row in results.read(tmp_path)])
    assert results.read_run_history(study, *results.read(study)) == [{"step": 5, "epoch": 1}]


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


HEADER = "step,epoch,train_loss\r\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty or truncated: its last line has no newline"),
        ("\n", "has no header, or two columns of one name"),
        ("step,step\n", "has no header, or two columns of one name"),
        (f"{HEADER}5,1,2", "is empty or truncated: its last line has no newline"),
        (f"{HEADER}5,1\r\n", "line 2 has 2 values for 3 columns"),
        (f"{HEADER}5,1,2\r\n5,1,2,3\r\n", "line 3 has 4 values for 3 columns"),
        (f"{HEADER}5,1,low\r\n", "could not convert string to float: 'low'"),
        ("5,1,2\r\n10,2,1\r\n", "record 1 has no step"),
        (f"{HEADER}5,nan,2\r\n", "record 1 has no step, or one that is no number"),
        (f"{HEADER}5,1,2\0\r\n", "could not convert string to float"),
        ("\x89PNG\udc89\n", "is no CSV file"),
        ('step,epoch\n"5,1\n', "is no CSV file: unexpected end of data"),
    ],
)
def test_a_damaged_curve_is_named(tmp_path: Path, content: str, says: str) -> None:
    folder = write_row(tmp_path)
    path = folder / "history.csv"
    path.write_bytes(content.encode(errors="surrogateescape"))
    (row,) = results.read(tmp_path)
    with pytest.raises(DamagedFile, match=says) as error:
        results.read_run_history(tmp_path, row)
    assert str(path) in str(error.value)
    with pytest.warns(LeftOut, match=says):
        results.write_study(tmp_path / STUDY, [(tmp_path, row)])
    assert results.read_run_history(tmp_path / STUDY, row) == []


def test_the_line_that_a_training_is_writing_is_left_out(tmp_path: Path) -> None:
    """A killed training leaves such a line, too: 1 could be the beginning of step 10."""
    History(tmp_path).add({"step": 5, "epoch": 1, "train_top1": 50.0})
    for begun in ("1", "10,2,0.1,0.5,"):
        path = tmp_path / "history.csv"
        path.write_text(path.read_text() + begun)
        assert [record["step"] for record in read_history(tmp_path)] == [5]
        assert last_record(tmp_path) == {"step": 5, "epoch": 1, "train_top1": 50.0}
        path.write_text(path.read_text().removesuffix(begun))


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


def test_a_study_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "LARGEST", 1000)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"0" * 1001))
    with pytest.raises(DamagedFile, match=r"rows\.jsonl\.gz has more than"):
        results.read(tmp_path)


def test_a_row_that_is_a_link_to_nothing_is_left_out(tmp_path: Path) -> None:
    path = write_row(tmp_path) / "row.json"
    path.unlink()
    path.symlink_to("gone")
    with pytest.warns(LeftOut, match=f"^{path} is a link to nothing"):
        assert results.read(tmp_path) == []


@pytest.mark.parametrize("images", [1, 7, 8, 9, 360])
def test_test_hits_are_read_as_they_were_written(images: int, tmp_path: Path) -> None:
    hits = [image % 3 == 0 for image in range(images)]
    accuracy = 100 * sum(hits) / images
    folder = write_row(tmp_path / "runs", test_images=images, test_top1=accuracy)
    (row,) = results.read(tmp_path / "runs")
    assert results.find_test_hits(tmp_path / "runs", row) is None
    write_hits(folder, hits)
    content = (folder / TEST_HITS).read_bytes()
    assert content == np.packbits(hits).tobytes()
    study = tmp_path / STUDY
    results.write_study(study, [(tmp_path / "runs", row)])
    for root in (tmp_path / "runs", study):
        number = results.find_test_hits(root, row)
        assert number is not None
        assert f"{number:0{images}b}" == "".join(str(int(hit)) for hit in hits)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "are not one bit for each of 12 images"),
        (b"\xff", "are not one bit for each of 12 images"),
        (b"\xff\xf0\x00", "are not one bit for each of 12 images"),
        (b"\xff\xf1", "are not one bit for each of 12 images"),  # of 16 images
        (b"\xff\xf0", "do not match the accuracy of its row"),
    ],
)
def test_damaged_test_hits_are_left_out(content: bytes, reason: str, tmp_path: Path) -> None:
    folder = write_row(tmp_path, test_images=12, test_top1=75.0)
    (folder / TEST_HITS).write_bytes(content)
    (row,) = results.read(tmp_path)
    with pytest.warns(LeftOut, match=reason):
        assert results.find_test_hits(tmp_path, row) is None


def test_a_study_of_an_earlier_version_has_no_test_hits(tmp_path: Path) -> None:
    write_hits(write_row(tmp_path, test_images=2, test_top1=50.0), [True, False])
    study = tmp_path / STUDY
    results.write_study(study, [(tmp_path, row) for row in results.read(tmp_path)])
    line = json.loads(gzip.decompress(study.read_bytes()))
    del line["test_hits"], line["row"]["test_images"]
    study.write_bytes(gzip.compress(json.dumps(line).encode()))
    (row,) = results.read(study)
    assert row.test_images is None
    assert results.find_test_hits(study, row) is None
