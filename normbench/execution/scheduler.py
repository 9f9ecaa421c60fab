"""The runs of a sweep on one machine: so many beside each other, each until it has its row.

Nothing here imports torch: that is done in processes of their own
(`normbench.execution.process_group`).
"""

import math
import os
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from normbench import results, run_files
from normbench.config.cells import Request, Settings
from normbench.config.plan import share_of_cores
from normbench.execution import process_group, worker_process
from normbench.execution.distributed_env import Place
from normbench.execution.pool import Machine, Pool, Say, Summary, Work, when, why
from normbench.execution.process_group import Seat
from normbench.execution.provenance import commit, now
from normbench.execution.worker_process import Ended
from normbench.results import Row

RUN, SEVERAL = "normbench.execution.worker:main", "normbench.execution.worker:several"
ELSEWHERE = 5.0  # seconds that other machines have to tell why a rank of theirs has failed


def request_of(work: Work, settings: Settings, commit: str, *, led: bool = False) -> Request:
    """What the processes of a run are told."""
    return Request(
        cell=work.cell,
        plan=work.plan,
        folder=work.folder,
        sweep=settings.sweep,
        commit=commit,
        force=settings.force,
        resume=settings.resume and not settings.force,
        computation=work.computation,
        init=work.init,
        led=led,
    )


