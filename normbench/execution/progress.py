"""Show the progress of runs: bars on a terminal, plain lines elsewhere."""

import sys
import time

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

from normbench.config.output import terminal
from normbench.errors import escape_controls

INTERVAL = 20.0  # seconds between two lines about runs in progress, without a terminal


def print_line(line: str) -> None:
    """Print `line` at once, also if the output is a file."""
    # Not left to the output: rich, which prints all lines while it draws bars, obeys them.
    print(escape_controls(line), flush=True)


class Bars:
    """One bar for the sweep and one for each run in progress; `key` names a run."""

    def __init__(self, console: Console, cells: int) -> None:
        self.progress = Progress(
            # On a narrow terminal the titles are cut, not the numbers.
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
            speed_estimate_period=3600 * 24,  # rich's 30 s are over when a run ends
        )
        self.runs: dict[str, TaskID] = {}
        self.failed = 0
        self.sweep = self.progress.add_task("runs", total=cells, more="")
        self.progress.start()

    def add(self, key: str, title: str) -> None:
        """Show a run that has started."""
        self.runs[key] = self.progress.add_task(
            f"  {escape_controls(title)}", total=None, more="starting"
        )
        self._count()

    def update(self, key: str, done: int, steps: int, loss: float) -> None:
        """Show that a run has done `done` of its `steps` optimizer steps."""
        more = f"loss {loss:.3f}"
        self.progress.update(self.runs[key], completed=done, total=steps, more=more)

    def end(self, key: str, line: str, *, failed: bool) -> None:
        """Show `line` about a run that has ended, and count it."""
        self.failed += failed
        self.progress.advance(self.sweep)
        self.remove(key)
        self.note(line)

    def remove(self, key: str) -> None:
        """Remove a run that had begun and is queued again."""
        self.progress.remove_task(self.runs.pop(key))
        self._count()

    def note(self, line: str) -> None:
        """Print `line` above the bars."""
        self.progress.console.print(
            escape_controls(line), highlight=False, markup=False, soft_wrap=True
        )

    def close(self) -> None:
        for task in self.runs.values():
            self.progress.remove_task(task)
        self.progress.stop()

    def _count(self) -> None:
        failed = f", {self.failed} failed" if self.failed else ""
        self.progress.update(self.sweep, more=f"{len(self.runs)} running{failed}")


class Lines:
    """One line for each finished run, and one at intervals about those in progress.

    Its methods are those of `Bars`.
    """

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.ended_runs = self.failed = 0
        self.titles: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.started = self.last_line_at = time.monotonic()

    def add(self, key: str, title: str) -> None:
        self.titles[key] = title

    def update(self, key: str, done: int, steps: int, loss: float) -> None:
        self.states[key] = f"{self.titles[key]}: step {done}/{steps}, loss {loss:.3f}"
        if time.monotonic() - self.last_line_at >= INTERVAL:
            self.note(f"  running: {'; '.join(self.states.values())}; {self._left()}")

    def end(self, key: str, line: str, *, failed: bool) -> None:
        self.remove(key)
        self.ended_runs += 1
        self.failed += failed
        self.note(f"{self.ended_runs}/{self.cells} {line}")

    def remove(self, key: str) -> None:
        self.titles.pop(key)
        self.states.pop(key, None)

    def note(self, line: str) -> None:
        self.last_line_at = time.monotonic()
        print_line(line)

    def close(self) -> None:
        sys.stdout.flush()

    def _left(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        if not self.ended_runs:
            return f"0/{self.cells} done{failed}"
        per_run = (time.monotonic() - self.started) / self.ended_runs
        seconds = per_run * (self.cells - self.ended_runs)
        return f"{self.ended_runs}/{self.cells} done{failed}, about {seconds:.0f} s left"


Screen = Bars | Lines


def screen(cells: int) -> Screen:
    """Return bars if standard output is a terminal, else lines."""
    console = terminal()
    return Lines(cells) if console is None else Bars(console, cells)
