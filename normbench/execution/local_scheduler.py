"""Start the jobs of a sweep on this machine, as many at a time as it has room for."""

import math
import os
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from normbench import results, run_files
from normbench.config.cells import Settings
from normbench.config.plan import share_of_cores, usable_cores
from normbench.errors import count, one_line
from normbench.execution import process_group
from normbench.execution.distributed_env import DistributedEnv
from normbench.execution.fork_server import ServerUnavailable
from normbench.execution.job import Job, Summary
from normbench.execution.process_group import ProcessGroup
from normbench.execution.progress import print_line
from normbench.execution.provenance import now
from normbench.execution.scheduler import QueueEntry, Scheduler
from normbench.execution.worker_process import Exit
from normbench.results import Row
from normbench.run_files import describe_write_error

TRAIN = "normbench.execution.worker:train_jobs"
POLL = 0.5  # seconds between two checks for messages
REMOTE_FAILURE = 5.0  # seconds in which other machines must report why a rank of theirs failed


@dataclass(eq=False)
class Running:
    """Processes that train one job, or several stacked seeds, and the CUDA devices they use."""

    group: ProcessGroup
    entries: Sequence[QueueEntry]
    gpus: Sequence[str]


class LocalScheduler(Scheduler):
    """Train in worker processes of this machine.

    Args:
        gpus: number of CUDA devices.
        memory: bytes of one of them, or of the host.
        env: of this process, if torchrun or srun has started it as a rank of one run.
    """

    def __init__(
        self,
        entries: Sequence[QueueEntry],
        settings: Settings,
        summary: Summary,
        titles: Mapping[str, str],
        *,
        gpus: int,
        memory: int,
        env: DistributedEnv | None = None,
    ) -> None:
        super().__init__(entries, settings, summary, titles)
        self.running: list[Running] = []
        self.busy: set[str] = set()  # ids of cells that another command is training
        self.memory, self.env = memory, env
        self.fitting: dict[str, int] = {}  # by memory key, the first plan that may fit
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # indices or UUIDs: kept as they are
        self.gpus = visible.split(",") if visible else list(map(str, range(gpus)))
        self.slots = self._count_slots()

    def _count_slots(self) -> int:
        """Return how many runs are trained at a time: what the GPUs or the CPU cores allow."""
        on_gpu = any(entry.cell.trainer.accelerator == "gpu" for entry in self.queue)
        threads = max((entry.cell.trainer.threads for entry in self.queue), default=1)
        devices = max((entry.job.plan.devices for entry in self.queue), default=1)
        cores = usable_cores() // threads
        slots = self.settings.jobs or max(1, (len(self.gpus) if on_gpu else cores) // devices)
        slots = min(slots, len(self.queue))
        if slots:
            ranks = "" if devices == 1 else f", up to {devices} processes each"
            place = f"{len(self.gpus)} GPUs" if on_gpu else f"{cores * threads} CPU cores"
            print_line(f"{count(slots, 'run')} at a time{ranks}, threads={threads}, on {place}")
        return slots

    def run(self) -> None:
        """Train until every cell has a row, has failed, or the user interrupts."""
        try:
            while self.queue or self.running:
                self.fill_slots()
                process_group.wait([each.group for each in self.running], POLL)
                for running in list(self.running):
                    self.update(running)
        except BaseException:  # Ctrl-C, a closed terminal, a full disk: leave no process behind
            self.stop()
            raise
        finally:
            self.screen.close()

    def fill_slots(self) -> None:
        """Start jobs while there are free slots.

        Look for rows and locks first: it saves a process. The worker process does it again.
        """
        for _ in range(len(self.queue)):
            free = self.slots - len(self.running)
            if not self.queue or free < 1:
                return
            entry = self.queue.popleft()
            if self.prepare(entry):
                self.start([entry, *self.take_seeds(entry, free)])

    def prepare(self, entry: QueueEntry) -> bool:
        """Create the folder of a queued job; return False if it is not to be trained."""
        folder = entry.job.folder
        try:
            if not self.is_open(entry):
                return False
            folder.mkdir(parents=True, exist_ok=True)
            run_files.clear_failures(folder)
        except OSError as error:  # a full disk, or a folder of another user
            self.screen.add(entry.cell.id, self.title(entry.cell))
            self.fail(entry, describe_write_error("its folder", folder, error), folder)
            return False
        return True

    def is_open(self, entry: QueueEntry) -> bool:
        """Return whether a job from the queue still has to be trained by this command."""
        if self.finished_elsewhere(entry):
            return False
        if entry.job.computation in self.shareable:
            row = self.shareable[entry.job.computation]
            with suppress(run_files.RunLocked):
                line, written = self.copy_row(row, entry.cell)
                self.show_end(entry.cell, line, written=written)
                return False
        if self._is_trained_by_another(entry):
            if self.env is not None:  # the other ranks would wait, and then fail without a reason
                self.screen.add(entry.cell.id, self.title(entry.cell))
                self.fail(entry, "another process is training it", entry.job.log)
                return False
            self.queue.append(entry)
            if entry.cell.id not in self.busy:
                self.busy.add(entry.cell.id)
                self.screen.note(
                    f"waiting   {self.title(entry.cell)}: another process is training it"
                )
            return False
        return True

    def _is_trained_by_another(self, entry: QueueEntry) -> bool:
        """Return True if a process trains the cell now, in this sweep or in another one."""
        folders = {entry.job.folder, *self.root.glob(f"*/{entry.cell.id}")}
        return any(map(run_files.is_locked, folders))

    def take_seeds(self, entry: QueueEntry, free: int) -> list[QueueEntry]:
        """Take other seeds of the cell from the queue, to be stacked with `entry`.

        At most so many that every free slot still gets work.
        """
        key = entry.memory_key
        if not entry.stackable or key in self.fitting:  # one seed alone had no room
            return []
        seeds = [each for each in self.queue if each.stackable and each.memory_key == key]
        other_cells = {each.memory_key for each in self.queue} - {key}
        limit = math.ceil((1 + len(seeds)) / max(1, free - len(other_cells))) - 1
        seeds = seeds[:limit]
        ids = {each.cell.id for each in seeds}
        self.queue = deque(each for each in self.queue if each.cell.id not in ids)
        return [each for each in seeds if self.prepare(each)]

    def start(self, entries: Sequence[QueueEntry]) -> None:
        """Start the worker processes of one cell, or of several seeds of it."""
        first = entries[0]
        attempt = max(first.attempt, self.fitting.get(first.memory_key, 0))
        for entry in entries:
            entry.attempt, entry.started = attempt, time.monotonic()
            entry.earlier_row = entry.row_time
            self.screen.add(entry.cell.id, self.title(entry.cell))
        devices = first.job.plan.devices
        # Under torchrun or srun the launcher has chosen the devices.
        uses_gpus = first.cell.trainer.accelerator == "gpu" and self.env is None
        gpus = self.least_used_gpus(devices) if uses_gpus else []
        try:
            group = process_group.start(
                TRAIN,
                [self.with_readers(entry.job, len(entries)) for entry in entries],
                devices,
                env=self.env,
                log=first.job.log,
                environment={"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {},
            )
        except (OSError, ServerUnavailable) as error:  # too many open files, for example
            for entry in entries:
                self.fail(entry, f"no process could be started ({one_line(error)})", first.job.log)
            return
        self.running.append(Running(group, entries, gpus))

    def with_readers(self, job: Job, stacked: int) -> Job:
        """Return `job` with its share of the CPU cores for data loading, if others run too."""
        if self.slots * stacked == 1:
            return job
        readers = share_of_cores(self.slots * stacked * job.plan.devices)
        return replace(job, cell=job.cell.with_readers(readers))

    def least_used_gpus(self, number: int) -> list[str]:
        """Choose GPUs; two runs share one only if there are more slots than GPUs."""
        users = Counter(gpu for running in self.running for gpu in running.gpus)
        return sorted(self.gpus, key=lambda gpu: users[gpu])[:number]

    def update(self, running: Running) -> None:
        """Show the progress of runs, and handle their end."""
        group, entries = running.group, running.entries
        # Messages first: poll() drops what arrived before the end.
        for message in group.messages():
            if message.kind == "progress":
                index, content = message.content
                if isinstance(content, str):
                    self.screen.note(f"warning   {self.title(entries[index].cell)}: {content}")
                else:
                    self.screen.update(entries[index].cell.id, **content)
        end = group.poll()
        if end is None:
            if self.env is not None and run_files.read_failures(entries[0].job.folder):
                group.kill()  # a rank elsewhere is gone, and this one may wait for it
            return
        for index, entry in enumerate(entries):
            if not end.succeeded and entry.wrote_row:
                # Killed after its row, or of the first group of stacked seeds, which had room.
                self.summary.trained += 1
                self.finish(entry)
            elif end.kind == "memory":
                self.handle_out_of_memory(entry, end, stacked=len(entries) > 1)
            elif not end.succeeded:
                self.handle_failure(entry, end, group)
            elif end.result[index] == "busy":
                self.put_back(entry)
            else:
                self.summary.trained += end.result[index] != "finished"
                self.finish(entry)
        self.running.remove(running)  # last: a signal until then must find its jobs

    def put_back(self, entry: QueueEntry) -> None:
        """Queue a job again that another command has started since `is_open`."""
        if self.env is not None:
            self.fail(entry, "another process is training it", entry.job.log)
            return
        self.queue.append(entry)
        self.screen.remove(entry.cell.id)

    def handle_out_of_memory(self, entry: QueueEntry, end: Exit, *, stacked: bool) -> None:
        """Retry with fewer workers in a forward pass, by the next plan; without one write a row."""
        if stacked:  # a single network may fit
            entry.stackable = False
            self.retry(entry, "stacked with other seeds; trying alone")
            return
        plan, index = entry.job.plan, entry.attempt + 1
        self.fitting[entry.memory_key] = min(index, len(entry.plans) - 1)
        if self.env is not None:  # all ranks were started with this plan
            hint = f"{plan} needs too much memory; trainer.per_forward=N needs less"
            self.fail(entry, hint, entry.job.log)
        elif index < len(entry.plans):
            entry.attempt = index
            self.retry(entry, f"{plan}; trying {entry.job.plan}")
        else:
            assert end.last is not None
            row = Row(
                **entry.cell.description(self.settings.sweep),
                status="oom", reason=str(end.last.content),
                plan=str(plan), device_memory=self.memory, threads=entry.cell.trainer.threads,
                commit=entry.job.commit, finished=now(),
            )  # fmt: skip
            try:
                results.write(entry.job.folder, row)
            except OSError as error:
                reason = describe_write_error("its row", entry.job.folder, error)
                self.fail(entry, reason, entry.job.log)
            else:
                self.finish(entry)

    def retry(self, entry: QueueEntry, change: str) -> None:
        """Queue a job first that ran out of memory, and show what changes."""
        self.screen.remove(entry.cell.id)
        self.screen.note(f"out of memory  {self.title(entry.cell)}: {change}")
        self.queue.appendleft(entry)

    def handle_failure(self, entry: QueueEntry, end: Exit, group: ProcessGroup) -> None:
        """Record a run that left no row, in its state too."""
        reason, log = end.reason, process_group.log_of_rank(entry.job.log, end.rank or 0)
        if end.interrupted:  # by a signal to the run, not to this command
            reason = f"interrupted; {_resumption(entry)}"
        if self.env is not None:
            deadline = time.monotonic() + REMOTE_FAILURE
            while not run_files.read_failures(entry.job.folder) and time.monotonic() < deadline:
                time.sleep(0.2)
            # A rank that was killed from here did not fail first.
            failed_at = math.inf if end.last is None and end.code < 0 else end.timestamp
            reason, log = _remote_failure(entry, before=failed_at) or (reason, log)
        _close_state(entry, group, "failed", reason)
        self.fail(entry, reason, log)

    def stop(self) -> None:
        """Interrupt all runs and record their states."""
        stopped_at = time.time()
        if self.running:
            runs = count(sum(len(each.entries) for each in self.running), "run")
            self.screen.note(
                f"stopping {runs} with checkpoints; the same signal again stops at once"
            )
        try:
            process_group.stop(each.group for each in self.running)
        finally:
            for running in self.running:
                for entry in running.entries:
                    self.record_stop(entry, running.group, stopped_at)

    def record_stop(self, entry: QueueEntry, group: ProcessGroup, stopped_at: float) -> None:
        """Record that a run was interrupted, or that a rank elsewhere had failed before."""
        if entry.cell.id not in self.screen.time_left.running:  # its end is shown already
            return
        if entry.wrote_row:  # it was in its last evaluation
            self.summary.trained += 1
            self.finish(entry)
            return
        _close_state(entry, group, "interrupted")
        # A launcher ends all ranks once one has failed, before this one notices.
        failure = None if self.env is None else _remote_failure(entry, before=stopped_at)
        if failure and not (entry.job.folder / "row.json").exists():
            with suppress(OSError):
                run_files.update_state(entry.job.folder, phase="failed", error=failure[0])
            self.fail(entry, *failure)
        else:
            self.summary.stopped.append(f"{self.title(entry.cell)}: {_resumption(entry)}")


def _resumption(entry: QueueEntry) -> str:
    """Return what the same command does with an interrupted run."""
    state = run_files.read_state(entry.job.folder)
    resumption = run_files.describe_resumption(state)
    if resumption and not entry.job.resume:
        resumption = f"starts it over; without force=true or resume=false it {resumption}"
    resumption = resumption or "starts it over"
    error = f" (stopping failed: {state['error']})" if state.get("error") else ""
    return f"the same command {resumption}{error}"


def _close_state(
    entry: QueueEntry, group: ProcessGroup, phase: run_files.Phase, reason: str = ""
) -> None:
    """Write the state of a run that could not write it itself, because it was killed."""
    state = run_files.read_state(entry.job.folder)
    # The failure of another rank replaces that of rank 0, which only lost its connection.
    if state.get("pid") == group.pid and state["phase"] in ("running", phase):
        with suppress(OSError):  # the disk may be full; the reason is shown anyway
            error = reason or state.get("error", "")
            run_files.update_state(entry.job.folder, phase=phase, error=error)


def _remote_failure(entry: QueueEntry, before: float) -> tuple[str, Path] | None:
    """Return reason and log of the first failure of a rank elsewhere, if it was earlier."""
    failures = run_files.read_failures(entry.job.folder)
    if not failures or failures[0]["at"] >= before:
        return None
    return str(failures[0]["reason"]), Path(failures[0]["log"])
