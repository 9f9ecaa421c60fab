"""Runs whose files were damaged while nothing ran: they are trained, and so are the others."""

import errno
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from normbench import results
from normbench.errors import BadInput, DamagedFile, left_out
from normbench.execution import worker
from normbench.records.history import read_history
from normbench.results import CHECKPOINT
from normbench.training import checkpoint
from normbench.training.checkpoint import Checkpoints
from support.cells import RESUMABLE, SHORT, run_folder
from support.commands import Command, Rows
from support.processes import is_training, run_when
from support.rows import numbers
from support.slow import slow_after

INTERRUPTED = (
    "norm=bn",
    "batch=4",
    *RESUMABLE,
    "recipe.images=6400",
    "probe=power",
    "probe.every=1",
)
Damage = Callable[[Path], None]


def text(name: str, content: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_text(content)

    return damage


def folder_instead_of(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return damage


def pipe_instead_of(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def half(name: str) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def saved(value: object) -> Damage:
    return lambda folder: torch.save(value, folder / CHECKPOINT)


def changed(**changes: object) -> Damage:
    def damage(folder: Path) -> None:
        state = checkpoint.load_state(folder / CHECKPOINT)
        torch.save({**state, **changes}, folder / CHECKPOINT)

    return damage


def flipped(folder: Path) -> None:
    """Change one byte in the middle of a tensor."""
    content = bytearray((folder / CHECKPOINT).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / CHECKPOINT).write_bytes(content)


@pytest.fixture
def interrupted(command: Command) -> Path:
    """Return the folder of a run that was interrupted; undisturbed/ has its row."""
    assert command(*INTERRUPTED, "runs=undisturbed").code == 0
    folder = run_folder(*INTERRUPTED)
    stopper = run_when(
        lambda: is_training(folder) and (folder / "probes/power.csv").exists(),
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    assert command(*INTERRUPTED).code == 130
    stopper.join()
    shutil.copytree("runs", "pristine")
    return folder


DAMAGES: dict[str, tuple[bool, Damage]] = {
    "half a checkpoint": (False, half(CHECKPOINT)),
    "a flipped bit": (False, flipped),
    "pipe checkpoint": (False, pipe_instead_of(CHECKPOINT)),
    "folder checkpoint": (False, folder_instead_of(CHECKPOINT)),
    "list": (False, saved([1, 2])),
    "empty checkpoint": (False, text(CHECKPOINT, "")),
    "negative step": (False, changed(done=-1)),
    "step": (False, changed(done="five")),
    "too many steps": (False, changed(done=1000)),
    "epochs": (False, changed(steps_per_epoch=7)),
    "weights": (False, changed(model={"weight": torch.zeros(1)})),
    "optimizer": (False, changed(optimizer={"nothing": {"momentum": torch.zeros(2)}})),
    "metrics": (False, changed(pending="?")),
    "no curve": (True, text("history.csv", "what?\n1,2\n")),
    "test hits": (True, text("test_hits.bin", "?")),
    "no probes": (True, text("probes/power.csv", "epoch,what\n,\n")),
    "folder of probes": (True, folder_instead_of("probes/power.csv")),
    "folder of a state": (True, folder_instead_of("state.json")),
    "state of lists": (
        True,
        text(
            "state.json", '{"phase": "running", "pid": [], "steps": {}, "mirror": 5, "saved": []}'
        ),
    ),
    "half a state": (True, half("state.json")),
    "failure": (True, text("failed.1.json", '{"at": "now"}')),
    "folder of failures": (True, folder_instead_of("failed.1.json")),
    "previous row": (True, folder_instead_of("previous.json")),
    "damaged row": (True, text("row.json", "{")),
}


@pytest.mark.slow
def test_a_damaged_run_is_resumed_or_begins_anew(
    interrupted: Path, command: Command, rows: Rows
) -> None:
    (expected,) = results.read("undisturbed")
    for name, (resumes, damage) in DAMAGES.items():
        shutil.rmtree("runs")
        shutil.copytree("pristine", "runs")
        damage(interrupted)
        end = command(*INTERRUPTED)
        assert end.code == 0, (name, end.out, end.err)
        (row,) = rows()
        assert row.resumed == resumes, name
        assert numbers(row) == numbers(expected), name
        assert list(read_history(interrupted))
        assert "Traceback" not in (interrupted / "log.txt").read_text(), name
        if not resumes or name in ("no curve", "folder curve", "no probes", "folder of probes"):
            log = (interrupted / "log.txt").read_text().splitlines()
            others = [line for line in log if not line.startswith("20")]  # without a time
            assert 1 <= len(others) <= 3, (name, log)
        says = [line for line in end.out.splitlines() if "the training starts over" in line]
        assert len(says) == (not resumes and name != "folder checkpoint"), (name, end.out)
        assert (interrupted / "damaged.pt").exists() == bool(says), name


def test_a_checkpoint_that_cannot_be_read_now_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a network file system that hangs for a moment, or with too little memory."""
    path = tmp_path / CHECKPOINT
    torch.save({"done": 1}, path)
    content = path.read_bytes()
    for error in (
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.EIO, "Input/output error"),
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "load", Raise(error))
            with pytest.raises(BadInput, match="the same command tries again") as failure:
                checkpoint.load_state(path)
        assert not isinstance(failure.value, DamagedFile)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(BadInput, match="Too many open files") as failure:
            checkpoint.load_state(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not isinstance(failure.value, DamagedFile)
    assert path.read_bytes() == content
    assert checkpoint.load_state(path) == {"done": 1}


class Raise:
    """A function that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_args: object, **_options: object) -> None:
        raise self.error


@pytest.mark.parametrize("earlier", ["file", "folder"])
@pytest.mark.parametrize("damage", ["file", "folder"])
def test_a_row_may_be_damaged_again(earlier: str, damage: str, tmp_path: Path) -> None:
    """Its earlier damage is kept as damaged.json."""
    for name, kind in (("damaged.json", earlier), ("row.json", damage)):
        if kind == "folder":
            (tmp_path / name).mkdir()
            (tmp_path / name / "content").touch()
        else:
            (tmp_path / name).write_text("{")
    with left_out():
        worker._set_folders_aside(tmp_path)
        results.set_aside(tmp_path)
    assert not (tmp_path / "row.json").exists()
    assert len(list(tmp_path.iterdir())) == (1 if (earlier, damage) == ("file", "file") else 2)


@pytest.mark.parametrize(
    ("damage", "says"),
    slow_after(
        1,
        [
            (lambda folder: folder.touch(), "is no folder)"),
            (lambda folder: (folder / "lock").mkdir(parents=True), "Is a directory: "),
            (lambda folder: (folder / "log.txt").mkdir(parents=True), "log.txt cannot be written"),
            (lambda folder: folder.symlink_to(folder), "is no folder)"),
        ],
    ),
    ids=["folder is a file", "lock is a folder", "log is a folder", "loop"],
)
def test_a_folder_that_cannot_be_used_costs_its_run_alone(
    damage: Damage, says: str, command: Command, rows: Rows
) -> None:
    folder = run_folder("norm=bn", *SHORT)
    folder.parent.mkdir(parents=True)
    damage(folder)
    end = command("-m", "norm=bn,gn", *SHORT)
    assert end.code == 1
    (line,) = [line for line in end.out.splitlines() if line.startswith("failed: bn: ")]
    assert says in line
    assert "Traceback" not in end.out + end.err
    assert [row.norm for row in rows()] == ["gn"]


@pytest.mark.slow
def test_what_a_kill_after_the_row_has_left_is_removed(command: Command, rows: Rows) -> None:
    words = ("norm=bn", *SHORT)
    assert command(*words).code == 0
    folder = run_folder(*words)
    state = {"phase": "running", "pid": 1, "keeps": False}
    (folder / "state.json").write_text(json.dumps(state))
    for name in (CHECKPOINT, "previous.json", ".history.csv.4194305"):
        (folder / name).touch()
    assert "1 finished before, 0 to do" in command(*words).out
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.csv", "lock", "log.txt", "row.json", "test_hits.bin",
    ]  # fmt: skip


def test_a_checkpoint_that_does_not_fit_names_the_reason(tmp_path: Path) -> None:
    """As on a full disk; torch alone would say `unexpected pos 640 vs 598`."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Checkpoints(tmp_path, None).save({"done": 1, "model": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
