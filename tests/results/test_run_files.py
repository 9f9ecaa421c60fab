"""Files of a run: state, failures of ranks, records of probes."""

import json
from pathlib import Path
from typing import Any

import pytest

from normbench import run_files
from normbench.errors import BadInput


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
    message = r"^out=DIR cannot be written \((File exists|Not a directory)\); use another$"
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
    run_files.write_records(path, RECORDS)
    header, *lines = path.read_text().split("\n")
    assert header == "network,run,epoch,depth,power,hard,reason,share"
    assert lines[0] == "bn,1234567890e1,2,1,0.333333333,,,"
    assert lines[1] == "bn,,2,2,,True,1,"
    read = run_files.read_records(path)
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
        run_files.append_epoch(tmp_path, "spp", [{"epoch": epoch, "depth": depth}], epoch)

    for epoch in (1, 2, 3):
        append(epoch, 10 * epoch)
    append(2, 7)
    path = tmp_path / "probes" / "spp.csv"
    assert run_files.read_records(path) == [{"epoch": 1, "depth": 10}, {"epoch": 2, "depth": 7}]


def test_records_are_grouped_by_one_column_or_several() -> None:
    first, second, third = RECORDS
    assert run_files.group_by(RECORDS, "network") == {"bn": [first, second], "gn": [third]}
    assert run_files.group_by(RECORDS, "network", "hard") == {
        ("bn", None): [first], ("bn", True): [second], ("gn", False): [third],
    }  # fmt: skip


def test_the_last_epoch_is_that_of_each_network() -> None:
    earlier = {"network": "gn", "epoch": 1}
    assert run_files.last_epoch([*RECORDS, earlier], "network") == RECORDS


def test_labels_of_networks_name_the_epoch_if_there_is_one() -> None:
    assert run_files.network_label(("bn", None)) == "bn"
    assert run_files.network_label(("bn", 0)) == "bn, epoch 0"


def test_the_records_of_training_come_before_those_of_the_command(tmp_path: Path) -> None:
    assert run_files.probe_file(tmp_path, "spp") is None
    (tmp_path / "probes").mkdir()
    assert run_files.probe_file(tmp_path, "spp") is None
    for name in ("spp.command.csv", "spp.csv"):
        (tmp_path / "probes" / name).touch()
        assert run_files.probe_file(tmp_path, "spp") == tmp_path / "probes" / name
