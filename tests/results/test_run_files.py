"""Files of a run: state, failures of ranks, records of probes."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normbench import run_files
from normbench.errors import BadInput, DamagedFile
from normbench.records import probes


def test_files_are_replaced_and_leave_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for content in (b"old", b"new"):
        run_files.write_file(path, content)
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_json_has_a_line_for_each_entry_and_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    run_files.write_json(path, {"a": 1, "b": None})
    assert path.read_text() == '{\n "a": 1,\n "b": null\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        run_files.write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1, "b": None}


def test_a_folder_that_can_be_written_is_created_and_stays_empty(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "folder"
    for _ in range(2):
        assert run_files.require_writable(folder, "out=DIR", "use another") == folder
        assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = r"^out=DIR cannot be written \(.*/file is no folder\); use another$"
    for folder in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(BadInput, match=message):
            run_files.require_writable(folder, "out=DIR", "use another")


def test_a_state_is_replaced_or_updated(tmp_path: Path) -> None:
    assert run_files.read_state(tmp_path) == {}
    run_files.write_state(tmp_path, "queued", job="7")
    run_files.update_state(tmp_path, phase="running", pid=1)
    state = {"phase": "running", "error": "", "job": "7", "pid": 1}
    assert run_files.read_state(tmp_path) == state
    run_files.write_state(tmp_path, "failed", "no luck")
    assert run_files.read_state(tmp_path) == {"phase": "failed", "error": "no luck"}


DAMAGE = {
    "empty": b"", "half": b'{"phase": "run', "list": b"[]", "number": b"7", "binary": b"\x80\x00",
    "NaN": b'{"phase": "failed", "at": NaN}', "brackets": b"[" * 100_000, "digits": b"9" * 5_000,
}  # fmt: skip


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_state_counts_as_none_and_a_damaged_file_is_named(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    assert run_files.read_state(tmp_path) == {}
    run_files.update_state(tmp_path, phase="failed")
    assert run_files.read_state(tmp_path) == {"phase": "failed"}
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"state\.json "):
        run_files.read_json(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_folder, os.mkfifo, _loop, _device])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "state.json")
    make(tmp_path / "failed.1.json")
    assert run_files.read_state(tmp_path) == {}
    assert run_files.read_failures(tmp_path) == []
    with pytest.raises(DamagedFile, match=r"state.json (is no regular file|cannot be read: )"):
        run_files.read_file(tmp_path / "state.json")


def test_a_state_of_another_program_counts_as_none(tmp_path: Path) -> None:
    run_files.write_json(tmp_path / "state.json", {"phase": ["running"], "pid": "x"})
    assert run_files.read_state(tmp_path) == {}


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="full"), run_files.replace_atomically(path) as temporary:
        temporary.write_bytes(b"ne")
        raise OSError("full")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        steps.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def record_replace(self: Path, target: Path) -> Path:
        steps.append(f"replace {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    run_files.write_file(tmp_path / "runs" / "row.json", b"{}")
    temporary = f".row.json.{os.getpid()}@{os.uname().nodename[:32]}"
    assert steps == [temporary, "replace row.json", "runs"]


def test_temporary_files_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    host = os.uname().nodename[:32]
    kept = {
        f".row.json.{os.getpid()}", f".row.json.{os.getpid()}@{host}",
        f".row.json.{gone.pid}@elsewhere",  # where it may still run
        f".bashrc.{gone.pid}", ".config.20240101", ".hidden", "row.json", f"row.json.{gone.pid}",
    }  # fmt: skip
    removed = {f".row.json.{gone.pid}@{host}", f".checkpoint.pt.{gone.pid}", ".index.html.7@old"}
    for name in kept | removed:
        (tmp_path / name).touch()
    yesterday = time.time() - 25 * 60 * 60
    os.utime(tmp_path / ".index.html.7@old", (yesterday, yesterday))
    (tmp_path / f".folder.json.{gone.pid}").mkdir()
    run_files.remove_temporary_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, f".folder.json.{gone.pid}"}


@pytest.mark.parametrize("make", [_folder, os.mkfifo])
def test_a_lock_that_is_no_file_cannot_be_held_and_is_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "lock")
    with pytest.raises(OSError, match="lock"), run_files.lock(tmp_path):
        pytest.fail("a folder or pipe was locked")


def test_failures_of_ranks_are_sorted_by_time_and_cleared(tmp_path: Path) -> None:
    run_files.write_failure(tmp_path, 1, "second", "log.1.txt", 20.0)
    run_files.write_failure(tmp_path, 2, "first", "log.2.txt", 3.0)
    assert run_files.read_failures(tmp_path) == [
        {"reason": "first", "log": "log.2.txt", "at": 3.0},
        {"reason": "second", "log": "log.1.txt", "at": 20.0},
    ]
    (tmp_path / "row.json").touch()
    run_files.clear_failures(tmp_path)
    assert run_files.read_failures(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["row.json"]


def test_an_unused_lock_does_not_count_as_held(tmp_path: Path) -> None:
    assert not run_files.is_locked(tmp_path)
    with run_files.lock(tmp_path / "run"):
        pass
    assert not run_files.is_locked(tmp_path / "run")


RECORDS: list[dict[str, Any]] = [
    {"network": "bn", "run": "1234567890e1", "epoch": 2, "depth": 1, "power": 1 / 3},
    {"network": "bn", "epoch": 2, "depth": 2, "power": None, "hard": True, "reason": "1"},
    {
        "network": "gn",
        "epoch": 3,
        "depth": 1,
        "power": -1e-20,
        "hard": False,
        "share": 0.1234567891,
    },
]


def test_records_come_back_with_their_types(tmp_path: Path) -> None:
    """Floats have nine digits; texts that look like numbers stay texts."""
    path = tmp_path / "probes" / "power.csv"
    probes.write_records(path, RECORDS)
    header, *lines = path.read_text().split("\n")
    assert header == "network,run,epoch,depth,power,hard,reason,share"
    assert lines[0] == "bn,1234567890e1,2,1,0.333333333,,,"
    assert lines[1] == "bn,,2,2,,True,1,"
    read = probes.read_records(path)
    missing = dict.fromkeys(header.split(","))
    texts = {"run": "", "reason": ""}
    expected = [missing | texts | record for record in RECORDS]
    expected[0]["power"] = 0.333333333
    expected[2]["share"] = 0.123456789
    assert read == expected
    types = [[type(value) for value in record.values()] for record in read]
    assert types == [[type(value) for value in record.values()] for record in expected]


def test_records_of_an_epoch_replace_those_of_it_and_later_ones(tmp_path: Path) -> None:
    def append(epoch: int, depth: int) -> None:
        probes.append_epoch(tmp_path, "spp", [{"epoch": epoch, "depth": depth}], epoch)

    for epoch in (1, 2, 3):
        append(epoch, 10 * epoch)
    append(2, 7)
    path = tmp_path / "probes" / "spp.csv"
    assert probes.read_records(path) == [{"epoch": 1, "depth": 10}, {"epoch": 2, "depth": 7}]


def test_records_are_grouped_by_one_column_or_several() -> None:
    first, second, third = RECORDS
    assert probes.group_by(RECORDS, "network") == {"bn": [first, second], "gn": [third]}
    assert probes.group_by(RECORDS, "network", "hard") == {
        ("bn", None): [first], ("bn", True): [second], ("gn", False): [third],
    }  # fmt: skip


def test_the_last_epoch_is_that_of_each_network() -> None:
    earlier = {"network": "gn", "epoch": 1}
    assert probes.last_epoch([*RECORDS, earlier], "network") == RECORDS


def test_labels_of_networks_name_the_epoch_if_there_is_one() -> None:
    assert probes.network_label(("bn", None)) == "bn"
    assert probes.network_label(("bn", 0)) == "bn, epoch 0"


def test_the_records_of_training_come_before_those_of_the_command(tmp_path: Path) -> None:
    assert probes.probe_file(tmp_path, "spp") is None
    (tmp_path / "probes").mkdir()
    assert probes.probe_file(tmp_path, "spp") is None
    for name in ("spp.command.csv", "spp.csv"):
        (tmp_path / "probes" / name).touch()
        assert probes.probe_file(tmp_path, "spp") == tmp_path / "probes" / name
