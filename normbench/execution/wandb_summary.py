"""Send the summary of a sweep to W&B; runs in a process of its own.

It is a run of the sweep's group with the job type "summary". Its id follows from the sweep and the
folder of all runs, so that the next command continues it.
"""

import hashlib
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import wandb

from normbench.config.wandb_options import read_timeout
from normbench.execution.provenance import commit, versions
from normbench.execution.sweep_summary import SweepSummary
from normbench.execution.wandb_logger import Mirror
from normbench.execution.wandb_service import PATIENCE, shared_service

LONGEST = 80  # letters of the name of a table, from which W&B makes one of at most 128
FILES_PER_SECOND = 100  # at least, while rows are copied


def send(summary: SweepSummary, _report: Callable[[Any], None]) -> tuple[str, str]:
    """Send `summary`; return the address of its W&B run, and what failed; "" for none."""
    # Of an offline run, whose files the new ones replace.
    shutil.rmtree(summary.folder / "wandb", ignore_errors=True)
    failures: list[str] = []
    with shared_service(failures):
        mirror = Mirror(summary.options, summary.folder, _describe(summary))
        seconds = read_timeout("FINISH") + PATIENCE  # an online run asks the server for each table
        mirror.send(partial(_log_tables, summary), seconds)
        mirror.send(partial(_log_rows, summary), seconds + len(summary.rows) / FILES_PER_SECOND)
        origin = {"commit": commit(), "versions": versions()}
        mirror.finish(0, {"rows": len(summary.rows)}, origin)
    return mirror.address, mirror.failure or "".join(failures)


def _describe(summary: SweepSummary) -> dict[str, Any]:
    return {
        "group": summary.sweep,
        "name": summary.sweep,
        "job_type": "summary",
        "notes": f"Tables, figures and rows of the sweep {summary.sweep}",
        "config": {"sweep": summary.sweep},
        "id": f"summary-{summary.id}",
    }


def _log_tables(summary: SweepSummary, run: wandb.Run) -> None:
    """Log tables and figures in one step, so that W&B shows those of one moment together."""
    media: dict[str, Any] = {}
    for table in summary.tables:
        header, body = table.grid()
        # W&B shows no column without a name, as that of the labels in a paper's table.
        columns: list[str | int] = [header[0] or "row", *header[1:]]
        media[_key("tables", f"{table.spec.name}/{table.slug}")] = wandb.Table(
            columns=columns, data=body
        )
    for name, path in summary.figures.items():
        media[_key("figures", name)] = wandb.Image(path)
    if media:
        run.log(media)


def _log_rows(summary: SweepSummary, run: wandb.Run) -> None:
    """Log the files of the rows as an artifact, which can be used as a folder of runs."""
    artifact = wandb.Artifact(f"rows-{summary.id}", "rows", f"Rows of the sweep {summary.sweep}")
    for row in summary.rows:
        name = f"{row.sweep}/{row.id}/row.json"
        artifact.add_file(str(summary.root / name), name, skip_cache=True)
    run.log_artifact(artifact)


def _key(section: str, name: str) -> str:
    """Return the key of a table or figure; the end of a long name becomes its digest."""
    if len(name) > LONGEST:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: LONGEST - 9]}-{digest}"
    return f"{section}/{name}"
