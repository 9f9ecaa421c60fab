"""The training curve of a run: history.csv, one line for each record. Standard library only."""

import csv
import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from normbench.run_files import write_file


class History:
    """Writer of history.csv.

    Args:
        folder: of the run.
        past: records of an interrupted training that this one resumes.
        more: columns of probes, beside the usual ones.
    """

    columns: tuple[str, ...] = (
        "step", "epoch", "lr", "train_loss", "train_top1", "val_loss", "val_top1",
    )  # fmt: skip

    def __init__(
        self, folder: Path, past: Sequence[Mapping[str, float]] = (), more: Sequence[str] = ()
    ) -> None:
        names = [name for record in past for name in record]
        self.columns = tuple(dict.fromkeys((*type(self).columns, *more, *names)))
        self.path = folder / "history.csv"
        text = io.StringIO()
        csv.writer(text).writerows([self.columns, *map(self._values, past)])
        # Atomically: a process killed while it rewrites the past would lose it.
        write_file(self.path, text.getvalue().encode())

    def add(self, record: Mapping[str, float]) -> None:
        """Append `record`; missing columns stay empty."""
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(self._values(record))

    def _values(self, record: Mapping[str, float]) -> list[Any]:
        values = {**record, "step": int(record["step"])}
        return [values.get(column, "") for column in self.columns]


def read_history(folder: Path) -> Iterator[dict[str, float]]:
    """Yield the records of history.csv, without empty columns."""
    with (folder / "history.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            yield {column: float(value) for column, value in line.items() if value}


def last_record(folder: Path) -> dict[str, float] | None:
    """Return the latest complete record of a running training; None before the first."""
    if not (folder / "history.csv").exists():
        return None
    # The writer may be in the middle of the last line.
    complete = (record for record in read_history(folder) if "train_top1" in record)
    return next(iter(deque(complete, maxlen=1)), None)
