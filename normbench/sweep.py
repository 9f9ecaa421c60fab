"""All runs of a command line: drop the finished, check the others, train them beside each other.

Nothing here imports torch: that is done in processes of their own (`normbench.children`).
"""

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from normbench import children, results
from normbench.cells import Cell, Request, Settings
from normbench.children import Child, Ended
from normbench.errors import BadInput
from normbench.home import ROOT
from normbench.progress import Screen, screen
from normbench.results import Row

LIGHT = "normbench.__main__"  # preloaded, or every child of the console script imports Hydra again
HEAVY = ("normbench.run", "normbench.check")


@dataclass
class Summary:
    """How a sweep ended."""

    reused: int = 0
    trained: int = 0
    impossible: list[str] = field(default_factory=list)
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


def run(cells: list[Cell], settings: Settings, say: Callable[[str], None]) -> Summary:
    """Give every cell a row.

    Raises:
        BadInput: nothing was trained, because no run could use what was asked.
    """
    root = writable(Path(settings.runs))
    finished = results.finished(root)
    summary = Summary()
    to_do = []
    for cell in cells:
        folder = finished.get(cell.id, root / settings.sweep / cell.id)
        if cell.id in finished and not settings.force and not _again(folder):
            summary.reused += 1
        else:
            to_do.append(Work(cell, folder))
    count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    say(f"{count}, {summary.reused} finished before, {len(to_do)} to train")
    if to_do:
        _Sweep(to_do, settings, summary, say).run()
    return summary


def writable(root: Path) -> Path:
    """`root`, made if need be.

    Raises:
        BadInput: no file can be written there.
    """
    probe = root / f".writable.{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(
            f"runs={root} cannot be written ({error.strerror}); name a folder that can, as in "
            "runs=~/normbench-runs"
        ) from None
    return root


def _again(folder: Path) -> bool:
    """What did not fit the memory is tried again; whether the device has more is known later."""
    return results.load(folder / "row.json").status == "oom"


