"""Show the progress of runs: bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from heapq import heapify, heapreplace
from statistics import mean

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from normbench.config.cells import Cell
from normbench.config.files import as_typed, default_choices
from normbench.config.output import terminal
from normbench.errors import escape_controls

INTERVAL = 20.0  # seconds between two lines about runs in progress, without a terminal


def print_line(line: str) -> None:
    """Print `line` at once, also if the output is a file."""
    # Not left to the output: rich, which prints all lines while it draws bars, obeys them.
    print(escape_controls(line), flush=True)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show what is being waited for: with the elapsed time on a terminal, as one line elsewhere."""
    console = terminal()
    if console is None:
        print_line(text)
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(text, total=None)
        yield


def short_titles(cells: Sequence[Cell]) -> dict[str, str]:
    """Return a title for each cell, by its id, of the words in which the cells differ."""
    if len(cells) == 1:
        return {cells[0].id: cells[0].title}
    fields = [_fields(cell) for cell in cells]
    keys = dict.fromkeys(key for each in fields for key in each)
    varying = [key for key in keys if len({each.get(key) for each in fields}) > 1]
    varying.sort(key=lambda key: "." in key)  # options last, as in a title
    titles = {}
    for cell, each in zip(cells, fields, strict=True):
        usual = default_choices(cell.task.name)
        words = (
            each.get(key) or as_typed(key, usual[key]) for key in varying if key in each | usual
        )
        titles[cell.id] = " ".join(words) or cell.title
    return titles


def _fields(cell: Cell) -> dict[str, str]:
    """Return the words of a title by their keys."""
    norm, *words = cell.title.split()
    return {"norm": norm} | {word.partition("=")[0]: word for word in words}


class Pace:
    """The steps of a running computation, and when they were done."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.first: tuple[float, int] | None = None  # time and steps of the first report
        self.last = (self.started, 0)
        self.steps = 0

    def update(self, done: int, steps: int) -> None:
        """Record that `done` of `steps` steps are done."""
        self.last, self.steps = (time.monotonic(), done), steps
        self.first = self.first or self.last

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Seconds until the last step; None before the first report."""
        # A run may start late, from a checkpoint: its speed is that since the first report.
        since, before = self.first if self.first and self.first != self.last else (self.started, 0)
        at, done = self.last
        if done <= before or at <= since:
            return None
        ends = at + (self.steps - done) * (at - since) / (done - before)
        return max(0.0, ends - time.monotonic())


class TimeLeft:
    """The time that a sweep still takes, from the speed of its running computations.

    Args:
        computations: to train; cells that share a row are one.
    """

    def __init__(self, computations: int) -> None:
        self.waiting = computations
        self.durations: list[float] = []  # of ended ones
        self.running: dict[str, Pace] = {}
        self.slots = 1

    def start(self, key: str) -> None:
        self.running[key] = Pace()
        self.waiting = max(0, self.waiting - 1)
        self.slots = max(self.slots, len(self.running))

    def end(self, key: str) -> None:
        pace = self.running.pop(key)
        if pace.first:  # else it failed at once, or another command had finished it
            self.durations.append(pace.elapsed)

    def put_back(self, key: str) -> None:
        """Count a computation that had begun as waiting again."""
        del self.running[key]
        self.waiting += 1

    def of(self, key: str) -> float | None:
        """Seconds until the last step of a running computation."""
        pace = self.running.get(key)
        return None if pace is None else pace.left

    def of_all(self) -> float | None:
        """Seconds until the last computation ends; None while no speed is known."""
        paces = [(pace.elapsed, pace.left) for pace in list(self.running.values())]
        lengths = self.durations or [elapsed + left for elapsed, left in paces if left is not None]
        if not lengths:
            return None
        usual = mean(lengths)
        ends = [max(0.0, usual - elapsed) if left is None else left for elapsed, left in paces]
        ends += [0.0] * (self.slots - len(ends))
        # The next computation goes to the slot that ends first.
        each, rest = divmod(self.waiting, len(ends))
        ends = [end + each * usual for end in ends]
        heapify(ends)
        for _ in range(rest):
            heapreplace(ends, ends[0] + usual)
        return max(ends)


class TimeLeftColumn(ProgressColumn):
    """The time left of a bar, from its field `left`."""

    def render(self, task: Task) -> Text:
        seconds = task.fields["left"]()
        text = "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
        return Text(text, style="progress.remaining")


