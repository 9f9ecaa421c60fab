"""The summary of a sweep in W&B: tables, figures and rows, sent at the end of a command.

A worker process sends it, see `normbench.execution.wandb_summary`: the command imports no wandb,
and W&B cannot take it down.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.config.cells import Cell, Settings
from normbench.config.wandb_options import OFFLINE
from normbench.errors import BadInput, one_line
from normbench.execution import process_group
from normbench.execution.job import Summary
from normbench.execution.progress import waiting
from normbench.report import build
from normbench.report.table import Table
from normbench.results import Row

FOLDER = "summary"  # beside the runs of the sweep; the id of a run has 12 hexadecimal digits


@dataclass(frozen=True)
class SweepSummary:
    """The content of the summary. It is pickled for the process that sends it.

    Args:
        sweep: whose summary it is.
        root: folder of all runs.
        options: of the group `logger`.
        tables: that the command has printed.
        figures: their image files, by name.
        rows: those of the tables and of the cells of the command.
    """

    sweep: str
    root: Path
    options: Mapping[str, Any]
    tables: Sequence[Table]
    figures: Mapping[str, Path]
    rows: Sequence[Row]

    @property
    def folder(self) -> Path:
        """The folder for the files of W&B."""
        return self.root / self.sweep / FOLDER

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that follow from the sweep and the folder of all runs."""
        text = f"{self.root.resolve()}\0{self.sweep}"
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


def send(
    cells: Sequence[Cell],
    settings: Settings,
    summary: Summary,
    rows: Sequence[Row],
    tables: Sequence[Table],
) -> str:
    """Send the summary of a grid that has new rows; return the address of its W&B run, or "".

    `rows` are all rows, `tables` those that the command has printed and written. A failure is added
    to those of W&B in `summary`.
    """
    loggers = [cell.logger.options for cell in cells]
    options = [each for each in loggers if each.get("mode", "disabled") != "disabled"]
    has_new_rows = summary.trained + summary.shared > 0
    if len(cells) == 1 or not options or not has_new_rows or summary.interrupted:
        return ""
    # A server that the runs could not use is not waited for again.
    offline = any(OFFLINE in failure for failure in summary.wandb_failures)
    logger = {**options[0], "mode": "offline"} if offline else options[0]
    root, ids = Path(settings.runs), {cell.id for cell in cells}
    of_cells = [row for row in rows if row.id in ids]
    shown = _each_once(of_cells, *(table.runs for table in tables))
    try:
        images = build.images(tables, build.reports_folder(root, settings.reports), root)
        content = SweepSummary(settings.sweep, root, logger, tables, images, shown)
        with waiting("sending tables, figures and rows to W&B ..."):
            address, failure = _send_from_process(content)
    except (OSError, BadInput) as error:  # a full disk, or no process can be started
        address, failure = "", one_line(error)
    if failure:
        summary.wandb_failures.append(f"summary of the sweep: {failure}")
    return address


def _each_once(*rows: Sequence[Row]) -> list[Row]:
    return [*{row.id: row for each in rows for row in each}.values()]


def _send_from_process(content: SweepSummary) -> tuple[str, str]:
    """Return the address of the W&B run and what failed; "" for none."""
    content.folder.mkdir(parents=True, exist_ok=True)
    group = process_group.start(
        "normbench.execution.wandb_summary:send",
        content,
        log=content.folder / "log.txt",
        # Tables and rows wait there until they are uploaded, perhaps by `wandb sync`.
        environment={"WANDB_DATA_DIR": str(content.folder.resolve() / "wandb")},
    )
    end = process_group.wait_for_exit(group)
    return end.result if end.succeeded else ("", end.reason)
