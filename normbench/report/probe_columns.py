"""Records of probes in runs, checked for what the figure of a table draws of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from normbench.errors import DamagedFile
from normbench.records.probes import Record, read_records
from normbench.records.row_checks import HUGE


@dataclass(frozen=True)
class Columns:
    """The columns that a figure needs."""

    places: tuple[str, ...]  # finite numbers
    numbers: tuple[str, ...]  # also infinite ones, where a signal explodes
    texts: Mapping[str, tuple[str, ...]]  # with the words that can stand there; () is any text
    present: tuple[str, ...] = ()  # empty in some lines


COLUMNS: Mapping[str, Columns] = {
    "spp": Columns(
        ("epoch", "block"), ("squared_mean", "variance", "branch_variance"), {}, ("ends_stage",)
    ),
    "power": Columns(("epoch", "depth"), ("p1", "p2", "p3", "p4"), {}, ("linearity",)),
    "ratios": Columns(
        ("epoch", "depth", "in", "ln", "bn"), ("divergence",),
        {"group": (), "of": ("mean", "var")}, ("field",),
    ),
    "example_weight": Columns(("alpha", "top1", "top5", "loss"), (), {"split": ("val", "test")}),
}  # fmt: skip


#: Columns of hard_ratios beside those of ratios: the layer has one member for means and another for
#: variances; its members differ from those of the snapshot before, empty in the first one.
CHOICES = ("distinct", "changed")

#: Column of ratios: how far those of a layer have moved since the first measurement, per 1,000
#: steps. It is the sum over measurements of half the absolute differences from the one before;
#: empty in the first one.
CHANGE = "change_per_1000_steps"


def read_probe(path: Path, kind: str) -> list[Record]:
    """Return the records of a probe in the folder of a run.

    Raises:
        DamagedFile: the file lacks what the figure of the probe draws.
    """
    try:
        records = read_records(path)
    except FileNotFoundError:  # the name of the file is there
        raise DamagedFile(f"{path} is a link to nothing") from None
    if not records:
        raise DamagedFile(f"{path} has no records")
    for number, record in enumerate(records, 1):
        if problem := _problem(record, COLUMNS[kind]):
            raise DamagedFile(f"{path}: record {number} {problem}")
    return records


def _problem(record: Record, columns: Columns) -> str:
    """Return why a record cannot be drawn, or ""."""
    for name in (*columns.places, *columns.numbers, *columns.texts, *columns.present):
        if name not in record:
            return f"has no column {name}"
    optional = [name for name in ("linearity", "bound") if record.get(name) is not None]
    for name in (*columns.places, *columns.numbers, *optional):
        value = record[name]
        if type(value) not in (int, float):
            return f"has no number as {name}"
        finite = isfinite(value)
        if (finite and abs(value) > HUGE) or (name in columns.places and not finite):
            return f"has {name}={str(value)[:20]}, which cannot be drawn"
    for name, words in columns.texts.items():
        if words and record[name] not in words:
            return f"has {str(record[name])[:20]!r} as {name}; it is {' or '.join(words)}"
    return ""
