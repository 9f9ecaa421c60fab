"""What probes have measured, as files: the treaty between `normbench.probes` and the report.

Of a run they lie in `<root>/<sweep>/<run id>/probes/`, of networks that belong to no run where the
command line says:

    KIND.csv    the numbers: a line for each block, layer, alpha ..., of each network and epoch
    KIND.png    the figure, and KIND.pdf
    KIND.json   a row of `normbench.results`, of kind probe, if the network is that of a run
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
        return [{key: _value(text) for key, text in line.items()} for line in csv.DictReader(file)]


def merge(path: Path, lines: Sequence[Line]) -> None:
    """Write `lines` in the place of those of the same epochs, and keep the others."""
    fresh = {line.get("epoch") for line in lines}
    known = read(path) if path.exists() else []
    whole = [*(line for line in known if line.get("epoch") not in fresh), *lines]
    write(path, sorted(whole, key=_epoch))


def by(lines: Sequence[Line], *keys: str) -> dict[Any, list[Line]]:
    """The lines by their value of a key, or of several, in the order in which they come."""
    found: dict[Any, list[Line]] = {}
    for line in lines:
        values = tuple(line.get(key) for key in keys)
        found.setdefault(values if len(keys) > 1 else values[0], []).append(line)
    return found


def grow(folder: Path, kind: str, lines: Sequence[Line], epoch: int) -> None:
    """Add what was seen of a run after `epoch` to what was seen before.

    What is there of this epoch and later belongs to a training that has been begun anew.
    """
    path = folder / FOLDER / f"{kind}.csv"
    known = [line for line in read(path) if _epoch(line) < epoch] if path.exists() else []
    write(path, [*known, *lines])


def of_run(folder: Path) -> list[str]:
    """The kinds of which the folder of a run has numbers."""
    if not (folder / FOLDER).is_dir():
        return []
    return [kind for kind in KINDS if (folder / FOLDER / f"{kind}.csv").exists()]


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
