"""Tables as specified in reports/tables/: rows, columns, metric and the paper's numbers.

A paper's table lists its rows and columns, each with the options of its runs. A table of our own
has options as axes, as `rows: norm` and `columns: batch`, and a row or column for each value.
"""

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product
from typing import Any, Literal

from normbench.errors import DamagedFile, choose_from
from normbench.report.metrics import METRICS, Metric
from normbench.report.yaml_checks import INVALID, Types, check_keys, check_types, reason

Label = tuple[str, ...]  # one word for each level: ("RN50", "with")
Position = tuple[Label, Label]  # row and column of an entry
FULL, SMALL = 0, 1  # scales: the paper's networks, or small networks in their place

OPTIONS = (
    "norm", "model", "data", "reg", "recipe", "task", "protocol", "batch", "workers",
    "global_batch", "seed", "precision", "init_from", "init_only", "start",
)  # fmt: skip
AXES = OPTIONS[:-3]  # those that a row has; the last three are parts of few
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d*\.?\d+))?( unverified)?")


@dataclass(frozen=True)
class PublishedNumber:
    """A number printed by a paper."""

    value: float | None  # None if the paper prints a word, as OOM
    error: float | None = None  # the number after ±
    unverified: bool = False  # we could not verify it in the text of the paper
    text: str = ""  # as printed

    def __str__(self) -> str:
        return f"{self.text} ?" if self.unverified else self.text


@dataclass(frozen=True)
class Difference:
    """A row or column that is the difference of two others on the same axis."""

    first: tuple[Label, ...]  # minuend; of several, the best
    second: Label  # subtrahend
    at: Label | None = None  # place of the subtrahend on the other axis; None: that of the minuend


@dataclass(frozen=True)
class Header:
    """A row or column of a table.

    `conditions` are, for each level, options of the paper's runs and, if different, of small ones.
    """

    label: Label
    conditions: tuple[tuple[Mapping[str, Any], ...], ...]
    metric: str | None = None  # of its numbers, if it is not the table's
    minus: Difference | None = None  # that it shows
    ours: bool = True  # normbench can train its runs; a difference has none

    def __str__(self) -> str:
        return " ".join(self.label)

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(key for level in self.conditions for options in level for key in options)

    @property
    def number(self) -> float | None:
        """The label as a number, None if it is none."""
        try:
            return float(str(self))
        except ValueError:
            return None

    @cached_property
    def batch(self) -> int | None:
        """The images per worker, if there is exactly one such condition."""
        options = [each for level in self.conditions for each in level]
        batches = {n for each in options if isinstance(n := each.get("batch"), int) and n > 0}
        return batches.pop() if len(batches) == 1 else None

    def fits(self, options: Mapping[str, Any], scale: int) -> bool:
        return self.ours and all(
            fits(level[min(scale, len(level) - 1)], options) for level in self.conditions
        )


@dataclass(frozen=True)
class TableSpec:
    """A table, as specified in its file.

    A paper's table has `rows` and `columns`; a table of our own has these, too, or `axes`, the
    options whose values are its rows and columns. `seeds` is the number of runs behind a number of
    the paper, or words that tell it. All runs have the options of `where`. Numbers are compared
    with the paper's if the runs have the options of `setting`. `sweep` trains the runs, and with
    the ending _small those of small networks. `sizes` are the metrics on the x-axes of the figure
    over sizes. `over` says what the numbers are by which columns are labelled, as "learning rate",
    which is the x-axis of a figure of a table whose columns do not differ in images per worker.
    `tune` is an option whose value each entry chooses on held-out images
    (`normbench.report.tuning`). `deviations` is the table of the paper that prints standard
    deviations of such runs, if it is another one.
    """

    name: str
    title: str
    metric: Metric
    rows: tuple[Header, ...]
    columns: tuple[Header, ...]
    decimals: int
    axes: tuple[str, str] | None = None
    paper: str = ""
    place: str = ""
    sweep: str | None = None
    statistic: Literal["mean", "median"] = "mean"
    seeds: int | str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[tuple[Label, Label], PublishedNumber] = field(default_factory=dict)
    notes: Sequence[str] = ()
    sizes: tuple[str, str] = ("params_m", "macs_g")
    over: str = ""
    deviations: str | None = None
    tune: str = ""

    @property
    def source(self) -> str:
        return ", ".join(word for word in (self.paper, self.place) if word)

    def is_trained_by(self, sweep: str) -> bool:
        """Return whether a sweep, or the one of small networks, trains the runs of the table."""
        return self.sweep is not None and sweep in (self.sweep, f"{self.sweep}_small")

    @cached_property
    def compares_norms(self) -> bool:
        """True if the rows are normalizers, and a metric says which is better."""
        if self.paper or not self.metric.better:
            return False
        if self.axes:
            return self.axes[0] == "norm"
        return all("norm" in row.keys and len(row.label) == 1 for row in self.rows)

    @cached_property
    def scales(self) -> int:
        """2 if the table has small networks, else 1."""
        headers = (*self.rows, *self.columns)
        return max((len(level) for header in headers for level in header.conditions), default=1)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The options on the axes."""
        if self.axes:
            return frozenset(self.axes)
        return frozenset().union(*(header.keys for header in (*self.rows, *self.columns)))

    @cached_property
    def groups(self) -> frozenset[str]:
        """The parts of the configuration on the axes: norm, batch ..."""
        return frozenset(key.partition(".")[0] for key in self.keys)

    @cached_property
    def options(self) -> frozenset[str]:
        """The parts of the configuration with options, but not their choice, on an axis."""
        return frozenset() if self.axes else self.groups - self.keys

    def metric_of(self, row: Header, column: Header) -> Metric:
        """Return the metric of an entry."""
        name = column.metric or row.metric
        return METRICS[name] if name else self.metric


_REQUIRED = ("title", "metric", "rows", "columns")
_TYPES: Types = {
    "title": str, "metric": str, "label": str, "decimals": int, "paper": str, "place": str,
    "sweep": (str, type(None)), "statistic": str, "seeds": (int, str, type(None)), "where": dict,
    "setting": dict, "published": dict, "notes": list, "sizes": list,
    "over": str, "deviations": str, "tune": str,
}  # fmt: skip
_OPTIONAL = {"label", *TableSpec.__dataclass_fields__} - {"name", "axes", *_REQUIRED}


def fits(wanted: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return True if `options` meet all conditions: of a list any value, * as a wildcard."""
    return all(_is_one_of(options.get(key), value) for key, value in wanted.items())


