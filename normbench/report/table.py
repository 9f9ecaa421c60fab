"""Tables out of rows: one for each setting in which the rows were obtained.

A setting is all that is neither a row nor a column of the table: data set, model, recipe, protocol,
every option that differs from its yaml. Rows of different settings never share a cell.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normbench.report.statistics import mean_and_std
from normbench.results import Row, flat

MISSING = "–"
_WORDS = {"diverged": "div.", "oom": "OOM", "impossible": "n/a"}


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
        return {
            row.seed: float(value)
            for row in good
            if (value := getattr(row, self.metric)) is not None
        }

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
    """One table: lines of cells, all obtained in one setting.

    Args:
        spec: what stands where.
        setting: every scientific option that is on no axis, and its value.
        differs: options to name beside the usual ones, because another table differs in them alone.
        columns: values of the column axis, ascending.
        lines: cells of each value of the row axis, by its name.
    """

    spec: Spec
    setting: Mapping[str, Any]
    differs: Sequence[str]
    columns: Sequence[Any]
    lines: Mapping[str, Sequence[Cell]]

    @property
    def heading(self) -> str:
        """The title, and the setting as one would type it."""
        return f"{self.spec.title}: {' '.join(_words(self.setting, self.differs))}"

    @property
    def slug(self) -> str:
        """The setting as the name of a file."""
        return re.sub(r"[^\w.=-]+", "_", "-".join(_words(self.setting, self.differs, short=True)))

    @property
    def drawable(self) -> bool:
        """There is a number over images per worker."""
        numbers = any(cell.values for cells in self.lines.values() for cell in cells)
        return self.spec.columns == "batch" and numbers

    @property
    def runs(self) -> list[Row]:
        return [row for cells in self.lines.values() for cell in cells for row in cell.runs]

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Header and body as text."""
        header = [f"{self.spec.rows} \\ {self.spec.columns}", *map(str, self.columns)]
        decimals = self.spec.decimals
        body = [
            [label, *(cell.text(decimals) for cell in cells)] for label, cells in self.lines.items()
        ]
        return header, body


def tables(
    specs: Sequence[Spec], rows: Sequence[Row], touched: Collection[str] | None
) -> list[Table]:
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
                settings[_frozen(_setting(row, spec))].append(row)
        known = [dict(setting) for setting in settings]
        for setting, own in sorted(settings.items(), key=str):
            if touched is None or any(row.id in touched for row in own):
                found.append(_table(spec, dict(setting), own, known))
    return found


def _table(
    spec: Spec, setting: dict[str, Any], rows: list[Row], known: list[dict[str, Any]]
) -> Table:
    twins = [other for other in known if _words(other) == _words(setting)]
    names = _names(rows, spec.rows)
    cells: dict[tuple[str, Any], list[Row]] = defaultdict(list)
    for row in rows:
        cells[names[row.id], _place(row, spec.columns)].append(row)
    labels = sorted({label for label, _ in cells})
    columns = sorted({column for _, column in cells})
    lines = {
        label: [Cell(tuple(cells.get((label, column), ())), spec.metric) for column in columns]
        for label in labels
    }
    return Table(spec, setting, _differing(twins), columns, lines)


def _setting(row: Row, spec: Spec) -> dict[str, Any]:
    """What a row shares with all others of its table: all options but those of the axes."""
    axes = {spec.rows, spec.columns}
    # What follows from `batch` differs from column to column and must not split the table.
    follows = {"fixed_workers": "global_batch", "fixed_global_batch": "workers"}.get(
        row.protocol, ""
    )
    kept = {
        key: value
        for key, value in flat(row.config).items()
        if key.partition(".")[0] not in axes | {"seed", follows}
    }
    return {**kept, "options": _options(row, lambda group: group not in axes)}


def _words(
    setting: Mapping[str, Any], differs: Sequence[str] = (), *, short: bool = False
) -> list[str]:
    """A setting in words: "key=value", or for the usual keys the value alone where `short`."""
    held = "workers" if setting["protocol"] == "fixed_workers" else "global_batch"
    usual = {"reg": "none", "precision": "32-true"}
    keys = ["data", "model", "recipe", "reg", "precision", "protocol", held]
    said = [key for key in keys if key in setting and setting[key] != usual.get(key)]
    words = [f"{setting[key]}" if short else f"{key}={setting[key]}" for key in said]
    return [*words, *setting["options"].split(), *(f"{k}={setting.get(k)}" for k in differs)]


def _names(rows: Sequence[Row], axis: str) -> dict[str, str]:
    """What to call each row on `axis`, by run id: the name, and the options that belong to it.

    Where a yaml has changed since, runs of one name have other options; then those are named too.
    """
    alike: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        alike[_name(row, axis)].append(row)
    names = {}
    for name, own in alike.items():
        # Two runs called "gn", of eps 1e-5 and, since the yaml was changed, of 1e-3: both are named
        # with their eps.
        options = {row.id: _own(row, axis) for row in own}
        keys = _differing(list(options.values()))
        for run, values in options.items():
            names[run] = " ".join([name, *(f"{key}={values.get(key)}" for key in keys)])
    return names


def _own(row: Row, axis: str) -> dict[str, Any]:
    within = f"{axis}."
    options = flat(row.config).items()
    return {key.removeprefix(within): value for key, value in options if key.startswith(within)}


def _name(row: Row, axis: str) -> str:
    own = _options(row, lambda group: group == axis).replace(f"{axis}.", "")
    return " ".join([str(getattr(row, axis)), *own.split()])


def _place(row: Row, axis: str) -> Any:
    """The same, but a number stays one, so that columns sort as numbers."""
    value = getattr(row, axis)
    return value if isinstance(value, int) else _name(row, axis)


def _options(row: Row, wanted: Callable[[str], bool]) -> str:
    return " ".join(o for o in row.options.split(" ") if o and wanted(o.partition(".")[0]))


def _differing(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which not all `options` agree."""
    keys = sorted({key for each in options for key in each})
    return [key for key in keys if len({str(each.get(key)) for each in options}) > 1]


def _frozen(setting: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (key, tuple(value) if isinstance(value, list) else value)
        for key, value in sorted(setting.items())
    )
