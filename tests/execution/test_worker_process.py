"""Worker processes of the fork server: their environment, their reports, their end."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import active_children, forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench.config.compose import compose
from normbench.config.plan import own_cores
from normbench.execution import process_group, worker_process
from normbench.execution.job import Job, Summary
from normbench.execution.local_scheduler import LocalScheduler
from normbench.execution.process_group import ProcessGroup
from normbench.execution.scheduler import QueueEntry
from normbench.execution.sweep import PRELOAD, make_job
from normbench.execution.worker_process import Exit
from support.cells import PLUGIN, SHORT, cell
from support.processes import finish, processes, server_of, wait_for, wait_until_gone


def start(function: str, argument: Any = None, **options: Any) -> ProcessGroup:
    worker_process.start_server(PRELOAD)
    return process_group.start(f"child_work:{function}", argument, **options)


def test_a_worker_process_is_forked_with_the_imports_of_the_server() -> None:
    end, _ = finish(start("describe", "cell", environment={"NORMBENCH_TEST": "late"}))
    description = end.result
    assert description.pop("server") > 0
    assert description == {
        "argument": "cell",
        "preloaded": ["torch", "pytorch_lightning", "hydra"],
        "leads_its_session": True,
        "environment": "late",  # although the environment of the server is older
        "torch_threads": 1,
        "python_threads": ["Thread-1 (_die_with_parent)"],
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2], ids=str)
def test_a_signal_while_a_server_is_looked_for_is_not_lost(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []

    def send() -> None:
        signal.raise_signal(number)
        received.append(0)

    before = signal.signal(number, lambda number, _: received.append(number))
    monkeypatch.setattr(forkserver, "ensure_running", send)
    try:
        worker_process.start_server(PRELOAD)
        assert received == [0, number]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    finally:
        signal.signal(number, before)


def test_a_process_whose_start_is_interrupted_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when it has just started, before anybody else knows of it."""
    fork = worker_process._fork
    pids: list[int] = []

    def interrupt(process: ForkServerProcess) -> None:
        fork(process)
        pids.append(process.pid or 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_process, "_fork", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start("sleep", 20)
    wait_for(lambda: pids[0] not in [each.pid for each in active_children()])


@pytest.mark.slow  # two more servers import torch
def test_a_killed_server_is_replaced_and_its_processes_go_on() -> None:
    server = finish(start("describe"))[0].result["server"]
    naps, sleeper = start("sleep", 2), start("sleep", 60)
    for group in (naps, sleeper):
        process_group.wait([group], 30)
    os.kill(server, signal.SIGKILL)
    description = finish(start("describe"))[0].result
    assert description["server"] != server
    assert description["preloaded"] == ["torch", "pytorch_lightning", "hydra"]
    end = finish(naps)[0]
    assert (end.succeeded, end.code) == (True, 255)
    assert sleeper.poll() is None
    sleeper.send_signal(signal.SIGKILL)
    assert "its exit code was lost with the fork server" in finish(sleeper)[0].reason


@pytest.mark.slow  # another server imports torch
def test_a_server_that_is_killed_while_it_imports_is_replaced(tmp_path: Path) -> None:
    program = (
        "worker_process.start_server(['slow_import'])\n"
        "group = process_group.start('child_work:sleep', 0)\n"
        "print(process_group.wait_for_exit(group).succeeded, flush=True)\n"
    )
    with start_parent(program, tmp_path) as parent:
        wait_for((tmp_path / "importing").exists)
        os.kill(server_of(parent.pid), signal.SIGKILL)
        out, _ = parent.communicate(timeout=60)
    assert (parent.returncode, out) == (0, "True\n")


def test_a_data_loader_that_lives_longer_does_not_keep_its_run_alive() -> None:
    started = time.monotonic()
    assert finish(start("leave_a_child", 20))[0].succeeded
    assert time.monotonic() - started < 10


def test_progress_arrives_before_the_result() -> None:
    end, contents = finish(start("describe"))
    assert end.code == 0
    assert "half way" in contents


def test_a_failure_leaves_one_line_and_a_traceback_in_the_log(tmp_path: Path) -> None:
    end, _ = finish(start("fail", "luck", log=tmp_path / "log.txt"))
    assert (end.code, end.succeeded, end.reason) == (1, False, "ValueError: no luck")
    log = (tmp_path / "log.txt").read_text()
    assert "printed before the failure" in log
    assert "ValueError: no luck" in log
    assert "in fail" in log


@pytest.mark.parametrize("code", [0, 7])
def test_an_exit_without_a_message_leaves_its_code(code: int) -> None:
    end = finish(start("vanish", code))[0]
    assert end == Exit(code, None)
    assert end.reason == f"exited with code {code} and reported no result"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, 130)]
)
def test_a_signal_ends_a_worker_process(number: int, code: int) -> None:
    sleeper = start("sleep", 60)
    process_group.wait([sleeper], 30)
    sleeper.send_signal(number)
    assert finish(sleeper)[0].code == code


def test_stop_ends_all_groups() -> None:
    sleepers = [start("sleep", 60) for _ in range(3)]
    for sleeper in sleepers:
        process_group.wait([sleeper], 30)
    process_group.stop(sleepers)
    ends = [sleeper.poll() for sleeper in sleepers]
    assert [(end.code, end.kind) for end in ends if end] == [(130, "interrupted")] * 3


