"""What is to be trained, and its end: a line on the screen, and the cells that share the row."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from normbench import results
from normbench.config.cells import Accelerator, Cell, Settings
from normbench.config.plan import Plan
from normbench.execution.process_group import Ranks, Seat
from normbench.execution.progress import Screen, screen
from normbench.execution.reuse import share, sources
from normbench.execution.worker_process import Ended
from normbench.results import Row

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
        init: the checkpoint that it begins with.
        whole_step: all images of a step must share a forward pass.
        together: other seeds of the cell may be trained by the same process.
        sharing: cells that get their row from this one.
        attempt: which of the plans is tried now.
        child: the processes, while there are any.
        gpus: the CUDA devices that they take.
        started: when, by the clock of this process.
    """

    cell: Cell
    folder: Path
    computation: str = ""
    init: Path | None = None
    whole_step: bool = False
    together: bool = False
    sharing: list[Cell] = field(default_factory=list)
    attempt: int = field(default=0, init=False)
    child: Ranks | Seat | None = field(default=None, init=False)
    gpus: list[str] = field(default_factory=list, init=False)
    started: float = field(default=0.0, init=False)

    @cached_property
    def plans(self) -> list[Plan]:
        """How its workers can be laid, the fastest first."""
        plans = self.cell.trainer.layouts(self.cell.workers)
        return plans[:1] if self.whole_step else plans

    @property
    def plan(self) -> Plan:
        return self.plans[self.attempt]

    @cached_property
    def alike(self) -> str:
        """Works that differ in their seeds at most, and so need the same memory."""
        return repr((replace(self.cell, seed=0).id, self.plans[0].devices))


@dataclass(frozen=True)
class Verdicts:
    """What the check found; here and not there, as who reads it imports no torch.

    Args:
        impossible: by id of a cell, why it cannot work, or nothing.
        shared: ids of cells to whose networks workers are nothing, so that one computation serves
            every division of the images among them.
        whole_step: ids of cells whose images of a step must share a forward pass.
        alone: by id of a cell, why its seeds cannot be trained together, or nothing.
        coverage: for each network of a library what of it the normalizer reaches.
        accelerator: what trainer=auto means here.
        gpus: CUDA devices.
        memory: bytes of the device.
    """

    impossible: dict[str, str]
    shared: set[str]
    whole_step: set[str]
    alone: dict[str, str]
    coverage: dict[str, str]
    accelerator: Accelerator
    gpus: int
    memory: int


@dataclass(frozen=True)
class Machine:
    """What there is to train on: CUDA devices, and bytes of memory of one, or of the host."""

    gpus: int
    memory: int


class Pool:
    """Works on the way to their rows, wherever they are trained."""

    def __init__(self, works: Sequence[Work], settings: Settings, summary: Summary) -> None:
        self.root, self.settings, self.summary = Path(settings.runs), settings, summary
        self.queue = deque(works)
        self.computed: dict[str, Row] = {}
        self.screen: Screen = screen(sum(1 + len(work.sharing) for work in works))

    def over(self, work: Work) -> None:
        """The run has a row."""
        row = results.load(work.folder / "row.json")
        self.screen.ended(work.cell.id, _line(work, row), failed=False)
        self.pass_on(work)

    def needs_nothing(self, work: Work, *, begun: bool = False) -> bool:
        """Whether the cell has got its row since the sweep began; that is told and passed on."""
        if self.settings.force or not self.finished_meanwhile(work):
            return False
        self.summary.reused += 1
        self.tell(work.cell, f"finished elsewhere  {work.cell.title}", begun=begun)
        self.pass_on(work)
        return True

    def finished_meanwhile(self, work: Work) -> bool:
        """Another sweep has given the cell its row."""
        paths = self.root.glob(f"*/{work.cell.id}/row.json")
        return any(results.load(path).final for path in paths)

    def pass_on(self, work: Work) -> None:
        """The row of a run goes to the cells that compute the same."""
        if not work.computation:
            return
        self.computed |= sources(results.read(self.root, work.cell.id))
        row = self.computed.get(work.computation)
        if row is not None:
            for cell in work.sharing:
                self.share(row, cell)
        elif work.sharing:  # it did not fit the memory, but with more workers each has fewer images
            first, *others = work.sharing
            folder = work.folder.with_name(first.id)
            self.queue.append(replace(work, cell=first, folder=folder, sharing=others))

    def share(self, row: Row, cell: Cell) -> None:
        """A cell gets the row of a run that computed the same."""
        share(row, cell, self.root, self.settings.sweep)
        self.summary.shared += 1
        self.tell(cell, f"shared    {cell.title}: the computation of {row.id}")

    def tell(self, cell: Cell, line: str, *, failed: bool = False, begun: bool = False) -> None:
        """The end of a cell that no process was started for."""
        if not begun:
            self.screen.began(cell.id, cell.title)
        self.screen.ended(cell.id, line, failed=failed)

    def lost(self, work: Work, reason: str, log: Path) -> None:
        """The run has left no row, and those that would share it have none either."""
        self.summary.failed.append(f"{work.cell.title}: {reason} ({log})")
        self.screen.ended(work.cell.id, f"failed  {self.summary.failed[-1]}", failed=True)
        for cell in work.sharing:
            self.summary.failed.append(f"{cell.title}: the same computation as {work.cell.title}")
            self.tell(cell, f"failed  {self.summary.failed[-1]}", failed=True)


def why(end: Ended) -> str:
    """Why a child gave no result."""
    who = "" if end.rank is None else f"rank {end.rank}: "
    if end.last is not None and end.last.kind in ("failed", "refused", "memory"):
        return f"{who}{end.last.content}"
    if end.code < 0:
        return f"{who}killed by signal {-end.code}"
    return f"{who}exit code {end.code} without a word"


def when(end: Ended) -> float:
    """The moment of a child's last words, or now: seconds since 1970, for other machines."""
    since = time.monotonic() - end.last.at if end.last is not None else 0.0
    return time.time() - since


def _line(work: Work, row: Row) -> str:
    seconds = time.monotonic() - work.started
    measured = row.reason or f"test {row.test_top1:.1f} %"
    return f"{row.status:<9} {work.cell.title:<32} {measured}  {seconds:.0f} s"