class _Sweep:
    """The cells to train, on the way to their rows."""

    def __init__(
        self, to_do: list[Work], settings: Settings, summary: Summary, say: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.summary = summary
        self.say = say
        self.queue = deque(to_do)
        self.running: list[Work] = []
        self.commit = commit()
        self.gpus: list[str] = []
        self.jobs = 1
        self.screen: Screen

    def run(self) -> None:
        """Check, then train until every cell has a row, has failed or the user has had enough."""
        try:
            self.check()
            self.screen = screen(len(self.queue))
            try:
                self.train()
            finally:
                self.screen.close()
        except Interrupted as signal:
            self.summary.interrupted = signal.number
            self.stop()

    def check(self) -> None:
        """What can be known before training; cells that cannot work leave the queue with a row."""
        mirrored = any(work.cell.logger.name == "wandb" for work in self.queue)
        children.start_server((LIGHT, *HEAVY, *(("wandb",) if mirrored else ())))
        self.say("importing torch and checking all cells ...")
        child = children.start("normbench.check:check", [work.cell for work in self.queue])
        self.running = [Work(self.queue[0].cell, self.queue[0].folder, child)]
        while (end := child.ended()) is None:
            children.wait([child], 1.0)
            list(child.messages())
        self.running = []
        if end.last is None or end.last.kind != "result":
            raise BadInput(
                _why(end) if end.code == 2 else f"the check of all cells died: {_why(end)}"
            )
        verdicts = end.last.content
        self.use(verdicts.accelerator, verdicts.gpus)
        self.sort_out(verdicts.impossible, verdicts.memory)

    def use(self, accelerator: str, gpus: int) -> None:
        """Decide how many runs train beside each other, and on what."""
        for work in self.queue:
            if work.cell.trainer.accelerator == "auto":
                work.cell = work.cell.on("gpu" if accelerator == "gpu" else "cpu")
        on_gpu = any(work.cell.trainer.accelerator == "gpu" for work in self.queue)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.gpus = visible.split(",") if visible else [str(number) for number in range(gpus)]
        threads = max(work.cell.trainer.threads for work in self.queue)
        cores = len(os.sched_getaffinity(0))
        self.jobs = self.settings.jobs or (gpus if on_gpu else max(1, cores // threads))
        device = "GPU" if on_gpu else "CPU"
        self.say(f"{self.jobs} at once, {threads} thread each, on the {device}")

    def sort_out(self, impossible: list[str], memory: int) -> None:
        """Give cells that cannot work their row now, before any other is trained."""
        waiting, self.queue = self.queue, deque()
        if all(impossible) and not self.summary.reused:
            raise BadInput(f"{waiting[0].cell.title} cannot work: {impossible[0]}")
        for work, reason in zip(waiting, impossible, strict=True):
            path = work.folder / "row.json"
            if reason:
                self.summary.impossible.append(f"{work.cell.title}: {reason}")
                self.say(f"impossible  {self.summary.impossible[-1]}")
                results.write(work.folder, self.describe(work.cell, reason))
            elif not self.settings.force and path.exists() and _too_small(path, memory):
                self.summary.reused += 1
            else:
                self.queue.append(work)

    def describe(self, cell: Cell, reason: str) -> Row:
        """The row of a cell that cannot work."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return Row(
            **cell.asked(self.settings.sweep),
            status="impossible",
            reason=reason,
            commit=self.commit,
            finished=now,
        )

    def train(self) -> None:
        """Keep `jobs` processes at work until the queue is empty."""
        while self.queue or self.running:
            self.fill()
            children.wait((work.child for work in self.running if work.child), 0.5)
            for work in list(self.running):
                self.look_at(work)

    def fill(self) -> None:
        """Start what can start. A cell that another sweep trains goes to the end of the queue."""
        for _ in range(len(self.queue)):
            if len(self.running) >= self.jobs:
                return
            work = self.queue.popleft()
            done = not self.settings.force and (work.folder / "row.json").exists()
            if done and not _again(work.folder):
                self.summary.reused += 1
                self.screen.began(work.cell.id, work.cell.title)
                self.screen.ended(
                    work.cell.id, f"finished elsewhere  {work.cell.title}", failed=False
                )
            elif results.is_busy(work.folder):
                self.queue.append(work)
            else:
                self.start(work)

    def start(self, work: Work) -> None:
        """Train one cell in a process of its own."""
        taken = {each.slot for each in self.running}
        work.slot = next(slot for slot in range(self.jobs) if slot not in taken)
        environment = {}
        if self.gpus and work.cell.trainer.accelerator == "gpu":
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[work.slot % len(self.gpus)]
        request = Request(
            work.cell, work.folder, self.settings.sweep, self.commit, self.settings.force
        )
        log = work.folder / "log.txt"
        work.started = time.monotonic()
        self.running.append(work)
        work.child = children.start("normbench.run:main", request, log=log, environment=environment)
        self.screen.began(work.cell.id, work.cell.title)

    def look_at(self, work: Work) -> None:
        """Show how far a run is; when it is over, say how."""
        assert work.child is not None
        for message in work.child.messages():
            if message.kind == "progress":
                self.screen.moved(work.cell.id, **message.content)
        end = work.child.ended()
        if end is None:
            return
        self.running.remove(work)
        if end.last is not None and end.last.content == "busy":
            self.queue.append(work)
            self.screen.note(f"another sweep trains {work.cell.title}; waiting for it")
            return
        line, failed = self.close(work, end)
        self.screen.ended(work.cell.id, line, failed=failed)

    def close(self, work: Work, end: Ended) -> tuple[str, bool]:
        """How a run ended, as a line, and whether it failed."""
        if end.code == 0:
            self.summary.trained += 1
            return _line(work, results.load(work.folder / "row.json")), False
        reason = _why(end)
        if results.read_state(work.folder).get("phase") == "running":
            results.write_state(work.folder, "failed", reason)  # it could not say so itself
        self.summary.failed.append(f"{work.cell.title}: {reason} ({work.folder / 'log.txt'})")
        return f"failed  {self.summary.failed[-1]}", True

    def stop(self) -> None:
        """Interrupt what runs; a run that could not write its state gets it from here."""
        try:
            children.stop(work.child for work in self.running if work.child)
        finally:
            for work in self.running:
                if results.read_state(work.folder).get("phase") == "running":
                    results.write_state(work.folder, "interrupted")


def _too_small(path: Path, memory: int) -> bool:
    """The device has no more memory than the one that a run did not fit into."""
    return memory <= (results.load(path).memory or 0)


def _why(end: Ended) -> str:
    if end.last is not None and end.last.kind in ("failed", "refused"):
        return str(end.last.content)
    if end.code < 0:
        return f"killed by signal {-end.code}"
    return f"exit code {end.code} without a word"


def _line(work: Work, row: Row) -> str:
    seconds = time.monotonic() - work.started
    measured = f"test {row.test_top1:.1f} %" if row.test_top1 is not None else row.reason
    return f"{row.status:<9} {work.cell.title:<32} {measured}  {seconds:.0f} s"


def commit() -> str:
    """The commit of this source tree, "+" behind it if files differ; empty outside a checkout."""
    try:
        head, changes = (
            subprocess.run(
                ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head}+" if changes else head
