"""All runs of a command line: drop the finished, check the others, train them beside each other.

Nothing here imports torch: that is done in processes of their own (`normbench.children`).
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from normbench import children, results
from normbench.cells import Cell, Request, Settings
from normbench.children import Child, Ended
from normbench.errors import BadInput
from normbench.progress import Screen, screen
from normbench.provenance import commit
from normbench.results import Row

LIGHT = "normbench.__main__"  # preloaded, or every child of the console script imports Hydra again
HEAVY = ("normbench.run", "normbench.check")

Say = Callable[[str], None]


@dataclass
class Summary:
    """How a sweep ended."""

    reused: int = 0
    trained: int = 0
    failed: list[str] = field(default_factory=list)
    interrupted: int = 0  # number of the signal, or 0


@dataclass
class Work:
    """A cell that has no row yet, and the process that trains it."""

    cell: Cell
    folder: Path
    child: Child | None = None
    slot: int = 0
    started: float = 0.0


class Interrupted(Exception):  # noqa: N818
    """The user or the system asked the sweep to stop, by signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(cells: Sequence[Cell], settings: Settings, say: Say) -> Summary:
    """Give every cell a row.

    Raises:
        BadInput: nothing was trained, because no run could use what was asked.
    """
    remedy = "name a folder that can, as in runs=~/normbench-runs"
    root = results.writable(Path(settings.runs), f"runs={settings.runs}", remedy)
    # All rows, whatever sweep they are of: a damaged one is refused now and not after the training.
    rows = {row.id: row for row in results.read(root)}
    to_do = [cell for cell in cells if settings.force or not _has_row(rows.get(cell.id))]
    summary = Summary(reused=len(cells) - len(to_do))
    count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    say(f"{count}, {summary.reused} finished before, {len(to_do)} to train")
    if to_do:
        try:
            verdicts = _check(to_do, root, say)
            able = _sort_out(to_do, verdicts, rows, settings, summary, say)
            _Sweep(able, root, settings, summary, verdicts.gpus, say).run()
        except Interrupted as stop:
            summary.interrupted = stop.number
    return summary


def _has_row(row: Row | None) -> bool:
    """What did not fit the memory counts as open until it is known whether there is more now."""
    return row is not None and row.final


def _check(cells: Sequence[Cell], root: Path, say: Say) -> Any:
    """What can be known before training, by `normbench.check` in a process of its own.

    Raises:
        BadInput: something that no run could use.
    """
    children.start_server((LIGHT, *HEAVY))
    say("importing torch and checking all cells ...")
    log = root / "check.log"
    child = children.start("normbench.check:check", (list(cells), log), log=log)
    try:
        while (end := child.ended()) is None:
            children.wait([child], 1.0)
            list(child.messages())
    except BaseException:
        child.kill()
        raise
    if end.last is not None and end.last.kind == "result":
        return end.last.content
    refused = end.last is not None and end.last.kind == "refused"
    raise BadInput(_why(end) if refused else f"the check died: {_why(end)}; see {log}")


def _sort_out(
    cells: Sequence[Cell],
    verdicts: Any,
    rows: dict[str, Row],
    settings: Settings,
    summary: Summary,
    say: Say,
) -> list[Cell]:
    """The cells to train, on hardware that is there. Those that cannot work get their row now."""
    reasons = dict(zip((cell.id for cell in cells), verdicts.impossible, strict=True))
    if all(reasons.values()) and not summary.reused:
        raise BadInput(f"{cells[0].title} cannot work: {reasons[cells[0].id]}")
    for network, reached in verdicts.coverage.items():
        say(f"{network}: {reached}")
    able = []
    for cell in cells:
        row = rows.get(cell.id)
        if reason := reasons[cell.id]:
            say(f"impossible  {cell.title}: {reason}")
            folder = Path(settings.runs) / settings.sweep / cell.id
            results.write(folder, _impossible(cell, settings.sweep, reason))
        elif row is not None and not settings.force and verdicts.memory <= (row.memory or 0):
            summary.reused += 1  # it did not fit, and there is no more memory than then
        else:
            able.append(cell.on(verdicts.accelerator))
    return able


