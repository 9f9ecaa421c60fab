"""Runs as jobs of a real Slurm on this machine, and as processes of torchrun and srun."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from normbench import results, run_files
from normbench.errors import BadInput
from normbench.execution import slurm
from normbench.execution.distributed_env import distributed_env
from normbench.execution.process_group import ProcessGroup
from normbench.execution.slurm import active_jobs
from normbench.results import CHECKPOINT
from support.cells import BROKEN, PLUGIN, RESUMABLE, SHORT, run_folder
from support.commands import Command, Rows
from support.processes import is_training, run_when, wait_for
from support.rows import numbers

#: Slurm, or several commands that each import torch.
pytestmark = pytest.mark.slow

#: An hour, or Slurm's signals would count as those of a time limit.
SLURM = ("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=60")


def on_slurm(test: Any) -> Any:
    """Mark a test that needs Slurm."""
    return pytest.mark.slurm(pytest.mark.usefixtures("slurm")(test))


@on_slurm
def test_a_sweep_as_an_array_of_jobs(command: Command, rows: Rows) -> None:
    """Four cells, of which two compute the same: three jobs."""
    arguments = ("-m", "norm=bn,gn", "batch=4,8", *SHORT)
    end = command(*arguments, *SLURM)
    assert end.code == 0, end.out + end.err
    assert "3 jobs submitted" in end.out
    assert {row.status for row in rows()} == {"ok"}
    assert [row.shared_with is not None for row in rows()] == [False, False, False, True]
    assert command(*arguments, "runs=here").code == 0
    assert [numbers(row) for row in rows()] == [numbers(row) for row in results.read("here")]
    again = command(*arguments, *SLURM)
    assert "4 finished before, 0 to do" in again.out


@on_slurm
def test_a_preempted_job_is_queued_again_and_resumes(command: Command, rows: Rows) -> None:
    arguments = ("norm=bn", "batch=4", *RESUMABLE, "recipe.images=25600")
    assert command(*arguments, "runs=undisturbed").code == 0
    (expected,) = results.read("undisturbed")
    folder = run_folder(*arguments)
    jobs: list[str] = []

    def preempt() -> None:
        jobs.append(str(run_files.read_state(folder)["job"]))
        subprocess.run(["scancel", "--signal=USR2", jobs[0]], check=True)

    signaller = run_when(lambda: is_training(folder) and (folder / CHECKPOINT).exists(), preempt)
    end = command(*arguments, *SLURM)
    signaller.join()
    assert end.code == 0, end.out + end.err
    (row,) = rows()
    assert numbers(row) == numbers(expected)
    assert row.resumed == 1
    logs = "".join(path.read_text() for path in Path("runs/.submitit").glob(f"{jobs[0]}/*.err"))
    assert "preempted" in logs


@on_slurm
def test_a_job_that_fails_is_named_and_the_others_finish(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN))
    end = command(*BROKEN, "-m", "norm=broken,bn", *SHORT, *SLURM)
    assert end.code == 1
    assert "RuntimeError: this layer is broken on purpose" in end.out
    assert [row.norm for row in rows()] == ["bn"]


@on_slurm
def test_the_same_command_watches_its_earlier_jobs(command: Command, rows: Rows) -> None:
    # Long enough for the command to begin anew beside other work.
    arguments = ("norm=bn", "batch=4", *RESUMABLE, "recipe.images=51200", *SLURM)
    folder = run_folder(*arguments)
    stopper = run_when(lambda: is_training(folder), lambda: os.kill(os.getpid(), 2))
    stopped = command(*arguments)
    stopper.join()
    assert stopped.code == 130
    assert "1 job stays in the queue; `scancel " in stopped.out
    job = str(run_files.read_state(folder)["job"])
    assert active_jobs({job}) == {job}
    end = command(*arguments)
    assert end.code == 0
    assert "submitted" not in end.out
    assert [row.status for row in rows()] == ["ok"]


@on_slurm
def test_a_job_that_ends_while_the_command_starts_is_not_submitted_again(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("norm=gn", "batch=4", *RESUMABLE, *SLURM)
    folder = run_folder(*arguments)
    stopper = run_when(lambda: is_training(folder), lambda: os.kill(os.getpid(), 2))
    assert command(*arguments).code == 130
    stopper.join()

    def ended(_numbers: set[str]) -> set[str]:
        run_when((folder / "row.json").exists, lambda: None).join()
        return set()

    monkeypatch.setattr(slurm, "active_jobs", ended)
    end = command(*arguments)
    assert end.code == 0
    assert "submitted" not in end.out
    assert [row.status for row in rows()] == ["ok"]


@on_slurm
def test_a_job_that_is_cancelled_has_failed_and_can_be_resumed(
    command: Command, rows: Rows
) -> None:
    arguments = ("norm=bn", "batch=4", *RESUMABLE, "recipe.images=1000000", *SLURM)
    folder = run_folder(*arguments)

    def cancel() -> None:
        subprocess.run(["scancel", str(run_files.read_state(folder)["job"])], check=True)

    canceller = run_when(lambda: is_training(folder), cancel)
    end = command(*arguments)
    canceller.join()
    assert end.code == 1
    assert "failed  bn batch=4 seed=0" in end.out
    assert run_files.read_state(folder)["phase"] == "interrupted"
    assert (folder / CHECKPOINT).exists()
    assert rows() == []


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m"]
SRUN = ["srun", "--ntasks=2", sys.executable, "-m"]
TWO_RANKS = {
    "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
}  # fmt: skip


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(SRUN, marks=pytest.mark.slurm, id="srun"),
        pytest.param(TORCHRUN, id="torchrun"),
    ],
)
def test_processes_of_torchrun_and_srun_train_one_run(
    launcher: list[str], tmp_path: Path, command: Command, request: pytest.FixtureRequest
) -> None:
    if launcher is SRUN:
        request.getfixturevalue("slurm")
    # Not on maps of 1x1, where rounding grows to everything within 20 steps.
    arguments = ["norm=bn", "batch=4", "precision=64-true", "model.stem_stride=1", *SHORT]
    # A row of one process is there already; a run that is forced is the work of all.
    assert command(*arguments).code == 0
    (alone,) = results.read(tmp_path / "runs")
    assert "devices=1" in alone.plan
    end = subprocess.run(
        [*launcher, "normbench", "force=true", *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert end.returncode == 0, end.stdout + end.stderr
    (row,) = results.read(tmp_path / "runs")
    assert row.plan == "32 workers: devices=2 per_forward=16 accumulation=1"
    assert end.stdout.count("1/1 ok") == 1
    assert row.train_loss == pytest.approx(alone.train_loss, rel=1e-12)


def led(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same under torchrun, which must not wait for ever."""
    return subprocess.run(
        [*TORCHRUN, "normbench", *words], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_processes_of_torchrun_save_together_when_they_are_stopped(
    tmp_path: Path, command: Command
) -> None:
    words = ("norm=bn", "batch=4", *RESUMABLE[:-1], "checkpoint.every=3600")
    with subprocess.Popen(
        [*TORCHRUN, "normbench", *words, "recipe.images=128000"], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        wait_for(lambda: any(map(is_training, (tmp_path / "runs/default").glob("*"))))
        process.terminate()
        out, _ = process.communicate(timeout=60)
    (folder,) = (tmp_path / "runs/default").glob("*/")
    assert run_files.read_state(folder)["phase"] == "interrupted", out
    assert (folder / CHECKPOINT).exists(), out
    assert "the same command resumes from step" in out


def test_rank_0_decides_for_all_ranks(command: Command, tmp_path: Path) -> None:
    """A row that another sweep has left, a cell that cannot work."""
    words = ("norm=bn", "batch=4", *SHORT)
    assert command("sweeps=demo", "seed=0", *words).code == 0
    reused = led(tmp_path, *words)
    assert reused.returncode == 0, reused.stderr
    assert "1 finished before, 0 to do" in reused.stdout
    single = ("model=resnet8", "protocol=fixed_workers", "workers=2", "batch=1")
    refused = led(tmp_path, "norm=bn", *single, *SHORT)
    assert "batch normalization of a single value" in refused.stdout + refused.stderr


def test_ranks_that_cannot_be_told_to_exit_are_a_failure(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 must not succeed then: the launcher would wait for the others."""
    words = ("norm=bn", "batch=4", *SHORT)
    assert command(*words).code == 0
    monkeypatch.setattr(ProcessGroup, "rank_started", False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        variables = TWO_RANKS | {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": port}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        end = command(*words)
    assert end.code == 1
    assert f"not all ranks were told to exit (MASTER_PORT={port}): Address already in" in end.out


def test_rank_0_reports_the_failure_of_another_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN))
    end = led(tmp_path, *BROKEN, "norm=partial", "batch=4", *SHORT)
    assert end.returncode != 0
    assert "rank 1: RuntimeError: this layer is broken on purpose" in end.stdout
    (state,) = tmp_path.glob("runs/default/*/state.json")
    assert run_files.read_state(state.parent)["error"].startswith("rank 1: RuntimeError")


@pytest.mark.parametrize("of_the_end", [False, True], ids=["before", "after"])
def test_the_failure_of_a_rank_is_reported_although_rank_0_is_terminated(
    of_the_end: bool, tmp_path: Path
) -> None:
    """Launchers end all ranks once one has failed. A failure after that is a consequence."""
    variables = TWO_RANKS | {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "29713"}
    with subprocess.Popen(
        [sys.executable, "-m", "normbench", "norm=bn", "batch=4", *SHORT],
        cwd=tmp_path, env=os.environ | variables, stdout=subprocess.PIPE, text=True,
    ) as leader:  # fmt: skip
        folder = tmp_path / run_folder("norm=bn", "batch=4", *SHORT)
        wait_for((folder / "log.txt").exists)
        if not of_the_end:
            run_files.write_failure(folder, 1, "rank 1: RuntimeError: no luck", "log", time.time())
        leader.terminate()
        if of_the_end:
            run_files.write_failure(folder, 1, "rank 1: no leader", "log", time.time() + 60)
        out, _ = leader.communicate(timeout=120)
    assert ("failed: bn batch=4 seed=0" in out) != of_the_end
    assert ("rank 1: RuntimeError: no luck" in out) != of_the_end
    assert (run_files.read_state(folder).get("phase") == "failed") != of_the_end


@on_slurm
def test_the_environment_of_srun_on_several_nodes() -> None:
    variables = {
        "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "node[07-08]", "SLURM_JOB_ID": "20007", "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    }  # fmt: skip
    env = distributed_env(variables)
    assert env is not None
    assert env.variables | {"TORCHELASTIC_RUN_ID": ""} == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "node07",
        "MASTER_PORT": "20007", "TORCHELASTIC_RUN_ID": "", "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip
    assert distributed_env({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert distributed_env({}) is None
    with pytest.raises(BadInput, match="3 tasks on 2 nodes"):
        distributed_env({**variables, "SLURM_STEP_NUM_TASKS": "3"})


def test_processes_of_one_run_refuse_a_grid(command: Command) -> None:
    variables = TWO_RANKS | {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        grid = command("-m", "norm=bn,gn", *SHORT)
        odd = command("norm=bn", "batch=128", *SHORT)
    assert grid.code == odd.code == 2
    assert "2 processes were started for one run, and this command has 2 cells" in grid.err
    assert "the 1 workers of bn batch=128" in odd.err
