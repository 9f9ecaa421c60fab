"""Which runs of a sweep are submitted to a cluster. Nothing is submitted or trained."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench import run_files
from normbench.config.cells import Settings
from normbench.execution.job import Summary
from normbench.execution.scheduler import QueueEntry
from normbench.execution.slurm import Cluster, SlurmScheduler
from normbench.execution.sweep import make_job
from support.cells import cell


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tasks of all jobs; the cluster has each job that is asked for."""
    tasks: list[Any] = []

    def submit(_: Cluster, some: Sequence[Callable[[], object]]) -> list[Any]:
        tasks.extend(some)
        return [SimpleNamespace(job_id=str(900 + place)) for place, _ in enumerate(some)]

    monkeypatch.setattr(Cluster, "submit", submit)
    monkeypatch.setattr(Cluster, "active", lambda _, ids: set(ids))
    return tasks


def queue(tmp_path: Path) -> tuple[SlurmScheduler, QueueEntry]:
    launcher = '{"_target_": "hydra_plugins.SlurmLauncher"}'
    settings = Settings(
        str(tmp_path), reports=None, jobs=None, force=False, resume=True, stack_seeds=False,
        sweep="default", launcher=launcher,
    )  # fmt: skip
    only = QueueEntry(make_job(cell("trainer=cpu"), settings))
    titles = {only.cell.id: only.cell.title}
    tasks: dict[str, Callable[[], object]] = {only.cell.id: lambda: None}
    return SlurmScheduler([only], settings, Summary(), titles, tasks), only


@pytest.mark.parametrize(
    ("phase", "jobs"), [("running", 0), ("queued", 0), ("interrupted", 1), ("failed", 1)]
)
def test_the_job_of_an_interrupted_run_is_not_waited_for(
    phase: Any, jobs: int, tmp_path: Path, submitted: list[Any]
) -> None:
    """It may be the allocation in which its user has tried it, and that lives on."""
    scheduler, only = queue(tmp_path)
    run_files.write_state(only.job.folder, phase, job="500", mirror="abc")
    scheduler.submit()
    assert len(submitted) == jobs
    assert [*scheduler.watched] == ["900" if jobs else "500"]
    state = run_files.read_state(only.job.folder)
    assert state["mirror"] == "abc"  # the W&B run that it continues
    assert state["phase"] == ("queued" if jobs else phase)
