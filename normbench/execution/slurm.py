"""Submit the jobs of a sweep to a cluster by submitit, as one array, and watch them.

Their progress is read from the runs folder, which all machines share: a row ends a run, its curve
shows how far it is. Jobs outlive this process. The same command again watches those that still wait
or run, and submits the others.
"""

import json
import math
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from normbench import results, run_files
from normbench.config.cells import Settings
from normbench.errors import BadInput, count
from normbench.execution.job import Summary
from normbench.execution.progress import print_line
from normbench.execution.scheduler import QueueEntry, Scheduler
from normbench.records.history import last_record
from normbench.run_files import describe_write_error

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


class SlurmScheduler(Scheduler):
    """Train in jobs of a cluster.

    `settings.launcher` has the options of Hydra's launcher.

    Args:
        tasks: by id of a cell, what its job does on the node.
    """

    def __init__(
        self,
        entries: Sequence[QueueEntry],
        settings: Settings,
        summary: Summary,
        titles: Mapping[str, str],
        tasks: Mapping[str, Callable[[], object]],
    ) -> None:
        super().__init__(entries, settings, summary, titles)
        self.tasks = tasks
        self.cluster = Cluster(settings.launcher, self.root)
        self.logs = self.cluster.logs
        self.watched: dict[str, QueueEntry] = {}  # by job id
        self.active: set[str] = set()  # ids of jobs that wait or run
        self.ended_at: dict[str, float] = {}  # by job id, when its end was noticed

    def run(self) -> None:
        """Submit the jobs, and watch until each has its row or has failed."""
        queried = 0.0
        try:
            while self.queue or self.watched:
                if self.queue:
                    self.submit()
                if time.monotonic() - queried > QUERY:
                    self.active, queried = self.cluster.active(self.watched), time.monotonic()
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
        self._watch_submitted_jobs()
        entries: list[QueueEntry] = []
        while self.queue:
            entry = self.queue.popleft()
            if entry in self.watched.values():
                self.screen.add(entry.cell.id, self.title(entry.cell))
            # An earlier job may have ended since the rows were read.
            elif not self.finished_elsewhere(entry):
                self.screen.add(entry.cell.id, self.title(entry.cell))
                entries.append(entry)
        if not entries:
            return
        rest = deque(entries)
        try:
            for jobs in self.cluster.submit([self.tasks[entry.cell.id] for entry in entries]):
                for job in jobs:
                    self._watch(job.job_id, rest.popleft())
        except BadInput as rejection:
            if len(rest) == len(entries):
                raise
            for entry in rest:  # the jobs before them are in the queue of the cluster
                self.fail(entry, str(rejection), self.logs)
        print_line(f"{count(len(entries) - len(rest), 'job')} submitted; logs are in {self.logs}")

    def _watch(self, job_id: str, entry: QueueEntry) -> None:
        """Watch a job that has just been submitted."""
        self.watched[job_id] = entry
        self.active.add(job_id)
        entry.started = time.monotonic()
        with suppress(OSError):  # on a full disk the job says itself what it lacks
            # An update keeps the W&B run that a job continues.
            write: Any = run_files.update_state if entry.job.resume else run_files.write_state
            write(entry.job.folder, phase="queued", error="", job=job_id, title=entry.cell.title)

    def _watch_submitted_jobs(self) -> None:
        """Watch the active jobs that an earlier command submitted for queued cells."""
        states = [(entry, run_files.read_state(entry.job.folder)) for entry in self.queue]
        # A run that was interrupted in an allocation of its user has that job, which lives on.
        earlier = {
            str(state["job"]): entry
            for entry, state in states
            if state.get("job") and state.get("phase") in ("queued", "running")
        }
        self.watched |= earlier
        if earlier:
            self.active |= self.cluster.active(self.watched)
        self.watched = {id_: entry for id_, entry in self.watched.items() if id_ in self.active}

    def update(self, job_id: str, entry: QueueEntry) -> None:
        """Show the progress of a run, and handle its end."""
        folder = entry.job.folder
        if (folder / "row.json").exists():
            del self.watched[job_id]
            self.summary.trained += 1
            self.finish(entry)
            return
        if job_id not in self.active:
            rows = results.read(self.root, entry.cell.id)
            if rows and rows[0].finished >= self.settings.newer_than:
                del self.watched[job_id]
                self.screen.remove(entry.cell.id)
                self.reuse(entry, rows[0])
                return
        state = run_files.read_state(folder)
        if isinstance(state.get("steps"), int) and (record := last_record(folder)):
            loss = record.get("train_loss", math.nan)
            self.screen.update(entry.cell.id, int(record["step"]), state["steps"], loss)
        if job_id in self.active:
            self.ended_at.pop(job_id, None)
            return
        ended_at = self.ended_at.setdefault(job_id, time.monotonic())
        if state.get("phase") == "failed" or time.monotonic() - ended_at > LAG:
            del self.watched[job_id]
            reason = state.get("error") or f"job {job_id} ended without a row"
            if resumption := run_files.describe_resumption(state):
                reason += f"; the same command {resumption}"
            if state.get("phase") in ("queued", "running"):
                with suppress(OSError):
                    run_files.update_state(
                        folder, phase="failed", error=reason, title=entry.cell.title
                    )
            self.fail(entry, reason, self.logs / job_id)


