"""The runs of a sweep as jobs of a cluster, by submitit: a job for each, in one array.

What they do is seen in the runs folder, which all machines share: a row ends a run, its curve says
how far it is. Jobs outlive this process; the same command again watches those that still wait or
run, and submits the others.
"""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from normbench import results, run_files
from normbench.config.cells import Settings
from normbench.errors import BadInput
from normbench.execution.pool import Pool, Say, Summary, Work
from normbench.history import last_record

LOOK = 1.0  # seconds between two looks at the folders
ARRAY = 1000  # jobs of one array: Slurm's own limit is 1,001
ASK = 5.0  # and between two questions to the scheduler
#: Seconds after a job's end until its row must have arrived: folders of several machines lag.
LAG = 10.0
#: What a job of Slurm may have come to.
OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "REVOKED", "TIMEOUT",
}  # fmt: skip


class Job(Protocol):
    """A run on a node; it is pickled."""

    def __call__(self) -> object:
        """Train until there is a row."""

    def stop(self) -> None:
        """End all processes of it."""


class Cluster(Pool):
    """Works on the way to their rows, as jobs.

    Args:
        works: what is to be trained.
        settings: of the command line; `launcher` has the options of Hydra's.
        summary: takes what happens.
        say: prints a line.
        job: makes what a job does out of the work.
    """

    def __init__(
        self,
        works: Sequence[Work],
        settings: Settings,
        summary: Summary,
        say: Say,
        job: Callable[[Work], Job],
    ) -> None:
        super().__init__(works, settings, summary)
        self.say, self.job = say, job
        self.options: dict[str, Any] = json.loads(settings.launcher)
        self.kind = "slurm" if "Slurm" in self.options.pop("_target_") else "local"
        # Hydra's own default lies in its scratch folder, which is gone when the jobs start.
        self.logs = self.root.resolve() / ".submitit"
        self.jobs: dict[str, Work] = {}
        self.alive: set[str] = set()
        self.gone: dict[str, float] = {}
        self.local: dict[str, Any] = {}

    def run(self) -> None:
        """Submit what no job has yet, and watch until each has its row or has failed."""
        asked = 0.0
        try:
            while self.queue or self.jobs:
                if self.queue:
                    self.submit()
                if time.monotonic() - asked > ASK:
                    self.alive, asked = self._alive(), time.monotonic()
                for number, work in list(self.jobs.items()):
                    self.look_at(number, work)
                time.sleep(LOOK)
        except BaseException:
            if self.jobs:
                numbers = " ".join(self.jobs)
                self.screen.note(f"{len(self.jobs)} jobs stay; `scancel {numbers}` takes them away")
            raise
        finally:
            self.screen.close()

    def submit(self) -> None:
        """One array of jobs for all that have none."""
        for work in self.queue:
            self.screen.began(work.cell.id, work.cell.title)
        states = {work.cell.id: run_files.read(work.folder) for work in self.queue}
        old = {
            str(state["job"]): work
            for work in self.queue
            if (state := states[work.cell.id]).get("job")
        }
        self.jobs |= old
        watched = self._alive() if old else set()
        self.jobs = {number: w for number, w in self.jobs.items() if number in watched | self.alive}
        self.alive |= watched
        # A job may have ended since the rows were read.
        new = [
            work
            for work in self.queue
            if work not in self.jobs.values() and not self.needs_nothing(work, begun=True)
        ]
        self.queue.clear()
        if not new:
            return
        submitted = self._submitted([self.job(work) for work in new])
        for work, job in zip(new, submitted, strict=True):
            self.jobs[job.job_id] = work
            self.local[job.job_id] = job
            work.started = time.monotonic()
            run_files.write(work.folder, "queued", job=job.job_id, title=work.cell.title)
        self.alive |= {job.job_id for job in submitted}
        self.say(f"{len(new)} jobs submitted, their logs are in {self.logs}")

    def _submitted(self, jobs: Sequence[Job]) -> list[Any]:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor, found = self._executor(), []
        try:
            for first in range(0, len(jobs), ARRAY):
                found += executor.map_array(_Runner(), jobs[first : first + ARRAY])
        except (FailedJobError, FailedSubmissionError, RuntimeError) as error:
            words = " ".join(str(error).split())
            raise BadInput(
                f"hydra/launcher: the jobs were not taken: {words}; hydra.launcher.partition, "
                "account, timeout_min and the like say what is asked for"
            ) from error
        return found

    def _executor(self) -> Any:
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        options = {**self.options, "additional_parameters": self._additional()}
        options.pop("submitit_folder", None)
        first = {}
        if self.kind == "slurm":
            first["slurm_max_num_timeout"] = options.pop("max_num_timeout", 0)
        shared = set(vars(BaseQueueConf()))
        if self.kind == "local":
            options = {name: value for name, value in options.items() if name in shared}
        named = {
            name if name in shared else f"slurm_{name}": value
            for name, value in options.items()
            if value is not None
        }
        executor = submitit.AutoExecutor(folder=self.logs / "%j", cluster=self.kind, **first)
        executor.update_parameters(**named)
        return executor

    def _additional(self) -> dict[str, Any]:
        """A job that is preempted is queued again, whatever the cluster's default is."""
        return {"requeue": True, **(self.options.get("additional_parameters") or {})}

    def look_at(self, number: str, work: Work) -> None:
        """Show how far a job's run is; when it is over, say how."""
        if (work.folder / "row.json").exists():
            del self.jobs[number]
            self.summary.trained += 1
            self.over(work)
            return
        if number not in self.alive and results.read(self.root, work.cell.id):
            del self.jobs[number]
            self.summary.reused += 1
            self.tell(work.cell, f"finished elsewhere  {work.cell.title}", begun=True)
            self.pass_on(work)
            return
        state = run_files.read(work.folder)
        if state.get("steps") and (last := last_record(work.folder)):
            done, loss = int(last["step"]), last["train_loss"]
            self.screen.moved(work.cell.id, done, int(state["steps"]), loss)
        if number in self.alive:
            self.gone.pop(number, None)
        elif state.get("phase") == "failed" or self._gone_for(number) > LAG:
            del self.jobs[number]
            reason = state.get("error") or f"its job {number} ended without a row"
            if state.get("phase") in ("queued", "running"):
                run_files.write(work.folder, "failed", reason, title=work.cell.title)
            self.lost(work, reason, self.logs / number)

    def _gone_for(self, number: str) -> float:
        """Seconds since a job was first found over."""
        return time.monotonic() - self.gone.setdefault(number, time.monotonic())

    def _alive(self) -> set[str]:
        """Of our jobs those that wait or run."""
        if self.kind == "local":
            return {number for number, job in self.local.items() if not job.done()}
        return alive(set(self.jobs))


def alive(numbers: set[str]) -> set[str]:
    """Of the jobs of Slurm those that wait or run; all of them while it does not answer."""
    command = ["squeue", "--noheader", "--all", "--states=all", "--array", "--format=%i %T"]
    arrays = {number.partition("_")[0] for number in numbers}
    try:
        found = subprocess.run(
            [*command, f"--jobs={','.join(sorted(arrays))}"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return numbers
    if found.returncode:  # what it has forgotten is over; anything else is its own trouble
        return set() if "Invalid job id" in found.stderr else numbers
    states = dict(line.split() for line in found.stdout.splitlines())
    return {number for number in numbers if states.get(number, "FAILED") not in OVER}


class _Runner:
    """What submitit calls on a node; before it takes a job away it asks for a checkpoint."""

    def __call__(self, job: Job) -> object:
        return job()

    def checkpoint(self, job: Job) -> Any:
        """The job that goes on later; nothing of this one may be left."""
        from submitit.helpers import DelayedSubmission

        job.stop()
        return DelayedSubmission(self, job)
