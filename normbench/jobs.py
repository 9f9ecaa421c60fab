"""The runs of a sweep on one machine: so many beside each other, each until it has its row.

Nothing here imports torch: that is done in processes of their own (`normbench.ranks`).
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path

from normbench import children, ranks, results
from normbench.cells import Cell, Request, Settings
from normbench.children import Ended
from normbench.plan import Plan
from normbench.progress import Screen, screen
from normbench.provenance import commit, now
from normbench.ranks import Ranks
from normbench.results import Row
from normbench.sharing import share, sources

Say = Callable[[str], None]


@dataclass
class Summary:
    """How a sweep ended."""

    reused: int = 0
    trained: int = 0
    shared: int = 0
    failed: list[str] = field(default_factory=list)
    interrupted: int = 0  # number of the signal, or 0


@dataclass
class Work:
    """A cell that has no row yet, and the processes that train it.

    Args:
        cell: what is trained.
        folder: of its run.
        computation: of all cells that compute the same as this one; empty: no other can.
        plans: how its workers can be laid, the fastest first.
        init: the checkpoint that it begins with.
        sharing: cells that get their row from this one.
        attempt: which of the plans is tried now.
        child: the processes, while there are any.
        slots: numbers of the devices that they take.
        started: when, by the clock of this process.
    """

    cell: Cell
    folder: Path
    computation: str
    plans: list[Plan]
    init: Path | None = None
    sharing: list[Cell] = field(default_factory=list)
    attempt: int = 0
    child: Ranks | None = None
    slots: list[int] = field(default_factory=list)
    started: float = 0.0

    @property
    def plan(self) -> Plan:
        return self.plans[self.attempt]

    @property
    def alike(self) -> str:
        """Works that differ in their seeds at most, and so need the same memory."""
        return repr((replace(self.cell, seed=0).id, self.plans[0].devices))


@dataclass(frozen=True)
class Machine:
    """What there is to train on: CUDA devices, and bytes of memory of one, or of the host."""

    gpus: int
    memory: int


class Jobs:
    """Work on the way to its rows."""

    def __init__(
        self,
        works: Sequence[Work],
        settings: Settings,
        summary: Summary,
        machine: Machine,
        say: Say,
    ) -> None:
        self.root, self.settings, self.summary = Path(settings.runs), settings, summary
        self.queue = deque(works)
        self.running: list[Work] = []
        self.machine = machine
        self.fitting: dict[str, int] = {}  # by `Work.alike`, the first plan that is not too large
        self.computed: dict[str, Row] = {}
        self.commit = commit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.gpus = visible.split(",") if visible else list(map(str, range(machine.gpus)))
        self.jobs = self._how_many(say)
        self.screen: Screen = screen(sum(1 + len(work.sharing) for work in works))

    def _how_many(self, say: Say) -> int:
        """Runs beside each other: as many as the GPUs, or the CPU's cores, hold."""
        on_gpu = any(work.cell.trainer.accelerator == "gpu" for work in self.queue)
        threads = max((work.cell.trainer.threads for work in self.queue), default=1)
        devices = max((work.plan.devices for work in self.queue), default=1)
        cores = len(os.sched_getaffinity(0)) // threads
        jobs = self.settings.jobs or max(1, (len(self.gpus) if on_gpu else cores) // devices)
        many = "" if devices == 1 else f" of up to {devices} processes"
        place = "GPU" if on_gpu else "CPU"
        say(f"{jobs} at once{many}, threads={threads} each, on the {place}")
        return jobs

    def run(self) -> None:
        """Train until every cell has a row, has failed or the user has had enough."""
        try:
            while self.queue or self.running:
                self.fill()
                children.wait((work.child for work in self.running if work.child), 0.5)
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
            if len(self.running) >= self.jobs:
                return
            work = self.queue.popleft()
            if not self.settings.force and self.finished_meanwhile(work):
                self.summary.reused += 1
                self.tell(work.cell, f"finished elsewhere  {work.cell.title}")
                self.pass_on(work)
            elif work.computation in self.computed:
                self.share(self.computed[work.computation], work.cell)
            elif results.is_busy(work.folder):
                self.queue.append(work)
            else:
                self.start(work)

    def finished_meanwhile(self, work: Work) -> bool:
        """Another sweep has given the cell its row."""
        paths = self.root.glob(f"*/{work.cell.id}/row.json")
        return any(results.load(path).final for path in paths)

    def start(self, work: Work) -> None:
        """Train one cell in processes of its own."""
        work.attempt = max(work.attempt, self.fitting.get(work.alike, 0))
        # The slots are numbers of GPUs: two runs share one only if there are more jobs than GPUs.
        taken = {slot for each in self.running for slot in each.slots}
        work.slots = list(islice((n for n in count() if n not in taken), work.plan.devices))
        environment: dict[str, str | None] = {}
        if self.gpus and work.cell.trainer.accelerator == "gpu":
            gpus = (self.gpus[slot % len(self.gpus)] for slot in work.slots)
            environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # or cuBLAS is not deterministic
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        settings = self.settings
        request = Request(
            cell=work.cell,
            plan=work.plan,
            folder=work.folder,
            sweep=settings.sweep,
            commit=self.commit,
            force=settings.force,
            resume=settings.resume and not settings.force,
            computation=work.computation,
            init=work.init,
        )
        work.started = time.monotonic()
        work.folder.mkdir(parents=True, exist_ok=True)
        log, devices = work.folder / "log.txt", work.plan.devices
        work.child = ranks.start(
            "normbench.run:main", request, devices, log=log, environment=environment
        )
        self.running.append(work)
        self.screen.began(work.cell.id, work.cell.title)

    def look_at(self, work: Work) -> None:
        """Show how far a run is; when it is over, say how."""
        assert work.child is not None
        # Messages before the end: a child may have said its last word and be gone meanwhile.
        for message in work.child.messages():
            if message.kind == "progress":
                self.screen.moved(work.cell.id, **message.content)
        end = work.child.ended()
        if end is None:
            return
        self.running.remove(work)
        said = end.last.content if end.last is not None and end.last.kind == "result" else None
        if said == "busy":  # another sweep was faster between our look at the lock and the child's
            self.queue.append(work)
            self.screen.left(work.cell.id)
        elif end.last is not None and end.last.kind == "memory":
            self.too_large(work, str(end.last.content))
        elif said is None:
            self.failed(work, end)
        else:
            self.summary.trained += said != "finished"
            self.over(work)

    def over(self, work: Work) -> None:
        """The run has a row."""
        row = results.load(work.folder / "row.json")
        self.screen.ended(work.cell.id, _line(work, row), failed=False)
        self.pass_on(work)

    def pass_on(self, work: Work) -> None:
        """The row of a run goes to the cells that compute the same."""
        if not work.computation:
            return
        self.computed |= sources(results.read(self.root, work.cell.id))
        row = self.computed.get(work.computation)
        for cell in work.sharing:
            if row is not None:
                self.screen.began(cell.id, cell.title)
                self.share(row, cell)
            else:  # it did not fit the memory, but with more workers each has fewer images
                folder = self.root / self.settings.sweep / cell.id
                plans = cell.trainer.layouts(cell.workers)
                self.queue.append(Work(cell, folder, work.computation, plans, work.init))

    def share(self, row: Row, cell: Cell) -> None:
        """A cell gets the row of a run that computed the same."""
        share(row, cell, self.root, self.settings.sweep)
        self.summary.shared += 1
        self.tell(cell, f"shared    {cell.title}: the computation of {row.id}")

    def tell(self, cell: Cell, line: str, *, failed: bool = False) -> None:
        """The end of a cell that no process was started for."""
        self.screen.began(cell.id, cell.title)
        self.screen.ended(cell.id, line, failed=failed)

    def too_large(self, work: Work, reason: str) -> None:
        """A plan needs more memory than there is; the next one computes the same in portions."""
        large, work.attempt = work.plan, work.attempt + 1
        self.fitting[work.alike] = min(work.attempt, len(work.plans) - 1)
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
        reason = why(end)
        self.close(work, "failed", reason)
        log = ranks.log_of(work.folder / "log.txt", end.rank or 0)
        self.summary.failed.append(f"{work.cell.title}: {reason} ({log})")
        self.screen.ended(work.cell.id, f"failed  {self.summary.failed[-1]}", failed=True)
        for cell in work.sharing:
            self.summary.failed.append(f"{cell.title}: the same computation as {work.cell.title}")
            self.tell(cell, f"failed  {self.summary.failed[-1]}", failed=True)

    def stop(self) -> None:
        """Interrupt what runs."""
        try:
            ranks.stop(work.child for work in self.running if work.child)
        finally:
            for work in self.running:
                self.close(work, "interrupted")

    def close(self, work: Work, phase: results.Phase, reason: str = "") -> None:
        """Write the state of a run that could not do it itself, as one that was killed."""
        state = results.read_state(work.folder)
        own = work.child is not None and state.get("pid") == work.child.pid
        # What another rank has died of is the reason, and not that rank 0 lost its connection.
        if own and state["phase"] in ("running", phase):
            results.write_state(work.folder, phase, reason)


def why(end: Ended) -> str:
    """Why a child gave no result."""
    who = "" if end.rank is None else f"rank {end.rank}: "
    if end.last is not None and end.last.kind in ("failed", "refused"):
        return f"{who}{end.last.content}"
    if end.code < 0:
        return f"{who}killed by signal {-end.code}"
    return f"{who}exit code {end.code} without a word"


def _line(work: Work, row: Row) -> str:
    seconds = time.monotonic() - work.started
    measured = row.reason or f"test {row.test_top1:.1f} %"
    return f"{row.status:<9} {work.cell.title:<32} {measured}  {seconds:.0f} s"
