"""Train each computation once: cells that compute the same share one row.

Under a fixed global batch, a normalizer whose statistics are those of single images, or of the
whole step, computes the same for every number of images per worker. One of these cells is trained,
and the others get a copy of its row, marked by `shared_with`.
"""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from normbench import results, run_files
from normbench.config.cells import Cell
from normbench.execution.provenance import now
from normbench.records.history import HISTORY
from normbench.records.hits import TEST_HITS
from normbench.results import Row


def shareable_rows(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the rows that other cells can share, by computation."""
    # Not oom: with more workers, each has fewer images and may have room.
    trained = (row for row in rows if row.computation and row.status in ("ok", "diverged"))
    return {row.computation: row for row in trained if row.shared_with is None}


def copy_row(row: Row, cell: Cell, root: Path, sweep: str) -> None:
    """Give `cell` the row, the curve and the test hits of a run that computed the same.

    Raises:
        RunLocked: another command trains the cell, which will have a row of its own.
        OSError: the folder cannot be written.
    """
    folder = root / sweep / cell.id
    folder.mkdir(parents=True, exist_ok=True)
    with run_files.lock(folder):
        run_files.remove_temporary_files(folder)
        for name in (HISTORY, TEST_HITS):
            with suppress(FileNotFoundError):  # the row may have been copied here alone
                shutil.copyfile(root / row.sweep / row.id / name, folder / name)
        copy = replace(row, **cell.description(sweep), shared_with=row.id, finished=now())
        results.write(folder, copy)