def _is_one_of(value: Any, wanted: Any) -> bool:
    # `norm: [bn, gn]` is a choice, `norm.over: [[in, ln]]` one of a single value, a list.
    choices = wanted if isinstance(wanted, list) else [wanted]
    return value in choices or any(
        fnmatchcase(value, pattern)
        for pattern in choices
        if isinstance(value, str) and isinstance(pattern, str) and "*" in pattern
    )


def spec(name: str, raw: Mapping[str, Any]) -> TableSpec:
    """Parse the table `name` from the content of its file.

    Raises:
        DamagedFile: the file is invalid; the message names file, key and remedy.
    """
    try:
        table = _table(name, raw)
        if table.tune and "." not in table.tune:
            raise ValueError(f"tune={table.tune} is no option within a group, as recipe.lr")
        tuned = [table.tune] if table.tune else []
        for key in sorted({*table.keys, *table.where, *table.setting, *tuned}):
            if key.partition(".")[0] not in OPTIONS:
                raise ValueError(f"{key} is no option of a run; {choose_from(key, OPTIONS)}")
    except INVALID as error:
        raise DamagedFile(f"reports/tables/{name}.yaml: {reason(error)}") from error
    return table


def _table(name: str, raw: Mapping[str, Any]) -> TableSpec:
    check_keys(raw, "a table", _REQUIRED, _OPTIONAL)
    check_types(raw, _TYPES)
    if (statistic := raw.get("statistic", "mean")) not in ("mean", "median"):
        raise ValueError(f"statistic={statistic} is unknown; it is mean or median")
    if not 0 <= raw.get("decimals", 0) <= 15:
        raise ValueError(f"decimals={raw['decimals']}: it must be from 0 to 15")
    for note in raw.get("notes", ()):
        if not isinstance(note, str):  # yaml reads an unquoted "a: b" as a mapping
            raise ValueError(f"note {reprlib.repr(note)} is no text; quote a note that has a colon")
    metric = _metric(raw["metric"], raw.get("label"))
    values = {"decimals": metric.decimals} | {key: raw[key] for key in raw if key != "label"}
    values |= {"name": name, "metric": metric}
    if "sizes" in raw:
        values["sizes"] = _sizes(raw["sizes"])
    axes = raw["rows"], raw["columns"]
    if all(isinstance(axis, str) for axis in axes):
        for axis in axes:
            if axis not in AXES:
                raise ValueError(f"{axis} is no axis; {choose_from(axis, AXES)}")
        return TableSpec(**values | {"axes": axes, "rows": (), "columns": ()})
    if any(isinstance(axis, str) for axis in axes):
        raise ValueError("rows and columns are both an option, as `rows: norm`, or neither is")
    rows, columns = map(_headers, axes)
    _check_differences(rows, columns)
    _check_differences(columns, rows)
    if "over" in raw and all(column.number is None for column in columns):
        raise ValueError(f'over={raw["over"]}: no column has a number as its label, as "0.1"')
    numbers = _published(raw.get("published", {}), rows, columns)
    return TableSpec(**values | {"rows": rows, "columns": columns, "published": numbers})