def start_parent(program: str, folder: Path, before: str = ":") -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN)}
    program = (
        f"import time; from normbench.execution import process_group, worker_process\n{program}"
    )
    return subprocess.Popen(
        ["bash", "-c", f'{before}; exec "$0" -c "$1"', sys.executable, program],
        stdout=subprocess.PIPE, cwd=folder, env=environment, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_process_outlives_its_parent(tmp_path: Path, number: int) -> None:
    program = (
        "worker_process.start_server(())\n"
        "group = process_group.start('child_work:sleep', 600)\n"
        "process_group.wait([group], 60); print('ready', group.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with start_parent(program, tmp_path) as parent:
        assert parent.stdout is not None
        ready, pid = parent.stdout.readline().split()
        assert ready == "ready"
        assert int(pid) in processes(str(tmp_path))
        parent.send_signal(number)
        parent.wait()
    wait_until_gone(tmp_path)


@pytest.mark.parametrize("end", ["", "time.sleep(600)"], ids=["exits", "killed"])
def test_the_fork_server_ends_with_its_parent_during_its_imports(tmp_path: Path, end: str) -> None:
    """It holds the standard output, so a pipe from the command line stays open until it ends."""
    program = (
        "worker_process.start_server(['slow_import'])\n"
        f"while not __import__('os').path.exists('importing'): time.sleep(0.01)\n{end}"
    )
    with start_parent(program, tmp_path) as parent:
        while not (tmp_path / "importing").exists():
            time.sleep(0.01)
        if end:
            parent.kill()
        started = time.monotonic()
        parent.communicate()
    assert time.monotonic() - started < 5  # slow_import takes 20 s
    wait_until_gone(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (f"export TMPDIR=$PWD/{'a' * 100}; mkdir $TMPDIR", "AF_UNIX path too long"),
        ("ulimit -n 12", "only 12 files may be open at a time (ulimit -n), and a run needs 64"),
    ],
    ids=["long TMPDIR", "few files"],
)
def test_a_server_that_cannot_start_is_one_sentence(words: str, says: str, tmp_path: Path) -> None:
    command = f"{words}; {sys.executable} -m normbench {' '.join(SHORT)}"
    end = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert end.returncode == 2, end.stderr
    assert end.stderr.startswith("normbench: ")
    assert says in end.stderr
    assert end.stderr.count("\n") == 1


def test_a_small_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    program = (
        "worker_process.start_server(())\n"
        "print(__import__('resource').getrlimit(__import__('resource').RLIMIT_NOFILE)[0])"
    )
    with start_parent(f"{program}", tmp_path, "ulimit -S -n 50") as parent:
        out, _ = parent.communicate(timeout=60)
    assert out == "1024\n"


def test_the_module_that_is_pickled_by_name_imports_nothing_heavy() -> None:
    program = (
        "import sys, normbench.execution.worker_process;"
        "print({'torch', 'hydra', 'omegaconf'} & {*sys.modules})"
    )
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert end.stdout == "set()\n"


SRUN = {"SLURM_STEP_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "4"}


@pytest.mark.parametrize(
    ("environment", "cores"),
    [
        ({}, 16),
        ({"LOCAL_WORLD_SIZE": "3"}, 5),  # ours, or torchrun's
        ({"LOCAL_WORLD_SIZE": "32"}, 1),
        (SRUN | {"LOCAL_WORLD_SIZE": "8", "SLURM_STEP_NUM_TASKS": "16"}, 4),  # a task for each rank
        (SRUN | {"LOCAL_WORLD_SIZE": "2", "SLURM_STEP_NUM_TASKS": "2"}, 2),  # torchrun in a task
        (SRUN | {"LOCAL_WORLD_SIZE": "2", "SLURM_STEP_NUM_TASKS": "1"}, 8),  # the task of a job
    ],
)
def test_the_ranks_on_a_machine_share_its_cores(
    environment: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    assert own_cores(environment) == cores


@pytest.mark.parametrize(("slots", "readers"), [(1, None), (4, 2), (16, 1)])
def test_runs_at_the_same_time_share_the_cores(
    slots: int, readers: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    jobs: list[Job] = []

    def start(_: str, group: list[Job], *_more: object, **_options: object) -> SimpleNamespace:
        jobs.extend(group)
        return SimpleNamespace()

    monkeypatch.setattr("normbench.execution.process_group.start", start)
    settings = compose([f"runs={tmp_path}", f"jobs={slots}"])[1]
    assert settings is not None
    cells = [replace(cell("norm=gn", "trainer=cpu"), seed=seed) for seed in range(16)]
    entries = [QueueEntry(make_job(each, settings)) for each in cells]
    scheduler = LocalScheduler(entries, settings, Summary(), {}, gpus=0, memory=0)
    scheduler.fill_slots()
    assert [job.cell.trainer.readers for job in jobs] == [readers] * slots


def test_a_number_of_readers_on_the_command_line_stays() -> None:
    assert cell("trainer.readers=3").with_readers(1).trainer.readers == 3