class Bars:
    """One bar for the sweep and one for each run in progress; `key` names a run."""

    def __init__(self, console: Console, computations: int) -> None:
        self.progress = Progress(
            # On a narrow terminal the titles are cut, not the numbers.
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)
            ),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}", markup=False, table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TimeLeftColumn(),
            console=console,
            expand=True,
        )
        self.runs: dict[str, TaskID] = {}
        self.failed = 0
        self.time_left = TimeLeft(computations)
        left: Callable[[], float | None] = self.time_left.of_all
        self.sweep = self.progress.add_task("runs", total=computations, more="", left=left)
        self.progress.start()

    def add(self, key: str, title: str) -> None:
        """Show a run that has started."""
        self.time_left.start(key)
        left = partial(self.time_left.of, key)
        self.runs[key] = self.progress.add_task(
            f"  {escape_controls(title)}", total=None, more="starting", left=left
        )
        self._count()

    def update(self, key: str, done: int, steps: int, loss: float) -> None:
        """Show that a run has done `done` of its `steps` optimizer steps."""
        more = f"loss {loss:.3f}"
        self.time_left.running[key].update(done, steps)
        self.progress.update(self.runs[key], completed=done, total=steps, more=more)

    def end(self, key: str, line: str, *, failed: bool) -> None:
        """Show `line` about a run that has ended, and count it."""
        self.failed += failed
        self.progress.advance(self.sweep)
        self.time_left.end(key)
        self._remove_bar(key)
        self.note(line)

    def remove(self, key: str) -> None:
        """Remove a run that had begun and is queued again."""
        self.time_left.put_back(key)
        self._remove_bar(key)

    def expect_another(self) -> None:
        """Count one more computation to train."""
        self.time_left.waiting += 1
        total = self.progress.tasks[0].total or 0  # of the sweep, whose bar is the first
        self.progress.update(self.sweep, total=total + 1)

    def note(self, line: str) -> None:
        """Print `line` above the bars."""
        self.progress.console.print(
            escape_controls(line), highlight=False, markup=False, soft_wrap=True
        )

    def close(self) -> None:
        for task in self.runs.values():
            self.progress.remove_task(task)
        self.progress.stop()

    def _remove_bar(self, key: str) -> None:
        self.progress.remove_task(self.runs.pop(key))
        self._count()

    def _count(self) -> None:
        failed = f", {self.failed} failed" if self.failed else ""
        self.progress.update(self.sweep, more=f"{len(self.runs)} running{failed}")


class Lines:
    """One line for each finished run, and one at intervals about those in progress.

    Its methods are those of `Bars`.
    """

    def __init__(self, computations: int) -> None:
        self.computations = computations
        self.time_left = TimeLeft(computations)
        self.ended_runs = self.failed = 0
        self.titles: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.last_line_at = time.monotonic()

    def add(self, key: str, title: str) -> None:
        self.titles[key] = title
        self.time_left.start(key)

    def update(self, key: str, done: int, steps: int, loss: float) -> None:
        self.time_left.running[key].update(done, steps)
        self.states[key] = f"{self.titles[key]}: step {done}/{steps}, loss {loss:.3f}"
        if time.monotonic() - self.last_line_at >= INTERVAL:
            self.note(f"  running: {'; '.join(self.states.values())}; {self._left()}")

    def end(self, key: str, line: str, *, failed: bool) -> None:
        self.time_left.end(key)
        self._forget(key)
        self.ended_runs += 1
        self.failed += failed
        self.note(f"{self.ended_runs}/{self.computations} {line}")

    def remove(self, key: str) -> None:
        self.time_left.put_back(key)
        self._forget(key)

    def expect_another(self) -> None:
        self.time_left.waiting += 1
        self.computations += 1

    def _forget(self, key: str) -> None:
        self.titles.pop(key)
        self.states.pop(key, None)

    def note(self, line: str) -> None:
        self.last_line_at = time.monotonic()
        print_line(line)

    def close(self) -> None:
        sys.stdout.flush()

    def _left(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        seconds = self.time_left.of_all()
        left = "" if seconds is None else f", about {format_seconds(seconds)} left"
        return f"{self.ended_runs}/{self.computations} done{failed}{left}"


def format_seconds(seconds: float) -> str:
    """Return a time as it is said: 40 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


Screen = Bars | Lines


def screen(computations: int) -> Screen:
    """Return bars if standard output is a terminal, else lines."""
    console = terminal()
    return Lines(computations) if console is None else Bars(console, computations)