def _metric(name: str, label: str | None) -> Metric:
    if name in METRICS:
        return METRICS[name]
    if label is None:
        raise ValueError(f"metric={name} needs a label, or {choose_from(name, METRICS)}")
    return Metric(label, 1, "")  # printed by a paper, and measured in none of our runs


def _sizes(metrics: list[Any]) -> tuple[str, str]:
    sizes = [name for name, metric in METRICS.items() if not metric.learned and not metric.hardware]
    if len(metrics) != 2 or not set(metrics) <= set(sizes):
        raise ValueError(f"sizes={metrics}: two of {', '.join(sizes)}")
    return metrics[0], metrics[1]


def _headers(axis: Any) -> tuple[Header, ...]:
    levels = axis if isinstance(axis, list) else [axis]
    read = [[_header(str(label), entry) for label, entry in level.items()] for level in levels]
    return tuple(_combine(each) for each in product(*read))


def _header(label: str, entry: Any) -> Header:
    """Return the header of one level."""
    if entry is None:
        return Header((label,), (), ours=False)
    if isinstance(entry, Mapping) and "minus" in entry:
        first, second = entry["minus"]
        several = first if isinstance(first, list) else [first]
        at = (str(entry["at"]),) if "at" in entry else None
        minus = Difference(tuple((str(each),) for each in several), (str(second),), at)
        return Header((label,), (), entry.get("metric"), minus, ours=False)
    scales = entry if isinstance(entry, list) else [entry]
    metric = next((options["metric"] for options in scales if "metric" in options), None)
    if metric is not None and metric not in METRICS:
        raise ValueError(f"metric={metric} is unknown; {choose_from(str(metric), METRICS)}")
    conditions = tuple(
        {key: value for key, value in options.items() if key != "metric"} for options in scales
    )
    return Header((label,), (conditions,), metric)


def _combine(levels: Sequence[Header]) -> Header:
    """Combine one header of each level; a difference on one level holds at all others."""
    label = tuple(word for level in levels for word in level.label)
    minus = None
    for index, level in enumerate(levels):
        if level.minus:
            before, after = label[:index], label[index + 1 :]
            first = tuple((*before, *each, *after) for each in level.minus.first)
            minus = replace(level.minus, first=first, second=(*before, *level.minus.second, *after))
    return Header(
        label,
        tuple(condition for level in levels for condition in level.conditions),
        next((level.metric for level in levels if level.metric), None),
        minus,
        all(level.ours for level in levels),
    )


def _check_differences(axis: Sequence[Header], other: Sequence[Header]) -> None:
    """Refuse differences of rows or columns that do not exist."""
    labels, across = ({header.label for header in headers} for headers in (axis, other))
    for minus in (header.minus for header in axis if header.minus):
        unknown = [label for label in (*minus.first, minus.second) if label not in labels]
        unknown += [minus.at] if minus.at and minus.at not in across else []
        if unknown:
            raise ValueError(f"minus {', '.join(unknown[0])} is no row or column of the table")


def _published(
    raw: Mapping[Any, Any], rows: Sequence[Header], columns: Sequence[Header]
) -> dict[tuple[Label, Label], PublishedNumber]:
    labels = {row.label for row in rows}
    numbers = {}
    for label, line in _lines(raw):
        if label not in labels:
            raise ValueError(f"published {', '.join(label)} is no row of the table")
        if len(line) != len(columns):
            raise ValueError(
                f"published {', '.join(label)}: {len(line)} numbers, "
                f"and the table has {len(columns)} columns"
            )
        for column, entry in zip(columns, line, strict=True):
            if entry is not None:
                numbers[label, column.label] = published(entry)
    return numbers


def _lines(raw: Mapping[Any, Any], above: Label = ()) -> Iterator[tuple[Label, Sequence[Any]]]:
    """Yield label and numbers of each row; a row of several levels is nested as deep."""
    for word, inner in raw.items():
        label = (*above, str(word))  # yaml reads the label 128 as a number
        if isinstance(inner, Mapping):
            yield from _lines(inner, label)
        else:
            yield label, inner


def published(entry: Any) -> PublishedNumber:
    """Parse a number of a paper: 76.1, "76.3 ± 0.1", "74.0 unverified" or OOM."""
    text = str(entry)
    if number := _NUMBER.fullmatch(text):
        value, error = (float(each) if each else None for each in number.groups()[:2])
        printed = text.removesuffix(" unverified")
        return PublishedNumber(value, error, number[3] is not None, printed)
    if re.fullmatch(r"[A-Za-z.]+", text):
        return PublishedNumber(None, text=text)
    raise ValueError(f"published {text!r} is no number, as 76.1 or '76.3 ± 0.1', and no word")