class Cluster:
    """A cluster as the options of Hydra's launcher describe it.

    Args:
        launcher: these options, as JSON.
        runs: root of the runs; the logs of all jobs are below it.
    """

    def __init__(self, launcher: str, runs: Path) -> None:
        self.options: dict[str, Any] = json.loads(launcher)
        self.is_local = "Slurm" not in self.options.pop("_target_")
        # Hydra's own default is in its scratch folder, which is gone when the jobs start.
        self.logs = runs.resolve() / ".submitit"
        self._submitted: dict[str, Any] = {}  # submitit's objects by job id

    def submit(self, tasks: Sequence[Callable[[], object]]) -> Iterator[list[Any]]:
        """Submit jobs in arrays; yield submitit's objects of each array.

        Raises:
            BadInput: the cluster rejects an array, or the logs cannot be written.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            executor = self._executor()
            for first in range(0, len(tasks), MAX_ARRAY):
                with executor.batch():  # an array
                    jobs = [executor.submit(task) for task in tasks[first : first + MAX_ARRAY]]
                self._submitted |= {job.job_id: job for job in jobs}
                yield jobs
        except (FailedJobError, FailedSubmissionError, RuntimeError) as error:
            message = " ".join(str(error).split())
            raise BadInput(
                f"hydra/launcher: the cluster rejected the jobs: {message}; set "
                "hydra.launcher.partition, account, timeout_min and the like"
            ) from error
        except OSError as error:
            raise BadInput(describe_write_error(self.logs, self.logs, error)) from None

    def active(self, job_ids: Iterable[str]) -> set[str]:
        """Return those of the jobs that wait or run.

        With the launcher `submitit_local`, only those that this object has submitted are known.
        """
        ids = set(job_ids)
        if self.is_local:
            return {id_ for id_ in ids & self._submitted.keys() if not self._submitted[id_].done()}
        return active_jobs(ids) if ids else set()

    def _executor(self) -> Any:
        """Return submitit's executor with the options of Hydra's launcher."""
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        # A preempted job is queued again, whatever the default of the cluster is.
        additional = {"requeue": True, **(self.options.get("additional_parameters") or {})}
        options = {**self.options, "additional_parameters": additional}
        options.pop("submitit_folder", None)
        executor = submitit.AutoExecutor(
            folder=self.logs / "%j",
            cluster="local" if self.is_local else "slurm",
            slurm_max_num_timeout=options.pop("max_num_timeout", 0),
        )
        common = vars(BaseQueueConf())
        executor.update_parameters(
            **{
                name if name in common else f"slurm_{name}": value
                for name, value in options.items()
                if value is not None
            }
        )
        return executor


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
    if squeue.returncode:
        # Slurm forgets jobs some time after their end; anything else is transient.
        return set() if "Invalid job id" in squeue.stderr else job_ids
    states = dict(line.split() for line in squeue.stdout.splitlines())
    return {job_id for job_id in job_ids if states.get(job_id, "FAILED") not in ENDED}
