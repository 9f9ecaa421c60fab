"""Submit the jobs of a sweep to a cluster by submitit, as one array, and watch them.

Their progress is read from the runs folder, which all machines share: a row ends a run, its curve
shows how far it is. Jobs outlive this process. The same command again watches those that still wait
or run, and submits the others.
"""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from normbench import results, run_files
from normbench.config.cells import Settings
from normbench.errors import BadInput
from normbench.execution.job import Print, Summary
from normbench.execution.scheduler import QueueEntry, Scheduler
from normbench.results import last_record

POLL = 1.0  # seconds between two looks at the runs folder
QUERY = 5.0  # seconds between two calls of squeue
MAX_ARRAY = 1000  # jobs in one array; Slurm's default limit is 1,001
#: Seconds after the end of a job until its row must be visible: shared folders lag.
LAG = 10.0
#: States of a Slurm job that has ended.
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "REVOKED", "TIMEOUT",
}  # fmt: skip


class NodeTask(Protocol):
    """A run as a job on a node; it is pickled."""

    def __call__(self) -> object:
        """Train until there is a row."""

    def stop(self) -> None:
        """End all processes of the run."""


class SlurmScheduler(Scheduler):
    """Train in jobs of a cluster.

    Args:
        entries: jobs to train.
        settings: of the command line; `launcher` has the options of Hydra's launcher.
        summary: updated as jobs end.
        print_line: shows a line to the user.
        tasks: by id of a cell, what its job does on the node.
    """

    def __init__(
        self,
        entries: Sequence[QueueEntry],
        settings: Settings,
        summary: Summary,
        print_line: Print,
        tasks: Mapping[str, NodeTask],
    ) -> None:
        super().__init__(entries, settings, summary)
        self.print_line, self.tasks = print_line, tasks
        self.options: dict[str, Any] = json.loads(settings.launcher)
        self.cluster = "slurm" if "Slurm" in self.options.pop("_target_") else "local"
        # Hydra's own default is in its scratch folder, which is gone when the jobs start.
        self.logs = self.root.resolve() / ".submitit"
        self.watched: dict[str, QueueEntry] = {}  # by job id
        self.active: set[str] = set()  # ids of jobs that wait or run
        self.ended_at: dict[str, float] = {}
        self.local_jobs: dict[str, Any] = {}  # submitit's jobs on this machine, for launcher tests

    def run(self) -> None:
        """Submit the jobs, and watch until each has its row or has failed."""
        queried = 0.0
        try:
            while self.queue or self.watched:
                if self.queue:
                    self.submit()
                if time.monotonic() - queried > QUERY:
                    self.active, queried = self._active_jobs(), time.monotonic()
                for job_id, entry in list(self.watched.items()):
                    self.update(job_id, entry)
                time.sleep(POLL)
        except BaseException:
            if self.watched:
                ids = " ".join(self.watched)
                jobs = "1 job stays" if len(self.watched) == 1 else f"{len(self.watched)} jobs stay"
                self.screen.note(f"{jobs} in the queue; `scancel {ids}` cancels")
            raise
        finally:
            self.screen.close()

    def submit(self) -> None:
        """Submit one array with all queued jobs, except those that an earlier command submitted."""
        for entry in self.queue:
            self.screen.began(entry.cell.id, entry.cell.title)
        self._watch_submitted_jobs()
        # An earlier job may have ended since the rows were read.
        entries = [
            entry
            for entry in self.queue
            if entry not in self.watched.values()
            and not self.finished_elsewhere(entry, started=True)
        ]
        self.queue.clear()
        if not entries:
            return
        jobs = self._submit_tasks([self.tasks[entry.cell.id] for entry in entries])
        for entry, job in zip(entries, jobs, strict=True):
            self.watched[job.job_id] = entry
            self.local_jobs[job.job_id] = job
            entry.started = time.monotonic()
            run_files.write_state(
                entry.job.folder, "queued", job=job.job_id, title=entry.cell.title
            )
        self.active |= {job.job_id for job in jobs}
        self.print_line(f"{len(entries)} jobs submitted, their logs are in {self.logs}")

    def _watch_submitted_jobs(self) -> None:
        """Watch the active jobs that an earlier command submitted for queued cells."""
        states = [(entry, run_files.read_state(entry.job.folder)) for entry in self.queue]
        earlier = {str(state["job"]): entry for entry, state in states if state.get("job")}
        self.watched |= earlier
        if earlier:
            self.active |= self._active_jobs()
        self.watched = {id_: entry for id_, entry in self.watched.items() if id_ in self.active}

    def _submit_tasks(self, tasks: Sequence[NodeTask]) -> list[Any]:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor, jobs = self._executor(), []
        try:
            for first in range(0, len(tasks), MAX_ARRAY):
                jobs += executor.map_array(_Runner(), tasks[first : first + MAX_ARRAY])
        except (FailedJobError, FailedSubmissionError, RuntimeError) as error:
            message = " ".join(str(error).split())
            raise BadInput(
                f"hydra/launcher: the cluster rejected the jobs: {message}; set "
                "hydra.launcher.partition, account, timeout_min and the like"
            ) from error
        return jobs

    def _executor(self) -> Any:
        """Return submitit's executor with the options of Hydra's launcher."""
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        # A preempted job is queued again, whatever the default of the cluster is.
        additional = {"requeue": True, **(self.options.get("additional_parameters") or {})}
        options = {**self.options, "additional_parameters": additional}
        options.pop("submitit_folder", None)
        constructor_options = {}
        if self.cluster == "slurm":
            constructor_options["slurm_max_num_timeout"] = options.pop("max_num_timeout", 0)
        common = set(vars(BaseQueueConf()))
        if self.cluster == "local":
            options = {name: value for name, value in options.items() if name in common}
        executor = submitit.AutoExecutor(
            folder=self.logs / "%j", cluster=self.cluster, **constructor_options
        )
        executor.update_parameters(
            **{
                name if name in common else f"slurm_{name}": value
                for name, value in options.items()
                if value is not None
            }
        )
        return executor

    def update(self, job_id: str, entry: QueueEntry) -> None:
        """Show the progress of a run, and handle its end."""
        folder = entry.job.folder
        if (folder / "row.json").exists():
            del self.watched[job_id]
            self.summary.trained += 1
            self.finish(entry)
            return
        if job_id not in self.active and (rows := results.read(self.root, entry.cell.id)):
            del self.watched[job_id]
            self.reuse(entry, rows[0], started=True)
            return
        state = run_files.read_state(folder)
        if state.get("steps") and (record := last_record(folder)):
            steps, loss = int(state["steps"]), record["train_loss"]
            self.screen.moved(entry.cell.id, int(record["step"]), steps, loss)
        if job_id in self.active:
            self.ended_at.pop(job_id, None)
        elif state.get("phase") == "failed" or self._seconds_since_end(job_id) > LAG:
            del self.watched[job_id]
            reason = state.get("error") or f"job {job_id} ended without a row"
            if state.get("phase") in ("queued", "running"):
                run_files.write_state(folder, "failed", reason, title=entry.cell.title)
            self.fail(entry, reason, self.logs / job_id)

    def _seconds_since_end(self, job_id: str) -> float:
        """Return the seconds since a job was first seen to have ended."""
        return time.monotonic() - self.ended_at.setdefault(job_id, time.monotonic())

    def _active_jobs(self) -> set[str]:
        """Return the ids of our jobs that wait or run."""
        if self.cluster == "local":
            return {job_id for job_id, job in self.local_jobs.items() if not job.done()}
        return active_jobs(set(self.watched))


def active_jobs(job_ids: set[str]) -> set[str]:
    """Return those of the Slurm jobs that wait or run; all of them while Slurm does not answer."""
    command = ["squeue", "--noheader", "--all", "--states=all", "--array", "--format=%i %T"]
    arrays = {job_id.partition("_")[0] for job_id in job_ids}
    try:
        squeue = subprocess.run(
            [*command, f"--jobs={','.join(sorted(arrays))}"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return job_ids
    if (
        squeue.returncode
    ):  # Slurm forgets jobs some time after their end; anything else is transient
        return set() if "Invalid job id" in squeue.stderr else job_ids
    states = dict(line.split() for line in squeue.stdout.splitlines())
    return {job_id for job_id in job_ids if states.get(job_id, "FAILED") not in ENDED}


class _Runner:
    """The callable that submitit pickles; before a preemption submitit asks it for a checkpoint."""

    def __call__(self, task: NodeTask) -> object:
        return task()

    def checkpoint(self, task: NodeTask) -> Any:
        """Return the job that continues later; end all processes of this one."""
        from submitit.helpers import DelayedSubmission

        task.stop()
        return DelayedSubmission(self, task)
