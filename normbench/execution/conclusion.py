"""Train the cells of a command, and conclude it: tables, failures, what to do next, exit code."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from types import FrameType

from normbench import results
from normbench.config.cells import Cell, Settings
from normbench.config.output import terminal
from normbench.errors import count, leave_out_again, left_out
from normbench.execution import dispatch, sweep_summary
from normbench.execution.distributed_env import distributed_env
from normbench.execution.job import Summary
from normbench.execution.sweep import Interrupted
from normbench.report import build
from normbench.report.pivot import tables
from normbench.report.printout import print_tables
from normbench.report.table import Table
from normbench.report.table_spec import TableSpec
from normbench.run_files import require_writable
from normbench.training.stop_signals import Requests

MOST_LINES = 6  # about interrupted runs


def train(
    cells: Sequence[Cell], settings: Settings, specs: Callable[[], Sequence[TableSpec]]
) -> int:
    """Give every cell a row, and print and write tables of them; return the exit code.

    `specs` are those of the tables.

    Raises:
        BadInput: no run can use the command line.
        Interrupted: a signal has stopped it before anything was trained.
    """
    # Before the training, not after it.
    key = "runs" if settings.reports is None else "reports"
    require_writable(
        _reports_folder(settings), f"{key}={getattr(settings, key)}",
        f"use a writable folder, as {key}=$HOME/normbench-{key}",
    )  # fmt: skip
    summary = dispatch.start(cells, settings)
    if (env := distributed_env()) is None or env.rank == 0:
        _conclude(cells, settings, summary, specs)
    if summary.interrupted:
        return 128 + summary.interrupted
    return 1 if summary.failed else 0


def _conclude(
    cells: Sequence[Cell],
    settings: Settings,
    summary: Summary,
    specs: Callable[[], Sequence[TableSpec]],
) -> None:
    """Print and write the tables of the cells, and print failures and what to do next."""
    root = Path(settings.runs)
    # Read again after a training: other commands may have written rows meanwhile.
    rows = results.read(root) if summary.rows is None else summary.rows
    ids = {cell.id for cell in cells}
    printed = tables(specs(), rows, ids, root=root)
    print_tables(printed, terminal())
    if printed:
        _write_reports(printed, _reports_folder(settings), root, summary)
    for line in summary.failed:
        print(f"failed: {line}")
    if summary.interrupted:
        print(f"stopped by signal {summary.interrupted}")
    for line in summary.stopped[:MOST_LINES]:
        print(f"interrupted: {line}")
    if (more := len(summary.stopped) - MOST_LINES) > 0:
        print(f"interrupted: {count(more, 'other run')}; python -m normbench.status lists them")
    if left := len(ids - {row.id for row in rows}):
        print(f"{left} of {len(cells)} cells have no row; the same command trains them")
    address = sweep_summary.send(cells, settings, summary, rows, printed)
    # Rows that share a computation share its W&B run, too.
    addresses = {address, *(row.wandb for row in rows if row.id in ids)}
    offline = {each for each in addresses if "offline-run" in each}
    if address and address not in offline:
        print(f"W&B: tables, figures and rows: {address}")
    if offline and summary.trained:
        folders = f"{quote(str(root / settings.sweep))}/*/wandb/offline-run-*"
        print(f"W&B: {count(len(offline), 'offline run')}; upload with `wandb sync {folders}`")
    if failures := summary.wandb_failures:
        others = f" ({len(failures) - 1} more; see wandb_failure in the rows)"
        print(
            f"warning: W&B lacks records: {failures[0]}{others if failures[1:] else ''}",
            file=sys.stderr,
        )


def _reports_folder(settings: Settings) -> Path:
    return build.reports_folder(Path(settings.runs), settings.reports)


def _write_reports(printed: Sequence[Table], reports: Path, root: Path, summary: Summary) -> None:
    """Write the files of the tables that were printed, and print their names."""
    before = build.files_below(reports)
    with left_out() as missing:
        changed = build.write(printed, reports, root)
    leave_out_again(missing)
    print()
    for table in printed:
        forms = ", ".join(build.suffixes(table, root))
        print(f"{reports / table.spec.name / table.slug}{forms}")
    print(build.count_changes(changed, before))
    if missing:
        summary.failed.append(
            f"reports lack {count(len(missing), 'file')}; all rows are in {root}, and "
            "`python -m normbench.report` writes the rest"
        )


@contextmanager
def stop_by_signals() -> Iterator[None]:
    """Turn the signals that stop a command into `Interrupted`, which has the signal's number.

    Slurm sends SIGUSR1 or SIGUSR2 before the end of a job, if it is asked to.
    """
    requests = Requests()

    def stop(number: int, _frame: FrameType | None) -> None:
        if any(requests.add(number)):  # the first, or one that ends the wait for checkpoints
            raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