def _impossible(cell: Cell, sweep: str, reason: str) -> Row:
    """The row of a cell that cannot work."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    asked = cell.asked(sweep)
    return Row(**asked, status="impossible", reason=reason, commit=commit(), finished=now)


class _Sweep:
    """Cells that can be trained, on the way to their rows."""

    def __init__(
        self,
        cells: Sequence[Cell],
        root: Path,
        settings: Settings,
        summary: Summary,
        gpus: int,
        say: Say,
    ) -> None:
        self.root, self.settings, self.summary = root, settings, summary
        self.queue = deque(Work(cell, root / settings.sweep / cell.id) for cell in cells)
        self.running: list[Work] = []
        self.commit = commit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.gpus = visible.split(",") if visible else [str(number) for number in range(gpus)]
        self.jobs = self._how_many(say)
        self.screen: Screen = screen(len(self.queue))

    def _how_many(self, say: Say) -> int:
        """Runs beside each other: one per GPU, or as many as the cores hold."""
        on_gpu = any(work.cell.trainer.accelerator == "gpu" for work in self.queue)
        threads = max((work.cell.trainer.threads for work in self.queue), default=1)
        cores = len(os.sched_getaffinity(0))
        jobs = self.settings.jobs or (len(self.gpus) if on_gpu else max(1, cores // threads))
        say(f"{jobs} at once, threads={threads} each, on the {'GPU' if on_gpu else 'CPU'}")
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
                self.screen.began(work.cell.id, work.cell.title)
                line = f"finished elsewhere  {work.cell.title}"
                self.screen.ended(work.cell.id, line, failed=False)
            elif results.is_busy(work.folder):
                self.queue.append(work)
            else:
                self.start(work)

    def finished_meanwhile(self, work: Work) -> bool:
        """Another sweep has given the cell its row."""
        paths = self.root.glob(f"*/{work.cell.id}/row.json")
        return any(_has_row(results.load(path)) for path in paths)

    def start(self, work: Work) -> None:
        """Train one cell in a process of its own."""
        # The slots are numbers of GPUs: two runs share one only if there are more jobs than GPUs.
        taken = {each.slot for each in self.running}
        work.slot = next(slot for slot in range(self.jobs) if slot not in taken)
        environment = {}
        if self.gpus and work.cell.trainer.accelerator == "gpu":
            environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # or cuBLAS is not deterministic
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[work.slot % len(self.gpus)]
        settings = self.settings
        request = Request(work.cell, work.folder, settings.sweep, self.commit, settings.force)
        work.started = time.monotonic()
        work.folder.mkdir(parents=True, exist_ok=True)
        log = work.folder / "log.txt"
        work.child = children.start("normbench.run:main", request, log=log, environment=environment)
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
        elif said is None:
            self.screen.ended(work.cell.id, self.failure(work, end), failed=True)
        else:
            self.summary.trained += said != "finished"
            row = results.load(work.folder / "row.json")
            self.screen.ended(work.cell.id, _line(work, row), failed=False)

    def failure(self, work: Work, end: Ended) -> str:
        """Why a run left no row, as a line; its state says so too."""
        reason = _why(end)
        self.close(work, "failed", reason)
        self.summary.failed.append(f"{work.cell.title}: {reason} ({work.folder / 'log.txt'})")
        return f"failed  {self.summary.failed[-1]}"

    def stop(self) -> None:
        """Interrupt what runs."""
        try:
            children.stop(work.child for work in self.running if work.child)
        finally:
            for work in self.running:
                self.close(work, "interrupted")

    def close(self, work: Work, phase: results.Phase, reason: str = "") -> None:
        """Write the state of a run that could not do it itself, as one that was killed."""
        state = results.read_state(work.folder)
        own = work.child is not None and state.get("pid") == work.child.process.pid
        if own and state["phase"] == "running":
            results.write_state(work.folder, phase, reason)


def _why(end: Ended) -> str:
    if end.last is not None and end.last.kind in ("failed", "refused"):
        return str(end.last.content)
    if end.code < 0:
        return f"killed by signal {-end.code}"
    return f"exit code {end.code} without a word"


def _line(work: Work, row: Row) -> str:
    seconds = time.monotonic() - work.started
    measured = row.reason or f"test {row.test_top1:.1f} %"
    return f"{row.status:<9} {work.cell.title:<32} {measured}  {seconds:.0f} s"
