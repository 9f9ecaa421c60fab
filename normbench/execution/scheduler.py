"""The queue of jobs of a sweep, and what follows when one ends; base of both schedulers.

`normbench.execution.local_scheduler` starts jobs on this machine, `normbench.execution.slurm` on a
cluster.
"""

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from normbench import results
from normbench.config.cells import Cell, Settings
from normbench.config.plan import Plan
from normbench.config.wandb_options import OFFLINE, SERVICE
from normbench.execution.job import Job, Summary
from normbench.execution.progress import Screen, screen
from normbench.execution.reuse import copy_row, shareable_rows
from normbench.results import Row
from normbench.run_files import RunLocked, describe_write_error


@dataclass
class QueueEntry:
    """A job and what the scheduler keeps about it.

    Args:
        job: sent to the processes that train.
        sharing: cells that compute the same and get a copy of its row.
        single_pass: all images of a step must share one forward pass.
        stackable: other seeds of its cell may be trained by the same process.
        started: time of the start, in seconds of the monotonic clock.
        earlier_row: time of the row that the folder had then, see `row_time`.
    """

    job: Job
    sharing: list[Cell] = field(default_factory=list)
    single_pass: bool = False
    stackable: bool = False
    started: float = field(default=0.0, init=False)
    earlier_row: int | None = field(default=None, init=False)

    @property
    def row_time(self) -> int | None:
        """The time at which the row in the folder was written; None: there is none."""
        try:
            return (self.job.folder / "row.json").stat().st_mtime_ns
        except OSError:
            return None

    @property
    def wrote_row(self) -> bool:
        """The run has left its row since it started, however its process ended."""
        return self.row_time not in (None, self.earlier_row)

    @property
    def cell(self) -> Cell:
        return self.job.cell

    @cached_property
    def plans(self) -> list[Plan]:
        """The plans that can be tried, the fastest first; later ones need less memory."""
        return possible_plans(self.cell, single_pass=self.single_pass)

    @property
    def attempt(self) -> int:
        """Index of the current plan."""
        return self.plans.index(self.job.plan)

    @attempt.setter
    def attempt(self, index: int) -> None:
        self.job = replace(self.job, plan=self.plans[index])

    @cached_property
    def memory_key(self) -> str:
        """A key that jobs share if they differ only in their seeds, so need the same memory."""
        return repr((replace(self.cell, seed=0).id, self.plans[0].devices))


def possible_plans(cell: Cell, *, single_pass: bool) -> list[Plan]:
    """Return the plans for `cell`, the fastest first."""
    plans = cell.trainer.plans(cell.workers)
    return plans[:1] if single_pass else plans


class Scheduler:
    """Bring the cells of a sweep to their rows, wherever they are trained.

    Args:
        entries: jobs to train.
        settings: of the command line.
        summary: updated as jobs end.
        titles: of the cells of the command in its lines, by id.
    """

    def __init__(
        self,
        entries: Sequence[QueueEntry],
        settings: Settings,
        summary: Summary,
        titles: Mapping[str, str],
    ) -> None:
        self.root, self.settings, self.summary = Path(settings.runs), settings, summary
        self.titles = titles
        self.queue = deque(entries)  # also jobs that ran out of memory, and cells that wait for one
        self.shareable: dict[str, Row] = {}  # by computation
        self.screen: Screen = screen(len(entries))

    def title(self, cell: Cell) -> str:
        """Return the title of a cell in lines about it: what distinguishes it from the others."""
        return self.titles.get(cell.id, cell.title)

    def finish(self, entry: QueueEntry) -> None:
        """Show the row that the job has written, and copy it to the cells that share it."""
        row = results.find_row(entry.job.folder)
        if row is None:
            self.fail(entry, "its row.json is damaged or missing", entry.job.log)
            return
        seconds = time.monotonic() - entry.started
        line = f"{row.status:<9} {self.title(entry.cell):<32} {row.outcome}  {seconds:.0f} s"
        self.screen.end(entry.cell.id, line, failed=False)
        if row.wandb_failure:
            self.summary.wandb_failures.append(f"{self.title(entry.cell)}: {row.wandb_failure}")
            if OFFLINE not in row.wandb_failure:
                os.environ.pop(SERVICE, None)  # later runs start their own
        self.share_row(entry, row)

    def finished_elsewhere(self, entry: QueueEntry) -> bool:
        """Reuse a row that another command has written since this one started, if there is one."""
        if self.settings.force:  # a row that is there is the one to replace
            return False
        found = map(results.find_row, self.root.glob(f"*/{entry.cell.id}"))
        since = self.settings.newer_than
        row = next((row for row in found if row and row.final and row.finished >= since), None)
        if row is None:
            return False
        self.reuse(entry, row)
        return True

    def reuse(self, entry: QueueEntry, row: Row) -> None:
        """Take a row that another command has written."""
        self.summary.reused += 1
        self.show_end(entry.cell, f"finished by another command  {self.title(entry.cell)}")
        self.share_row(entry, row)

    def share_row(self, entry: QueueEntry, row: Row) -> None:
        """Copy `row` to the cells that share the computation of `entry`."""
        if not entry.job.computation:  # its workers matter, so no other cell computes the same
            return
        self.shareable |= shareable_rows([row])
        source = self.shareable.get(entry.job.computation)
        if source is not None:
            for cell in entry.sharing:
                try:
                    line, _ = self.copy_row(source, cell)
                except RunLocked:
                    line = f"left      {self.title(cell)}: another process is training it"
                self.screen.note(line)
        elif entry.sharing:
            # It did not fit into memory. A cell with more workers has fewer images in each.
            cell, *others = entry.sharing
            plan = possible_plans(cell, single_pass=entry.single_pass)[0]
            folder = entry.job.folder.with_name(cell.id)
            job = replace(entry.job, cell=cell, folder=folder, plan=plan)
            self.queue.append(replace(entry, job=job, sharing=others))
            self.screen.expect_another()

    def copy_row(self, row: Row, cell: Cell) -> tuple[str, bool]:
        """Give `cell` a copy of the row of a run that computed the same.

        Returns:
            A line about it, and whether the copy could be written.

        Raises:
            RunLocked: another process trains the cell.
        """
        try:
            copy_row(row, cell, self.root, self.settings.sweep)
        except OSError as error:
            folder = self.root / self.settings.sweep / cell.id
            reason = describe_write_error(folder, folder, error)
            self.summary.failed.append(f"{self.title(cell)}: {reason}")
            return f"failed  {self.summary.failed[-1]}", False
        self.summary.shared += 1
        source = self.titles.get(row.id, row.id)
        return f"shared    {self.title(cell)}: same computation as {source}", True

    def show_end(self, cell: Cell, line: str, *, written: bool = True) -> None:
        """Show the end of a queued cell that no process of this command has trained."""
        self.screen.add(cell.id, self.title(cell))
        self.screen.end(cell.id, line, failed=not written)

    def fail(self, entry: QueueEntry, reason: str, log: Path) -> None:
        """Record that the job left no row; the cells that share it have none either."""
        title = self.title(entry.cell)
        self.summary.failed.append(f"{title}: {reason} ({log})")
        self.screen.end(entry.cell.id, f"failed  {self.summary.failed[-1]}", failed=True)
        for cell in entry.sharing:
            self.summary.failed.append(f"{self.title(cell)}: same computation as {title}")
            self.screen.note(f"failed  {self.summary.failed[-1]}")
