"""Tables out of rows: one for each setting in which the rows were obtained.

A setting is all that is neither a row nor a column of the table: data set, model, recipe, protocol,
every option that differs from its yaml. Rows of different settings never share a cell.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normbench.report.statistics import mean_and_std
from normbench.results import Row

MISSING = "–"
_WORDS = {"diverged": "div.", "oom": "OOM", "impossible": "n/a"}
#: Which of workers and global batch a protocol holds, the other one following from `batch`.
_HELD = {"fixed_workers": "workers", "fixed_global_batch": "global_batch"}


@dataclass(frozen=True)
class Spec:
    """A file of reports/tables/: what stands where."""

    name: str
    title: str
    rows: str
    columns: str
    metric: str
    label: str
    decimals: int


@dataclass(frozen=True)
class Cell:
    """The runs of one cell, a seed each."""

    runs: tuple[Row, ...]
    metric: str

    @cached_property
    def values(self) -> dict[int, float]:
        """The metric of the runs that have it, by seed."""
        good = [row for row in self.runs if row.status == "ok"]
        return {row.seed: float(value) for row in good if (value := getattr(row, self.metric)) is not None}

    def text(self, decimals: int) -> str:
        """Mean ± deviation (n), and what became of the other runs."""
        parts = []
        if self.values:
            mean, std = mean_and_std(list(self.values.values()))
            deviation = "" if std is None else f" ± {std:.{decimals}f}"
            parts.append(f"{mean:.{decimals}f}{deviation} ({len(self.values)})")
        for status, word in _WORDS.items():
            if count := sum(row.status == status for row in self.runs):
                parts.append(f"{count} {word}" if self.values else word)
        return ", ".join(parts) or MISSING


@dataclass(frozen=True)
class Table:
    """One table: lines of cells, all obtained in one setting."""

    spec: Spec
    setting: Mapping[str, Any]
    columns: Sequence[Any]
    lines: Mapping[str, Sequence[Cell]]

    @property
    def heading(self) -> str:
        """The title with the setting behind it."""
        held = _HELD.get(self.setting["protocol"], "global_batch")
        parts = [
            *(f"{key}={self.setting[key]}" for key in ("data", "model", "recipe")),
            *(f"{key}={self.setting[key]}" for key, usual in _USUAL.items() if self.setting[key] != usual),
            f"protocol={self.setting['protocol']}",
            f"{held}={self.setting[held]}",
            *self.setting["options"].split(),
        ]
        return f"{self.spec.title}: {' '.join(parts)}"

    @property
    def slug(self) -> str:
        """The heading as the name of a file."""
        held = _HELD.get(self.setting["protocol"], "global_batch")
        parts = [
            *(self.setting[key] for key in ("data", "model", "recipe")),
            *(self.setting[key] for key, usual in _USUAL.items() if self.setting[key] != usual),
            f"{self.setting['protocol']}-{self.setting[held]}",
            *self.setting["options"].split(),
        ]
        return re.sub(r"[^\w.=-]+", "_", "-".join(map(str, parts)))

    @property
    def runs(self) -> list[Row]:
        return [row for cells in self.lines.values() for cell in cells for row in cell.runs]

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Header and body as text."""
        header = [f"{self.spec.rows} \\ {self.spec.columns}", *map(str, self.columns)]
        decimals = self.spec.decimals
        body = [[label, *(cell.text(decimals) for cell in cells)] for label, cells in self.lines.items()]
        return header, body


_USUAL = {"reg": "none", "precision": "32-true"}


def tables(specs: Sequence[Spec], rows: Sequence[Row], touched: Collection[str] | None) -> list[Table]:
    """The tables of `specs` from `rows`, one for each setting.

    Args:
        specs: what tables there are.
        rows: all rows; of those that are no runs none is used.
        touched: ids of runs; settings that contain none of them are left out. None: all settings.
    """
    found = []
    for spec in specs:
        settings: dict[tuple[tuple[str, Any], ...], list[Row]] = defaultdict(list)
        for row in rows:
            if row.kind == "run":
                settings[tuple(_setting(row, spec).items())].append(row)
        for setting, own in sorted(settings.items(), key=str):
            if touched is None or any(row.id in touched for row in own):
                found.append(_table(spec, dict(setting), own))
    return found


def _table(spec: Spec, setting: dict[str, Any], rows: list[Row]) -> Table:
    cells: dict[tuple[str, Any], list[Row]] = defaultdict(list)
    for row in rows:
        cells[_name(row, spec.rows), _place(row, spec.columns)].append(row)
    labels = sorted({label for label, _ in cells})
    columns = sorted({column for _, column in cells})
    lines = {
        label: [Cell(tuple(cells.get((label, column), ())), spec.metric) for column in columns]
        for label in labels
    }
    return Table(spec, setting, columns, lines)


def _setting(row: Row, spec: Spec) -> dict[str, Any]:
    axes = (spec.rows, spec.columns)
    held = _HELD.get(row.protocol, "global_batch")
    keys = ("norm", "batch", "data", "model", "recipe", "reg", "precision", "protocol", held)
    chosen = {key: getattr(row, key) for key in keys if key not in axes}
    return {**chosen, "options": _options(row, lambda group: group not in axes)}


def _name(row: Row, axis: str) -> str:
    """A row's value on an axis, with the options that belong to it."""
    own = _options(row, lambda group: group == axis).replace(f"{axis}.", "")
    return " ".join([str(getattr(row, axis)), *own.split()])


def _place(row: Row, axis: str) -> Any:
    """The same, but a number stays one, so that columns sort as numbers."""
    value = getattr(row, axis)
    return value if isinstance(value, int) else _name(row, axis)


def _options(row: Row, wanted: Any) -> str:
    return " ".join(o for o in row.options.split(" ") if o and wanted(o.partition(".")[0]))