class Jobs(Pool):
    """Works on the way to their rows, in processes of this machine.

    Args:
        works: what is to be trained.
        settings: of the command line.
        summary: takes what happens.
        machine: what there is to train on.
        say: prints a line.
        place: where torchrun or srun has started this process as one of a run's; None: alone.
    """

    def __init__(
        self,
        works: Sequence[Work],
        settings: Settings,
        summary: Summary,
        machine: Machine,
        say: Say,
        place: Place | None = None,
    ) -> None:
        super().__init__(works, settings, summary)
        self.running: list[Work] = []
        self.waiting: set[str] = set()  # ids of cells that others train
        self.machine, self.place = machine, place
        self.fitting: dict[str, int] = {}  # by `Work.alike`, the first plan that is not too large
        self.commit = commit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.gpus = visible.split(",") if visible else list(map(str, range(machine.gpus)))
        self.jobs = self._how_many(say)

    def _how_many(self, say: Say) -> int:
        """Runs beside each other: as many as the GPUs, or the CPU's cores, hold."""
        on_gpu = any(work.cell.trainer.accelerator == "gpu" for work in self.queue)
        threads = max((work.cell.trainer.threads for work in self.queue), default=1)
        devices = max((work.plan.devices for work in self.queue), default=1)
        cores = len(os.sched_getaffinity(0)) // threads
        jobs = self.settings.jobs or max(1, (len(self.gpus) if on_gpu else cores) // devices)
        jobs = min(jobs, len(self.queue))
        many = "" if devices == 1 else f" of up to {devices} processes"
        place = f"on {len(self.gpus)} GPUs" if on_gpu else f"on {cores * threads} cores of the CPU"
        if jobs:
            say(f"{jobs} at once{many}, threads={threads} each, {place}")
        return jobs

    def run(self) -> None:
        """Train until every cell has a row, has failed or the user has had enough."""
        try:
            while self.queue or self.running:
                self.fill()
                worker_process.wait((work.child for work in self.running if work.child), 0.5)
                for work in list(self.running):
                    self.look_at(work)
        except BaseException:  # Ctrl-C, a terminal that is gone, a full disk: leave nothing behind
            self.stop()
            raise
        finally:
            self.screen.close()

    def fill(self) -> None:
        """Start what can start. A cell that another sweep trains goes to the end of the queue.

        The child looks at row and lock again, under the lock; looking here saves a process.
        """
        for _ in range(len(self.queue)):
            free = self.jobs - len({work.child.pid for work in self.running if work.child})
            if not self.queue or free < 1:
                return
            work = self.queue.popleft()
            if self.is_open(work):
                self.start([work, *self.mates(work, free)])

    def is_open(self, work: Work) -> bool:
        """Whether nobody trains or has trained a work that was taken from the queue."""
        if self.needs_nothing(work):
            return False
        if work.computation in self.computed:
            self.share(self.computed[work.computation], work.cell)
            return False
        if run_files.is_busy(work.folder):
            self.queue.append(work)
            if work.cell.id not in self.waiting:
                self.waiting.add(work.cell.id)
                self.screen.note(f"waits     {work.cell.title}: another process trains it")
            return False
        return True

    def mates(self, work: Work, free: int) -> list[Work]:
        """Other seeds to be trained with `work`, taken from the queue.

        Not more than leave as many processes as can be beside each other something to do.
        """
        if not work.together or work.alike in self.fitting:
            return []
        alike = [each for each in self.queue if each.together and each.alike == work.alike]
        others = {each.alike for each in self.queue} - {work.alike}
        most = math.ceil((1 + len(alike)) / max(1, free - len(others))) - 1
        taken = alike[:most]
        ids = {each.cell.id for each in taken}
        self.queue = deque(each for each in self.queue if each.cell.id not in ids)
        return [each for each in taken if self.is_open(each)]

    def start(self, works: Sequence[Work]) -> None:
        """Train one cell, or several seeds of it, in processes of their own."""
        first = works[0]
        first.attempt = max(first.attempt, self.fitting.get(first.alike, 0))
        environment: dict[str, str | None] = {}
        # Or who started us has chosen them.
        if self.gpus and first.cell.trainer.accelerator == "gpu" and self.place is None:
            first.gpus = self.least_used(first.plan.devices)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(first.gpus)
        requests = [self.request(work, first, len(works)) for work in works]
        log = first.folder / "log.txt"
        if len(works) > 1:
            shared = process_group.start(SEVERAL, requests, 1, log=log, environment=environment)
            for work, seat in zip(works, process_group.seats(shared, len(works)), strict=True):
                work.child = seat
        elif self.place is None:
            devices = first.plan.devices
            first.child = process_group.start(
                RUN, requests[0], devices, log=log, environment=environment
            )
        else:
            first.child = process_group.join(
                RUN, requests[0], self.place, log=log, environment=environment
            )
        self.running += works
        for work in works:
            self.screen.began(work.cell.id, work.cell.title)

    def request(self, work: Work, first: Work, together: int) -> Request:
        """What is said to the process that trains `work` and others, `first` being one of them."""
        work.started = time.monotonic()
        work.attempt, work.gpus = first.attempt, first.gpus
        work.folder.mkdir(parents=True, exist_ok=True)
        run_files.forget_failures(work.folder)
        request = request_of(work, self.settings, self.commit, led=self.place is not None)
        if self.jobs * together > 1:
            readers = share_of_cores(self.jobs * together * work.plan.devices)
            request = replace(request, cell=work.cell.with_readers(readers))
        return request

    def least_used(self, number: int) -> list[str]:
        """So many GPUs; two runs share one only if there are more jobs than GPUs."""
        used = Counter(gpu for each in self.running for gpu in each.gpus)
        return sorted(self.gpus, key=lambda gpu: used[gpu])[:number]

    def look_at(self, work: Work) -> None:
        """Show how far a run is; when it is over, say how."""
        assert work.child is not None
        # Messages before the end: a child may have said its last word and be gone meanwhile.
        for message in work.child.messages():
            if message.kind == "progress":
                self.screen.moved(work.cell.id, **message.content)
        end = work.child.ended()
        if end is None:
            if self.place is not None and run_files.failures(work.folder):
                work.child.kill()  # a rank elsewhere is gone, and this one may not have noticed
            return
        self.running.remove(work)
        said = end.last.content if end.last is not None and end.last.kind == "result" else None
        if said == "busy" and self.place is not None:
            self.lost(work, "another process trains it", work.folder / "log.txt")
        elif said == "busy":
            # Another sweep was faster between our look at the lock and the child's.
            self.queue.append(work)
            self.screen.left(work.cell.id)
        elif end.last is not None and end.last.kind == "memory":
            self.too_large(work, str(end.last.content))
        elif said is None:
            self.failed(work, end)
        else:
            self.summary.trained += said != "finished"
            self.over(work)

    def too_large(self, work: Work, reason: str) -> None:
        """A plan needs more memory than there is; the next one computes the same in portions."""
        if isinstance(work.child, Seat):  # of several networks: one by one they may fit
            work.together = False
            self.screen.left(work.cell.id)
            self.screen.note(f"too large  {work.cell.title}: with other seeds; now alone")
            self.queue.appendleft(work)
            return
        large, work.attempt = work.plan, work.attempt + 1
        self.fitting[work.alike] = min(work.attempt, len(work.plans) - 1)
        if self.place is not None:  # the others were told of one plan
            hint = f"{large} needs too much memory; trainer.per_forward=N needs less"
            self.lost(work, hint, work.folder / "log.txt")
            return
        if work.attempt < len(work.plans):
            self.screen.left(work.cell.id)
            self.screen.note(f"too large  {work.cell.title}: {large}; now {work.plan}")
            self.queue.appendleft(work)
            return
        asked, threads = work.cell.asked(self.settings.sweep), work.cell.trainer.threads
        row = Row(
            **asked, status="oom", reason=reason, plan=str(large), memory=self.machine.memory,
            threads=threads, commit=self.commit, finished=now(),
        )  # fmt: skip
        results.write(work.folder, row)
        self.over(work)

    def failed(self, work: Work, end: Ended) -> None:
        """The run left no row; its state says why, too."""
        reason, log = why(end), process_group.log_of(work.folder / "log.txt", end.rank or 0)
        if self.place is not None:
            reason, log = self.first_failure(work, end, reason, log)
        self.close(work, "failed", reason)
        self.lost(work, reason, log)

    def first_failure(self, work: Work, end: Ended, reason: str, log: Path) -> tuple[str, Path]:
        """Of our rank's failure and those that ranks elsewhere have told the earliest."""
        deadline = time.monotonic() + ELSEWHERE
        while not run_files.failures(work.folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        # Whom we have ended ourselves has not failed before anybody.
        own = math.inf if end.last is None and end.code < 0 else when(end)
        return _told(work, before=own) or (reason, log)

    def stop(self) -> None:
        """Interrupt what runs."""
        began = time.time()
        try:
            process_group.stop(work.child for work in self.running if work.child)
        finally:
            for work in self.running:
                self.close(work, "interrupted")
                # Who started the ranks ends all of them once one has failed, before we may look.
                told = None if self.place is None else _told(work, before=began)
                if told and not (work.folder / "row.json").exists():
                    run_files.change(work.folder, phase="failed", error=told[0])
                    self.lost(work, *told)

    def close(self, work: Work, phase: run_files.Phase, reason: str = "") -> None:
        """Write the state of a run that could not do it itself, as one that was killed."""
        state = run_files.read(work.folder)
        own = work.child is not None and state.get("pid") == work.child.pid
        # What another rank has died of is the reason, and not that rank 0 lost its connection.
        if own and state["phase"] in ("running", phase):
            run_files.change(work.folder, phase=phase, error=reason)


def _told(work: Work, before: float) -> tuple[str, Path] | None:
    """The earliest failure that a rank elsewhere has told, if it was before a moment; its log."""
    told = run_files.failures(work.folder)
    if not told or told[0]["at"] >= before:
        return None
    return str(told[0]["reason"]), Path(told[0]["log"])
