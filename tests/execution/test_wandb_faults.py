"""Trainings whose W&B fails: rows, tables and exit code are those of a training without W&B."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from normbench import results
from normbench.execution.wandb_service import started_service, time_limit
from normbench.results import Row
from support.cells import SHORT, cell
from support.commands import Command, Rows
from support.fake_wandb import serve
from support.processes import is_training, services, wait_for, wait_until_gone
from support.rows import numbers
from support.slow import slow_after

WITH_WANDB = [argument for argument in SHORT if argument != "logger=none"]
GRID = ("-m", "norm=bn,gn,ln", "batch=8", "recipe.images=25600", "trainer=cpu", "trainer.chunk=5")
KEY = "local" + 35 * "0"


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    folder.mkdir()
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "normbench", *arguments],
        cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def warnings(error: str) -> list[str]:
    return [line for line in error.splitlines() if line.startswith("warning: W&B")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Row]:
    """The rows of the grid without W&B."""
    folder = tmp_path_factory.mktemp("grid") / "undisturbed"
    assert start(folder, *GRID, "logger=none").communicate(timeout=600)[1] == ""
    return results.read(folder / "runs")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_service_that_is_lost_in_the_middle_of_a_grid(
    tmp_path: Path, number: int, undisturbed: Sequence[Row]
) -> None:
    folder = tmp_path / "disturbed"
    timeouts = {"WANDB_INIT_TIMEOUT": "1", "WANDB_FINISH_TIMEOUT": "1"}
    command = start(folder, *GRID, **timeouts)
    run = folder / "runs/default" / cell(*GRID[2:], "norm=bn").id
    wait_for(lambda: is_training(run))
    (service,) = services(folder)
    try:
        os.kill(service, number)
        out, error = command.communicate(timeout=600)
    finally:
        command.kill()
        with suppress(ProcessLookupError):
            os.kill(service, signal.SIGCONT)
    assert command.returncode == 0, error
    assert "| gn " in out
    rows = results.read(folder / "runs")
    assert list(map(numbers, rows)) == list(map(numbers, undisturbed))
    failures = {row.norm: row.wandb_failure for row in rows}
    reason = "Connection lost" if number == signal.SIGKILL else "no answer within 10 s"
    assert reason in failures["bn"]
    assert not failures["ln"]  # started its own service
    (line,) = warnings(error)
    assert reason in line
    wait_until_gone(folder)


@pytest.mark.slow
def test_a_folder_that_wandb_cannot_write(command: Command, rows: Rows) -> None:
    folder = Path("runs/default") / cell("norm=bn", "batch=4", *WITH_WANDB).id
    folder.mkdir(parents=True)
    (folder / "wandb").write_text("a file in the place of the folder")
    end = command("norm=bn", "batch=4", *WITH_WANDB)
    assert (end.code, len(warnings(end.err))) == (0, 1)
    (row,) = rows()
    assert row.wandb_failure
    assert row.wandb == ""
    assert row.test_top1 is not None


@pytest.mark.slow
def test_a_full_disk_of_wandb_alone(tmp_path: Path) -> None:
    words = ["norm=bn", "batch=4", *WITH_WANDB, "trainer.chunk=1", "trainer.log_every=1"]
    full = tmp_path / "runs/default" / cell(*words).id / "wandb"
    full.mkdir(parents=True)
    script = 'mount -t tmpfs -o size=16k tmpfs "$1" || exit 77; shift; "$@"'
    end = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "bash", "-c", script, "bash", str(full),
         sys.executable, "-m", "normbench", *words],
        cwd=tmp_path, env={**os.environ, "WANDB_MODE": "offline"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if end.returncode == 77:
        pytest.skip(f"no disk can be mounted here: {end.stderr.strip()}")
    assert end.returncode == 0, end.stderr
    (row,) = results.read(tmp_path / "runs")
    assert "No space left on device" in row.wandb_failure
    assert row.test_top1 is not None
    assert len(warnings(end.stderr)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "reason"),
    [("short", "API key must have 40+ characters"), (KEY, "no such key")],
    ids=["of wrong length", "refused by the server"],
)
def test_a_key_that_cannot_be_used(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch, key: str, reason: str
) -> None:
    with serve("refuses the key") as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setenv("WANDB_API_KEY", key)
        monkeypatch.delenv("WANDB_MODE")
        end = command("norm=bn", "batch=4", *WITH_WANDB)
    (row,) = rows()
    assert end.code == 0
    assert "offline-run" in row.wandb
    assert reason in row.wandb_failure
    (line,) = warnings(end.err)
    assert reason in line


@pytest.mark.slow
def test_a_server_that_stops_answering(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "2")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.delenv("WANDB_MODE")
    with serve() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        started = time.monotonic()
        server.silent_after = "upsertBucket"
        end = command("norm=bn", "batch=4", *WITH_WANDB)
        assert time.monotonic() - started < 60
    assert end.code == 0
    (row,) = rows()
    assert "TimeoutError" in row.wandb_failure
    assert len(warnings(end.err)) == 1


@pytest.mark.parametrize(
    ("arguments", "mode", "reason"),
    [
        ([], "zzz", "WANDB_MODE=zzz is unknown"),
        (["logger.project=[]"], "offline", "logger.project=[]"),
        (["logger.project=../../x"], "offline", "logger.project=../../x"),
        (["logger.project=''"], "offline", "logger.project="),
        ([f"logger.project={'x' * 129}"], "offline", "128"),
        (["logger.entity=a/b"], "offline", "logger.entity=a/b"),
        (["logger.entity={a:1}"], "offline", "logger.entity="),
    ],
)
def test_words_for_wandb_that_cannot_be_used(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    mode: str,
    reason: str,
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    end = command("norm=bn", "batch=4", *arguments, *WITH_WANDB)
    assert end.code == 2
    (line,) = end.err.splitlines()
    assert reason in line
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", slow_after(3, ["WANDB_INIT_TIMEOUT", "WANDB_FINISH_TIMEOUT"]))
@pytest.mark.parametrize("seconds", ["abc", "inf", "nan", "-1", "1e30"])
def test_time_limits_that_are_no_seconds(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, seconds: str
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv(name, seconds)
    end = command("norm=bn", "batch=4", *WITH_WANDB)
    assert end.code == 2
    assert f"{name}={seconds}: this takes seconds from 0 to 1,000,000" in end.err
    assert not Path("runs").exists()


def test_a_service_that_neither_starts_nor_ends_is_killed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise TimeoutError("planted")

    def start_and_fail() -> None:
        processes.append(subprocess.Popen(["sleep", "60"]))
        fail()

    monkeypatch.setattr("wandb.teardown", fail)
    processes = [subprocess.Popen(["sleep", "60"])]
    failures = list[str]()
    try:
        with (
            pytest.raises(TimeoutError),
            started_service(start_and_fail, 1, failures),
        ):
            pass
        earlier, service = processes
        assert service.wait(10) == -signal.SIGKILL
        assert earlier.poll() is None
        assert failures == ["the service of W&B did not end: TimeoutError: planted"]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_time_limit_ends_a_wait_and_leaves_an_outer_one() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        left, right = socket.socketpair()
        with left, right, pytest.raises(TimeoutError, match=r"within 0\.1 s"), time_limit(0.1):
            left.recv(1)
        assert not rung
        time.sleep(0.4)
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_time_limit_raises_again_if_the_first_error_is_caught() -> None:
    event = threading.Event()
    with pytest.raises(TimeoutError), time_limit(0.1):
        try:
            event.wait(5)
        except TimeoutError:
            event.wait(5)
