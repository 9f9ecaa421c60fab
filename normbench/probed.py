"""What probes have measured, as files: the treaty between `normbench.measurements` and the report.

Of a run they lie in `<root>/<sweep>/<run id>/probes/`, of networks that belong to no run where the
command line says:

    KIND.csv    the numbers: a line for each block, layer, alpha ..., of each network and epoch
    KIND.png    the figure, and KIND.pdf
    KIND.json   a row of `normbench.results`, of kind probe, if the network is that of a run

What a training has seen of itself is KIND.csv of its folder; what the command sees of it later, in
other images perhaps, is KIND.command.csv where both can be.
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = "probes"
KINDS = ("spp", "power", "ratios", "example_weight", "speed", "gains")
#: Those that look at a network while it is trained, and what they say of it in the curve.
IN_TRAINING = {
    "spp": ("spp_squared_mean", "spp_variance", "spp_branch_variance"),
    "power": ("power_p1", "power_p2", "power_p3", "power_p4"),
    "ratios": tuple(
        f"ratio_{of}_{member}" for of in ("mean", "var") for member in ("in", "ln", "bn")
    ),
}

Line = dict[str, Any]  # values are texts, numbers, truths or None
#: Columns that are no numbers, whatever they look like: the id of a run may be 1234567890e1.
TEXTS = frozenset(
    {"network", "run", "name", "layer", "group", "of", "split", "best", "mode", "status", "reason"}
    | {"act", "input", "statistics"}
)


def write(path: Path, lines: Sequence[Line]) -> None:
    """The numbers as CSV, in one piece; columns are those of the lines, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(column for line in lines for column in line))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for line in lines:
            writer.writerow({key: _text(value) for key, value in line.items()})
    temporary.replace(path)


def read(path: Path) -> list[Line]:
    """The lines of such a file; numbers are numbers again, an empty place is None."""
    with path.open(newline="") as file:
        return [
            {key: text if key in TEXTS else _value(text) for key, text in line.items()}
            for line in csv.DictReader(file)
        ]


def by(lines: Sequence[Line], *keys: str) -> dict[Any, list[Line]]:
    """The lines by their value of a key, or of several, in the order in which they come."""
    found: dict[Any, list[Line]] = {}
    for line in lines:
        values = tuple(line.get(key) for key in keys)
        found.setdefault(values if len(keys) > 1 else values[0], []).append(line)
    return found


def named(key: tuple[str, int | None]) -> str:
    """A network, and the epoch of a run's."""
    network, epoch = key
    return network if epoch is None else f"{network}, epoch {epoch}"


def grow(folder: Path, kind: str, lines: Sequence[Line], epoch: int) -> None:
    """Add what was seen of a run after `epoch` to what was seen before.

    What is there of this epoch and later belongs to a training that has been begun anew.
    """
    path = folder / FOLDER / f"{kind}.csv"
    known = [line for line in read(path) if _epoch(line) < epoch] if path.exists() else []
    write(path, [*known, *lines])


def last(lines: Sequence[Line], *keys: str) -> list[Line]:
    """Of each network, told by its `keys`, the lines of the last epoch."""
    found: list[Line] = []
    for own in by(lines, *keys).values():
        latest = max(line["epoch"] for line in own)
        found += [line for line in own if line["epoch"] == latest]
    return found


def stem(kind: str) -> str:
    """The name of the command's file in the folder of a run."""
    return f"{kind}.command" if kind in IN_TRAINING else kind


def file_of(folder: Path, kind: str) -> Path | None:
    """The numbers of a run's folder: those of its training, or else those of the command."""
    if not (folder / FOLDER).is_dir():  # as in most
        return None
    names = dict.fromkeys((kind, stem(kind)))
    paths = [folder / FOLDER / f"{name}.csv" for name in names]
    return next((path for path in paths if path.exists()), None)


def _epoch(line: Line) -> float:
    value = line.get("epoch")
    return float(value) if isinstance(value, int | float) else -1.0


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
