"""Which runs of a sweep are submitted to a cluster. Nothing is submitted or trained."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench import run_files
from normbench.config.cells import Settings
from normbench.errors import BadInput
from normbench.execution.job import Summary
from normbench.execution.scheduler import QueueEntry
from normbench.execution.slurm import Cluster, SlurmScheduler
from normbench.execution.sweep import make_job
from support.cells import cell


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tasks of all jobs; the cluster has each job that is asked for."""
    tasks: list[Any] = []

    def submit(_: Cluster, some: Sequence[Callable[[], object]]) -> Iterator[list[Any]]:
        for task in some:  # each is an array
            if len(tasks) == 2:
                raise BadInput("the cluster rejected the jobs: too many")
            tasks.append(task)
            yield [SimpleNamespace(job_id=str(899 + len(tasks)))]

    monkeypatch.setattr(Cluster, "submit", submit)
    monkeypatch.setattr(Cluster, "active", lambda _, ids: set(ids))
    return tasks


def queue(tmp_path: Path, seeds: int = 1) -> tuple[SlurmScheduler, list[QueueEntry]]:
    launcher = '{"_target_": "hydra_plugins.SlurmLauncher"}'
    settings = Settings(
        str(tmp_path), reports=None, jobs=None, force=False, resume=True, stack_seeds=False,
        sweep="default", launcher=launcher,
    )  # fmt: skip
    cells = [cell("trainer=cpu", f"seed={seed}") for seed in range(seeds)]
    entries = [QueueEntry(make_job(each, settings)) for each in cells]
    titles = {each.id: each.title for each in cells}
    tasks: dict[str, Callable[[], object]] = {each.id: lambda: None for each in cells}
    return SlurmScheduler(entries, settings, Summary(), titles, tasks), entries


@pytest.mark.parametrize(
    ("phase", "jobs"), [("running", 0), ("queued", 0), ("interrupted", 1), ("failed", 1)]
)
def test_the_job_of_an_interrupted_run_is_not_waited_for(
    phase: Any, jobs: int, tmp_path: Path, submitted: list[Any]
) -> None:
    """It may be the allocation in which its user has tried it, and that lives on."""
    scheduler, (only,) = queue(tmp_path)
    run_files.write_state(only.job.folder, phase, job="500", mirror="abc")
    scheduler.submit()
    assert len(submitted) == jobs
    assert [*scheduler.watched] == ["900" if jobs else "500"]
    state = run_files.read_state(only.job.folder)
    assert state["mirror"] == "abc"  # the W&B run that it continues
    assert state["phase"] == ("queued" if jobs else phase)


def test_a_forced_run_begins_another_run_of_wandb(tmp_path: Path, submitted: list[Any]) -> None:
    scheduler, (only,) = queue(tmp_path)
    only.job = replace(only.job, force=True, resume=False)
    run_files.write_state(only.job.folder, "interrupted", mirror="abc", saved=40, steps=100)
    scheduler.submit()
    assert len(submitted) == 1
    assert {"mirror", "saved"}.isdisjoint(run_files.read_state(only.job.folder))


def test_what_was_submitted_is_watched_although_the_cluster_rejects_the_rest(
    tmp_path: Path, submitted: list[Any]
) -> None:
    scheduler, entries = queue(tmp_path, 3)
    scheduler.submit()
    assert [*scheduler.watched] == ["900", "901"]
    assert [run_files.read_state(each.job.folder).get("job") for each in entries[:2]] == [
        "900",
        "901",
    ]
    (failure,) = scheduler.summary.failed
    assert entries[2].cell.title in failure
    assert "the cluster rejected the jobs: too many" in failure
    alone, _ = queue(tmp_path / "other")
    with pytest.raises(BadInput, match="too many"):  # nothing was submitted
        alone.submit()


def test_logs_that_cannot_be_written_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".submitit").write_text("a file")
    cluster = Cluster('{"_target_": "hydra_plugins.LocalLauncher"}', tmp_path)
    with pytest.raises(BadInput, match=r"\.submitit cannot be written \(.* is no folder\)"):
        [*cluster.submit([print])]
