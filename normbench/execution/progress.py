"""What the user sees while runs train: bars on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

INTERVAL = 20.0  # seconds between two lines about runs in progress, where there is no terminal


class Screen(Protocol):
    """Where a sweep shows how it goes. Runs are named by the keys that `began` was given."""

    def began(self, key: str, title: str) -> None:
        """A run has started."""

    def moved(self, key: str, done: int, steps: int, loss: float) -> None:
        """A run has done `done` of its `steps` optimizer steps."""

    def ended(self, key: str, line: str, *, failed: bool) -> None:
        """A run is over; `line` says how."""

    def left(self, key: str) -> None:
        """A run that had begun waits again."""

    def note(self, line: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Nothing more will be shown."""


def screen(cells: int) -> Screen:
    """Bars if standard output is a terminal, lines if not."""
    console = Console()
    return Bars(console, cells) if console.is_terminal else Lines(cells)


class Bars:
    """One bar for the sweep, one for each run in progress."""

    def __init__(self, console: Console, cells: int) -> None:
        self.progress = Progress(
            # On a narrow terminal the titles give way, not the numbers.
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)
            ),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}", markup=False, table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            expand=True,
            speed_estimate_period=3600 * 24,  # of rich's 30 s nothing is left when a run ends
        )
        self.runs: dict[str, TaskID] = {}
        self.failed = 0
        self.sweep = self.progress.add_task("runs", total=cells, more="")
        self.progress.start()

    def began(self, key: str, title: str) -> None:
        self.runs[key] = self.progress.add_task(f"  {title}", total=None, more="starting")
        self._count()

    def moved(self, key: str, done: int, steps: int, loss: float) -> None:
        more = f"loss {loss:.3f}"
        self.progress.update(self.runs[key], completed=done, total=steps, more=more)

    def ended(self, key: str, line: str, *, failed: bool) -> None:
        self.progress.remove_task(self.runs.pop(key))
        self.failed += failed
        self.progress.advance(self.sweep)
        self.note(line)
        self._count()

    def left(self, key: str) -> None:
        self.progress.remove_task(self.runs.pop(key))
        self._count()

    def note(self, line: str) -> None:
        self.progress.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        for task in self.runs.values():
            self.progress.remove_task(task)
        self.progress.stop()

    def _count(self) -> None:
        failed = f", {self.failed} failed" if self.failed else ""
        self.progress.update(self.sweep, more=f"{len(self.runs)} running{failed}")


class Lines:
    """A line a finished run, and one at intervals about those in progress."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.over = self.failed = 0
        self.titles: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.started = self.spoken = time.monotonic()

    def began(self, key: str, title: str) -> None:
        self.titles[key] = title

    def moved(self, key: str, done: int, steps: int, loss: float) -> None:
        self.states[key] = f"{self.titles[key]}: step {done}/{steps}, loss {loss:.3f}"
        if time.monotonic() - self.spoken >= INTERVAL:
            self.note(f"  running: {'; '.join(self.states.values())}; {self._left()}")

    def ended(self, key: str, line: str, *, failed: bool) -> None:
        self.titles.pop(key)
        self.states.pop(key, None)
        self.over += 1
        self.failed += failed
        self.note(f"{self.over}/{self.cells} {line}")

    def left(self, key: str) -> None:
        self.titles.pop(key)
        self.states.pop(key, None)

    def note(self, line: str) -> None:
        self.spoken = time.monotonic()
        print(line, flush=True)

    def close(self) -> None:
        sys.stdout.flush()

    def _left(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        if not self.over:
            return f"0/{self.cells} done{failed}"
        seconds = (time.monotonic() - self.started) / self.over * (self.cells - self.over)
        return f"{self.over}/{self.cells} done{failed}, about {seconds:.0f} s left"
