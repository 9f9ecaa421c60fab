"""Children of the fork server: what they are, what they report, how they end."""

import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench.config.cells import Request
from normbench.config.compose import compose
from normbench.config.plan import own_cores
from normbench.execution import process_group, worker_process
from normbench.execution.pool import Machine, Summary, Work
from normbench.execution.process_group import Ranks
from normbench.execution.scheduler import Jobs
from normbench.execution.sweep import PRELOADED
from normbench.execution.worker_process import Child, Ended
from support.cells import PLUGIN, cell
from support.processes import finish, processes, wait_until_gone


def start(function: str, request: Any = None, **options: Any) -> Child:
    worker_process.start_server(PRELOADED)
    return worker_process.start(f"child_work:{function}", request, **options)


def test_a_child_is_forked_from_what_the_server_has_imported() -> None:
    end, _ = finish(start("describe", "cell", environment={"NORMBENCH_TEST": "late"}))
    assert end.last is not None
    assert end.last.content == {
        "request": "cell",
        "preloaded": ["torch", "pytorch_lightning", "hydra"],
        "leads_its_session": True,
        "environment": "late",  # although the server's environment was frozen before
        "torch_threads": 1,
        "python_threads": ["Thread-1 (_die_with_parent)"],
    }


def test_a_server_that_was_killed_is_followed_by_one_like_it() -> None:
    sleeper = start("sleep", 60)
    worker_process.wait([sleeper], 30)
    server: Any = forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGKILL)
    assert finish(sleeper)[0].code != 0
    end, _ = finish(start("describe"))
    assert end.last is not None
    assert end.last.content["preloaded"] == ["torch", "pytorch_lightning", "hydra"]


def test_a_child_reports_on_the_way() -> None:
    end, said = finish(start("describe"))
    assert end.code == 0
    assert "half way" in said


def test_a_failure_is_a_line_a_trace_and_a_log(tmp_path: Path) -> None:
    end, _ = finish(start("fail", "luck", log=tmp_path / "log.txt"))
    assert end.code == 1
    assert end.last is not None
    assert (end.last.kind, end.last.content) == ("failed", "ValueError: no luck")
    log = (tmp_path / "log.txt").read_text()
    assert "said before the failure" in log
    assert "ValueError: no luck" in log
    assert "in fail" in log


@pytest.mark.parametrize("code", [0, 7])
def test_a_child_that_vanishes_leaves_its_exit_code(code: int) -> None:
    assert finish(start("vanish", code))[0] == Ended(code, None)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, -15)]
)
def test_a_child_that_is_signalled_ends(number: int, code: int) -> None:
    child = start("sleep", 60)
    worker_process.wait([child], 30)
    child.signal(number)
    assert finish(child)[0].code == code


def test_stopping_ends_all_children() -> None:
    sleepers = [start("sleep", 60) for _ in range(3)]
    for child in sleepers:
        worker_process.wait([child], 30)
    process_group.stop([Ranks([child]) for child in sleepers])
    assert [child.process.exitcode for child in sleepers] == [130] * 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_its_parent(tmp_path: Path, number: int) -> None:
    """The parent cannot say goodbye: its child must notice."""
    program = (
        "import os, time; from normbench.execution import worker_process\n"
        "worker_process.start_server(())\n"
        "child = worker_process.start('child_work:sleep', 600)\n"
        "worker_process.wait([child], 60); print('ready', child.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE, cwd=tmp_path, env=environment, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        ready, pid = parent.stdout.readline().split()
        assert ready == "ready"
        assert int(pid) in processes(str(tmp_path))
        parent.send_signal(number)
        parent.wait()
    wait_until_gone(tmp_path)


def test_the_module_that_is_pickled_by_name_imports_nothing_heavy() -> None:
    program = (
        "import sys, normbench.execution.worker_process;"
        "print({'torch', 'hydra', 'omegaconf'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "set()\n"


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
def test_the_processes_of_a_machine_share_its_cores(
    environment: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    assert own_cores(environment) == cores


@pytest.mark.parametrize(("jobs", "readers"), [(1, None), (4, 2), (16, 1)])
def test_runs_beside_each_other_share_the_cores(
    jobs: int, readers: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    asked: list[Request] = []

    def start(_: str, request: Request, *_more: object, **_options: object) -> SimpleNamespace:
        asked.append(request)
        return SimpleNamespace(pid=len(asked))

    monkeypatch.setattr("normbench.execution.process_group.start", start)
    cells = [cell("norm=gn", f"seed={seed}", "trainer=cpu") for seed in range(16)]
    works = [Work(each, tmp_path / each.id) for each in cells]
    settings = compose([f"runs={tmp_path}", f"jobs={jobs}"])[1]
    assert settings is not None
    running = Jobs(works, settings, Summary(), Machine(0, 0), lambda _: None)
    running.fill()
    assert [request.cell.trainer.readers for request in asked] == [readers] * jobs


def test_readers_that_are_asked_for_stay() -> None:
    assert cell("trainer.readers=3").with_readers(1).trainer.readers == 3
