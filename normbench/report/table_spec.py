"""Tables as specified in reports/tables/: rows, columns, metric and the paper's numbers.

A paper's table lists its rows and columns, each with the options that its runs have. A table of our
own has an option as axis, as `rows: norm`, and one row or column for each of its values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product
from typing import Any, Literal

from normbench.errors import BadInput, choose_from
from normbench.report.metrics import METRICS, Metric, published_only

Label = tuple[str, ...]  # one word for each level: ("RN50", "with")
FULL, SMALL = 0, 1  # the paper's networks; small networks in their place

OPTIONS = (
    "norm", "model", "data", "reg", "recipe", "protocol", "batch", "workers", "global_batch",
    "seed", "precision", "init_from",
)  # fmt: skip
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d*\.?\d+))?( unverified)?")


@dataclass(frozen=True)
class PublishedNumber:
    """A number printed by a paper.

    Args:
        value: None if the paper prints a word, as OOM.
        error: the number after ±.
        word: printed instead of a number.
        unverified: we could not verify the number in the text of the paper.
        text: as printed.
    """

    value: float | None
    error: float | None = None
    word: str = ""
    unverified: bool = False
    text: str = ""

    def __str__(self) -> str:
        return f"{self.text} ?" if self.unverified else self.text


@dataclass(frozen=True)
class Difference:
    """A row or column that is the difference of two others.

    Args:
        first: minuend; of several, the best.
        second: subtrahend, on the same axis.
        at: position of the second on the other axis; None: that of the first.
    """

    first: tuple[Label, ...]
    second: Label
    at: Label | None = None


@dataclass(frozen=True)
class Header:
    """A row or column of a paper's table.

    Args:
        label: its words.
        conditions: for each level, options of the paper's runs and, if different, of small ones.
        metric: of its numbers, where it is not the table's.
        minus: the difference that it shows; it has no runs of its own.
        ours: normbench can train it.
    """

    label: Label
    conditions: tuple[tuple[Mapping[str, Any], ...], ...]
    metric: str | None = None
    minus: Difference | None = None
    ours: bool = True

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(key for level in self.conditions for each in level for key in each)

    @property
    def batch(self) -> int | None:
        """Return the images per worker, if there is exactly one such condition."""
        found = {each["batch"] for level in self.conditions for each in level if "batch" in each}
        return found.pop() if len(found) == 1 else None

    def fits(self, options: Mapping[str, Any], scale: int) -> bool:
        return self.ours and all(
            fits(level[min(scale, len(level) - 1)], options) for level in self.conditions
        )


@dataclass(frozen=True)
class TableSpec:
    """A table.

    `rows` and `columns` are the name of an option, or the places of a paper's table. `seeds` is the
    number of runs behind a number of the paper, or the words that say of how many they are; None
    where the paper does not say.
    """

    name: str
    title: str
    metric: Metric
    rows: str | tuple[Header, ...]
    columns: str | tuple[Header, ...]
    decimals: int
    paper: str = ""
    place: str = ""
    sweep: str | None = None
    statistic: Literal["mean", "median"] = "mean"
    seeds: int | str | None = None
    where: Mapping[str, Any] | None = None
    setting: Mapping[str, Any] | None = None
    published: Mapping[tuple[Label, Label], PublishedNumber] | None = None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.metric.label

    @property
    def source(self) -> str:
        return ", ".join(word for word in (self.paper, self.place) if word)

    @cached_property
    def scales(self) -> int:
        """Return the number of scales: 2 if the table has small networks, else 1."""
        levels = [
            len(each) for axis in self.fixed or () for place in axis for each in place.conditions
        ]
        return max(levels, default=1)

    @cached_property
    def groups(self) -> frozenset[str]:
        """Return the parts of the configuration on the axes: norm, batch ..."""
        return frozenset(key.partition(".")[0] for key in self.keys)

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return the options on the axes."""
        found: set[str] = set()
        for axis in (self.rows, self.columns):
            if isinstance(axis, str):
                found.add(axis)
            else:
                found.update(*(place.keys for place in axis))
        return frozenset(found)

    @cached_property
    def options(self) -> frozenset[str]:
        """Return parts of the configuration with options, but not their choice, on an axis."""
        return self.groups - self.keys if self.fixed else frozenset()

    @cached_property
    def fixed(self) -> tuple[tuple[Header, ...], tuple[Header, ...]] | None:
        """Return the rows and columns of a paper's table; None for a table of our own."""
        if isinstance(self.rows, str) or isinstance(self.columns, str):
            return None
        return self.rows, self.columns

    def of(self, row: Header, column: Header) -> Metric:
        """Return the metric of an entry."""
        name = column.metric or row.metric
        return METRICS[name] if name else self.metric


