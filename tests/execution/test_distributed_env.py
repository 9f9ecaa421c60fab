"""Variables of torchrun and srun, and the answers of squeue. Neither is called."""

import subprocess
from subprocess import CompletedProcess
from typing import Any

import pytest

from normbench.errors import BadInput
from normbench.execution.distributed_env import distributed_env, slurm_job_id
from normbench.execution.slurm import active_jobs

TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "x", "MASTER_PORT": "1",
}  # fmt: skip
SRUN = {
    "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[07-08]", "SLURM_JOB_ID": "20007", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
}  # fmt: skip


def answer(
    monkeypatch: pytest.MonkeyPatch, output: str = "", errors: str = "", code: int = 0
) -> list[list[str]]:
    """Let every command answer this; return the list of commands, which grows."""
    commands = []

    def run(command: list[str], **options: Any) -> CompletedProcess[str]:
        commands.append(command)
        assert options["capture_output"]
        assert options["text"]
        if code and options.get("check"):
            raise subprocess.CalledProcessError(code, command)
        return CompletedProcess(command, code, output, errors)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_a_rank_of_torchrun() -> None:
    env = distributed_env({**TORCHRUN, "HOME": "/"})
    assert env is not None
    assert env.variables == TORCHRUN
    assert (env.rank, env.world_size, env.local_world_size) == (1, 4, 2)
    assert distributed_env({**TORCHRUN, "WORLD_SIZE": "2"}) is not None
    assert distributed_env({**TORCHRUN, "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("environment", "changes", "says"),
    [
        (TORCHRUN, {"WORLD_SIZE": "two"}, "WORLD_SIZE=two is no whole number"),
        (TORCHRUN, {"WORLD_SIZE": None}, "WORLD_SIZE is missing"),
        (TORCHRUN, {"RANK": None}, "RANK is missing"),
        (TORCHRUN, {"RANK": "-1"}, "RANK=-1 is no whole number"),
        (TORCHRUN, {"RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        (TORCHRUN, {"LOCAL_WORLD_SIZE": ""}, "LOCAL_WORLD_SIZE= is no whole number"),
        (TORCHRUN, {"MASTER_PORT": "http"}, "MASTER_PORT=http is no whole number"),
        (SRUN, {"SLURM_STEP_NUM_TASKS": "4(x2)"}, "SLURM_STEP_NUM_TASKS=4(x2) is no whole number"),
        (SRUN, {"SLURM_STEP_NUM_NODES": None}, "SLURM_STEP_NUM_NODES is missing"),
        (SRUN, {"SLURM_STEP_NUM_NODES": "0"}, "4 tasks on 0 nodes"),
        (SRUN, {"SLURM_JOB_ID": "9" * 30}, "is no whole number"),
        (SRUN, {"SLURM_PROCID": None}, "SLURM_PROCID is missing"),
        (SRUN, {"SLURM_STEP_NODELIST": None}, "scontrol lists no hosts"),
    ],
    ids=str,
)
def test_damaged_variables_are_refused_in_one_sentence(
    environment: dict[str, str], changes: dict[str, str | None], says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    answer(monkeypatch)
    changed = {name: text for name, text in {**environment, **changes}.items() if text is not None}
    with pytest.raises(BadInput) as refusal:
        distributed_env(changed)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_array_without_a_task_has_an_id() -> None:
    assert slurm_job_id({"SLURM_ARRAY_JOB_ID": "7"}) == "7_"


def test_a_rank_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer(monkeypatch, "node07\nnode08\n")
    env = distributed_env(SRUN)
    assert env is not None
    assert env.variables == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "node07",
        "MASTER_PORT": str(20_000 + (20_007 + 7 * 3) % 10_000),
        "TORCHELASTIC_RUN_ID": "20007.3", "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip
    assert commands == [["scontrol", "show", "hostnames", "node[07-08]"]]
    assert distributed_env({**SRUN, "SLURM_STEP_NUM_TASKS": "2"}) is not None


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_STEP_ID": "0"},
        {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": "4"},  # sbatch, without srun
    ],
)
def test_a_process_that_is_alone(environment: dict[str, str]) -> None:
    assert distributed_env(environment) is None


def test_nodes_have_as_many_tasks_each_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = "every node needs the same number of tasks, as in srun -N2 -n8$"
    with pytest.raises(BadInput, match=f"^3 tasks on 2 nodes: {needed}"):
        distributed_env({**SRUN, "SLURM_STEP_NUM_TASKS": "3"})
    answer(monkeypatch, code=1)
    with pytest.raises(BadInput, match=r"^scontrol cannot list the nodes node\[07-08\]: "):
        distributed_env(SRUN)


def test_the_id_of_a_job() -> None:
    assert slurm_job_id({}) is None
    assert slurm_job_id({"SLURM_JOB_ID": "7"}) == "7"
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert slurm_job_id(array) == "7_2"


def test_jobs_that_wait_or_run_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer(monkeypatch, "7_0 RUNNING\n7_1 COMPLETED\n8 PENDING\n9 TIMEOUT\n")
    assert active_jobs({"7_0", "7_1", "8", "9", "10"}) == {"7_0", "8"}
    assert commands == [
        [
            "squeue", "--noheader", "--all", "--states=all", "--array", "--format=%i %T",
            "--jobs=10,7,8,9",
        ]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("errors", "active"),
    [("slurm_load_jobs error: Invalid job id specified", set()), ("Socket timed out", {"7"})],
)
def test_jobs_are_active_while_slurm_does_not_answer(
    errors: str, active: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, errors=errors, code=1)
    assert active_jobs({"7"}) == active


@pytest.mark.parametrize("error", [OSError("none"), subprocess.TimeoutExpired("squeue", 60)])
def test_a_machine_without_squeue_knows_no_end(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **options: Any) -> None:
        assert options["timeout"] == 60
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert active_jobs({"7"}) == {"7"}
