"""The curve of a run: history.csv in its folder, a line a record. Standard library only."""

import csv
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class History:
    """The curve of one run, a line a record; `more` columns are those of its probes."""

    columns: tuple[str, ...] = (
        "step", "epoch", "lr", "train_loss", "train_top1", "val_loss", "val_top1",
    )  # fmt: skip

    def __init__(
        self,
        folder: Path,
        past: Sequence[Mapping[str, float]] = (),
        more: Sequence[str] = (),
    ) -> None:
        known = [name for record in past for name in record]
        self.columns = tuple(dict.fromkeys((*type(self).columns, *more, *known)))
        self.path = folder / "history.csv"
        # In one piece, or a process that is killed here would take the past with it.
        whole, temporary = self.path, folder / f".history.csv.{os.getpid()}"
        self.path = temporary
        with temporary.open("w", newline="") as file:
            csv.writer(file).writerow(self.columns)
        for record in past:
            self.add(record)
        self.path = temporary.replace(whole)

    def add(self, record: Mapping[str, float]) -> None:
        """Append `record`; columns that it lacks stay empty."""
        whole = {**record, "step": int(record["step"])}
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow([whole.get(column, "") for column in self.columns])


def read_history(folder: Path) -> Iterator[dict[str, float]]:
    """The records of history.csv, without their empty columns."""
    with (folder / "history.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            yield {column: float(value) for column, value in line.items() if value}


def copy_history(source: Path, folder: Path) -> None:
    """Give `folder` the curve of another run that computed the same."""
    folder.mkdir(parents=True, exist_ok=True)
    if (source / "history.csv").exists():
        shutil.copyfile(source / "history.csv", folder / "history.csv")


def last_record(folder: Path) -> dict[str, float] | None:
    """The latest record of a run's curve; None before the first."""
    if not (folder / "history.csv").exists():
        return None
    # Its last line may be half written by now: what counts is the last whole one.
    whole = (record for record in read_history(folder) if "train_top1" in record)
    return next(iter(deque(whole, maxlen=1)), None)
