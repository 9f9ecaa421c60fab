"""The training curve of a run: history.csv, one line for each record. Standard library only."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normbench.errors import DamagedFile
from normbench.records.csv_table import read_csv
from normbench.run_files import write_file

HISTORY = "history.csv"

CurveRecord = dict[str, float]  # a line of the curve: values by column


class History:
    """Writer of history.csv.

    Args:
        folder: of the run.
        past: records of an interrupted training that this one resumes.
        more: columns of probes, beside the usual ones.
        scores: columns of the task, of training and of validation.
    """

    def __init__(
        self,
        folder: Path,
        past: Sequence[Mapping[str, float]] = (),
        more: Sequence[str] = (),
        scores: tuple[str, str] = ("train_top1", "val_top1"),
    ) -> None:
        usual = ("step", "epoch", "lr", "train_loss", scores[0], "val_loss", scores[1])
        names = [name for record in past for name in record]
        self.columns = tuple(dict.fromkeys((*usual, *more, *names)))
        self.path = folder / HISTORY
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


def read_history(folder: Path, *, complete: bool = False) -> list[CurveRecord]:
    """Return the records of history.csv, without empty columns.

    Args:
        folder: of the run.
        complete: False if the training may be running, or was killed while it wrote the last line,
            which is left out then.

    Raises:
        FileNotFoundError: there is none.
        DamagedFile: the file is no curve; the message names it and the line.
    """
    path = folder / HISTORY
    columns, *lines = read_csv(path, complete=complete)
    try:
        return parse_curve(
            [
                {name: float(text) for name, text in zip(columns, line, strict=True) if text}
                for line in lines
            ]
        )
    except ValueError as problem:
        raise DamagedFile(f"{path}: {problem}") from None


def parse_curve(records: Any) -> list[CurveRecord]:
    """Return `records`, checked to be those of a curve.

    Raises:
        ValueError: they are not; the message says which.
    """
    if not isinstance(records, list):
        raise ValueError("the curve is not a list")
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or {*map(type, record.values())} - {int, float}:
            raise ValueError(f"record {number} has a value that is not a number")
        # A loss may be infinite, a position may not.
        if "step" not in record or not all(
            abs(record.get(position, 0)) < 1e15 for position in ("step", "epoch")
        ):
            raise ValueError(f"record {number} has no step, or one that is no number")
    return records


def last_record(folder: Path) -> CurveRecord | None:
    """Return the latest complete record of a running training; None if none can be read."""
    try:
        records = read_history(folder)
    except (FileNotFoundError, DamagedFile):
        return None
    return next(
        (
            record
            for record in reversed(records)
            if any(name.startswith("train_") for name in record)
        ),
        None,
    )
