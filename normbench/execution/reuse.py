"""A computation is done once: cells that differ in nothing that it reads share one row.

Under a fixed global batch a normalizer whose statistics are those of single images, or of the
whole step, computes the very same at every number of images per worker. One cell is trained and
the others get its row, marked by `shared_with`.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from normbench import results
from normbench.config.cells import Cell
from normbench.execution.provenance import now
from normbench.history import copy_history
from normbench.results import Row


def sources(rows: Iterable[Row]) -> dict[str, Row]:
    """Rows that others can share, by their computation."""
    good = (row for row in rows if row.computation and row.status in ("ok", "diverged"))
    return {row.computation: row for row in good if row.shared_with is None}


def share(row: Row, cell: Cell, root: Path, sweep: str) -> None:
    """Give `cell` the row and the curve of the run that has computed the same."""
    folder = root / sweep / cell.id
    copy_history(root / row.sweep / row.id, folder)
    asked = cell.asked(sweep)
    results.write(folder, replace(row, **asked, shared_with=row.id, finished=now()))