def fits(wanted: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return whether `options` meet all conditions: of a list any value, * as a wildcard."""
    return all(_is(options.get(key), value) for key, value in wanted.items())


def _is(have: Any, wanted: Any) -> bool:
    # `norm: [bn, gn]` is a choice, `norm.over: [[in, ln]]` one of a single value, a list.
    choices = wanted if isinstance(wanted, list) else [wanted]
    return have in choices or any(
        fnmatchcase(have, each)
        for each in choices
        if isinstance(have, str) and isinstance(each, str) and "*" in each
    )


def spec(name: str, raw: Mapping[str, Any]) -> TableSpec:
    """Parse the table `name` from the content of its file.

    Raises:
        BadInput: the file is invalid; the message names file, key and remedy.
    """
    try:
        return _Reader(name, dict(raw)).spec()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"reports/tables/{name}.yaml: {error}") from error


class _Reader:
    """Parser of a table: takes keys one by one and refuses unknown ones."""

    def __init__(self, name: str, raw: dict[str, Any]) -> None:
        self.name = name
        self.raw = raw

    def spec(self) -> TableSpec:
        rows, columns = (self._axis(axis) for axis in ("rows", "columns"))
        metric = self._metric(self._take("metric"))
        _options_known(rows)
        _options_known(columns)
        _minus_known(rows, columns)
        _minus_known(columns, rows)
        published = self._published(_with_words(self._take("published", {})), rows, columns)
        statistic = self._take("statistic", "mean")
        if statistic not in ("mean", "median"):
            raise ValueError(f"statistic={statistic} is unknown; it is mean or median")
        found = TableSpec(
            name=self.name,
            title=self._take("title"),
            metric=metric,
            rows=rows,
            columns=columns,
            decimals=self._take("decimals", metric.decimals),
            paper=self._take("paper", ""),
            place=self._take("place", ""),
            sweep=self._take("sweep", None),
            statistic=statistic,
            seeds=self._take("seeds", None),
            where=self._take("where", {}),
            setting=self._take("setting", {}),
            published=published,
            notes=tuple(self._take("notes", [])),
        )
        for key in self.raw:
            known = [*TableSpec.__dataclass_fields__, "label"]
            raise ValueError(f"{key} is no key of a table; {choose_from(key, known)}")
        return found

    def _take(self, key: str, *default: Any) -> Any:
        if key not in self.raw and not default:
            raise ValueError(f"{key} is missing")
        return self.raw.pop(key, *default)

    def _metric(self, name: str) -> Metric:
        label = self.raw.pop("label", None)
        if name in METRICS:
            return METRICS[name]
        if label is None:
            raise ValueError(f"metric={name} needs a label, or {choose_from(name, METRICS)}")
        return published_only(label)

    def _axis(self, axis: str) -> str | tuple[Header, ...]:
        raw = self._take(axis)
        if isinstance(raw, str):
            return raw
        levels = raw if isinstance(raw, list) else [raw]
        read = [[_place(str(label), entry) for label, entry in level.items()] for level in levels]
        return tuple(_combine(each) for each in product(*read))

    def _published(
        self, raw: Any, rows: str | tuple[Header, ...], columns: str | tuple[Header, ...]
    ) -> dict[tuple[Label, Label], PublishedNumber]:
        if isinstance(rows, str) or isinstance(columns, str):
            return {}
        found = {}
        for row in rows:
            line = raw
            for word in row.label:
                line = line.get(word, {}) if isinstance(line, Mapping) else {}
            if line and len(line) != len(columns):
                raise ValueError(
                    f"published {', '.join(row.label)}: {len(line)} numbers, "
                    f"and the table has {len(columns)} columns"
                )
            for column, entry in zip(columns, line or (), strict=bool(line)):
                if entry is not None:
                    found[row.label, column.label] = published(entry)
        self._all_known(raw, {row.label for row in rows})
        return found

    def _all_known(self, raw: Any, known: set[Label], above: Label = ()) -> None:
        for word, inner in raw.items():
            label = (*above, str(word))
            if isinstance(inner, Mapping):
                self._all_known(inner, known, label)
            elif label not in known:
                raise ValueError(f"published {', '.join(label)} is no row of the table")


def published(entry: Any) -> PublishedNumber:
    """Parse a number of a paper: 76.1, "76.3 ± 0.1", "74.0 unverified" or OOM."""
    text = str(entry)
    if found := _NUMBER.fullmatch(text):
        error = float(found[2]) if found[2] else None
        shown = text.removesuffix(" unverified")
        return PublishedNumber(float(found[1]), error, "", found[3] is not None, shown)
    if re.fullmatch(r"[A-Za-z.]+", text):
        return PublishedNumber(None, None, text, False, text)
    raise ValueError(f"published {text!r} is no number, as 76.1 or '76.3 ± 0.1', and no word")


def _minus_known(axis: str | tuple[Header, ...], other: str | tuple[Header, ...]) -> None:
    """Refuse differences of rows or columns that do not exist."""
    if isinstance(axis, str) or isinstance(other, str):
        return
    own, across = ({place.label for place in each} for each in (axis, other))
    for place in axis:
        if place.minus is None:
            continue
        wanted = [(label, own) for label in (*place.minus.first, place.minus.second)]
        wanted += [(place.minus.at, across)] if place.minus.at else []
        for label, known in wanted:
            if label not in known:
                raise ValueError(f"minus {', '.join(label)} is no row or column of the table")


def _options_known(axis: str | tuple[Header, ...]) -> None:
    """Refuse conditions on options that no run has."""
    for place in axis if not isinstance(axis, str) else ():
        for key in sorted(place.keys):
            if key.partition(".")[0] not in OPTIONS:
                raise ValueError(f"{key} is no option of a run; {choose_from(key, OPTIONS)}")


def _with_words(raw: Any) -> Any:
    """Return the same with keys as text: yaml reads the label 128 as a number."""
    if isinstance(raw, Mapping):
        return {str(key): _with_words(value) for key, value in raw.items()}
    return raw


def _place(label: str, entry: Any) -> Header:
    if entry is None:
        return Header((label,), (), ours=False)
    if isinstance(entry, Mapping) and "minus" in entry:
        first, second = entry["minus"]
        several = first if isinstance(first, list) else [first]
        at = (str(entry["at"]),) if "at" in entry else None
        minus = Difference(tuple((str(each),) for each in several), (str(second),), at)
        return Header((label,), (), entry.get("metric"), minus)
    alternatives = entry if isinstance(entry, list) else [entry]
    metrics = {each.get("metric") for each in alternatives} - {None}
    conditions = tuple(
        {key: value for key, value in each.items() if key != "metric"} for each in alternatives
    )
    return Header((label,), (conditions,), metrics.pop() if metrics else None)


def _combine(levels: Sequence[Header]) -> Header:
    """Combine one header of each level; a difference on one level holds at all others."""
    label = tuple(word for level in levels for word in level.label)
    metric = next((level.metric for level in levels if level.metric), None)
    conditions = tuple(want for level in levels for want in level.conditions)
    ours = all(level.ours for level in levels)
    for index, level in enumerate(levels):
        if level.minus:
            put = _replacing(label, index)
            first = tuple(put(one) for (one,) in level.minus.first)
            minus = Difference(first, put(level.minus.second[0]), level.minus.at)
            return Header(label, conditions, metric, minus, ours)
    return Header(label, conditions, metric, None, ours)


def _replacing(label: Label, index: int) -> Callable[[str], Label]:
    return lambda word: (*label[:index], word, *label[index + 1 :])
