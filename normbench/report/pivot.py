"""Pivot rows into tables, one for each setting in which they were obtained."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from normbench.records.json_fields import flatten
from normbench.report.metrics import METRICS, metric_of_task
from normbench.report.table import Entry, Table, option_key, words
from normbench.report.table_spec import FULL, Header, Label, Position, TableSpec, fits
from normbench.report.tuning import Runs, choose_value, is_tuned, option_of
from normbench.results import Row, row_order


@dataclass(frozen=True)
class RunGroup:
    """Rows that differ only in seed and results; their place in a table is determined once."""

    rows: Sequence[Row]  # sorted as by `normbench.results.read`
    options: Mapping[str, Any]  # scientific ones; the seed only if the table is about seeds

    @property
    def row(self) -> Row:
        """The first row, for what all have in common."""
        return self.rows[0]


def tables(
    specs: Sequence[TableSpec],
    rows: Sequence[Row],
    touched: Collection[str] | None = None,
    *,
    empty: bool = False,
    root: Path | None = None,
) -> list[Table]:
    """Return the tables of `specs` with the results of `rows`, one for each setting.

    Runs of a table of our own with listed rows and columns are in no table of axes.

    `rows` are sorted as by `normbench.results.read`; those of probes are ignored. With `touched`,
    ids of runs, only settings with one of them are returned; with `empty`, papers' tables without
    runs too. `root` is that of the runs, or a study, if tables need more of them than their rows.
    """
    groups = _group_rows(rows)
    pivoted = {
        spec.name: [*_with_choice(spec, _listed_tables(spec, _select(spec, groups)))]
        for spec in specs
        if not spec.axes
    }
    elsewhere = {
        row.id
        for spec in specs
        if not spec.axes and not spec.paper
        for table in pivoted[spec.name]
        if not table.sparse
        for entry in table.entries
        for row in (*entry.runs, *entry.tried)
    }
    for spec in specs:
        if spec.axes:
            chosen = [group for group in _select(spec, groups) if group.row.id not in elsewhere]
            pivoted[spec.name] = [*_with_choice(spec, _tables_of_axes(spec, chosen))]
    shown: list[Table] = []
    for spec in specs:
        of_spec = pivoted[spec.name]
        if touched is not None:
            of_spec = [table for table in of_spec if _has_run(table, touched)]
        if not of_spec and empty and spec.paper:
            of_spec = [_fill(spec, {}, [], FULL, {})]
        shown += of_spec
    return [replace(table, root=root) for table in shown]


def _with_choice(spec: TableSpec, made: Iterable[Table]) -> Iterator[Table]:
    """Yield the tables; of tuned ones those with an entry that has runs with several values."""
    yield from (table for table in made if not spec.tune or is_tuned(table))


def _has_run(table: Table, ids: Collection[str]) -> bool:
    rows = (row for entry in table.entries for row in (*entry.runs, *entry.tried))
    return any(row.id in ids for row in rows)


def _group_rows(rows: Iterable[Row]) -> list[RunGroup]:
    """Group the rows of runs that differ only in seed and results."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.kind == "run":
            # The text of the configuration is its key: it has lists and mappings.
            key = " ".join(_typed_options(row)), _hardware(row), repr(scientific_options(row))
            groups[key].append(row)
    return [
        RunGroup(members, flatten(scientific_options(members[0]))) for members in groups.values()
    ]


def scientific_options(row: Row) -> dict[str, Any]:
    """Return the configuration of a row without its seed.

    Of a run that begins with a described one, whose id is that of its seed, it has the description
    as `start`, and the epoch alone as `init_from`.
    """
    config = {part: options for part, options in row.config.items() if part != "seed"}
    if row.start:
        config |= {"init_from": _epoch(config["init_from"]), "start": row.start}
    return config


def _typed_options(row: Row) -> list[str]:
    """Return the options of a row that were typed, as words; a described start as `start.KEY`."""
    words = row.options.split()
    if not row.start:
        return words
    words = [word for word in words if option_key(word) != "init_from"]
    return words + [f"start.{key}={value}" for key, value in row.start.items()]


def _epoch(init_from: Any) -> str:
    """Return the epoch in RUN@EPOCH as @EPOCH."""
    return "@" + str(init_from).partition("@")[2]


def _select(spec: TableSpec, groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the groups that the table is about, split by seed if seeds are on an axis."""
    # Those of all tasks may be on axes: each has its own tables.
    if not spec.axes and "task" not in spec.keys | spec.where.keys():
        groups = [group for group in groups if group.row.task == "classify"]
    # A group has no seed yet, so all other conditions come first: they leave fewer rows to split.
    seedless = {option: value for option, value in spec.where.items() if option != "seed"}
    chosen = [group for group in groups if fits(seedless, group.options)]
    if "seed" not in spec.keys | spec.where.keys():
        return chosen
    single = [
        RunGroup([row], {**group.options, "seed": row.seed})
        for group in chosen
        for row in group.rows
    ]
    return [group for group in single if fits(spec.where, group.options)]


def _by_setting(
    spec: TableSpec, groups: Iterable[RunGroup]
) -> list[tuple[dict[str, Any], list[str], list[RunGroup]]]:
    """Return the settings of `groups`, the options that distinguish each, and its groups.

    Of otherwise equal settings, the one without regularization is first.
    """
    members: dict[str, tuple[dict[str, Any], list[RunGroup]]] = {}
    for group in groups:
        setting = _setting(spec, group)
        # As text: values may be lists, which are no keys.
        described = {
            key: "" if (key, value) == ("reg", "none") else value
            for key, value in sorted(setting.items())
        }
        members.setdefault(str(described), (setting, []))[1].append(group)
    settings = [members[key] for key in sorted(members)]
    settings_by_words: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for setting, _ in settings:
        settings_by_words[str(words(setting))].append(setting)
    return [
        (setting, _differing(settings_by_words[str(words(setting))]), of_setting)
        for setting, of_setting in settings
    ]


def _setting(spec: TableSpec, group: RunGroup) -> dict[str, Any]:
    """Return the options of a group that are not on an axis, and the words that typed them."""
    row = group.row
    # workers or global_batch follows from `batch` and must not split the table.
    follows = {"fixed_workers": "global_batch", "fixed_global_batch": "workers"}
    on_axes = spec.groups | {"seed", follows.get(row.protocol, "")}
    if "global_batch" in spec.groups:
        on_axes |= {"batch", "workers"}
    # In a paper's table, options that no axis names belong to the setting: eps of `norm: gn`.
    on_axes -= spec.options
    started = "init_from" in spec.keys  # what differs from the run of init_from is on the axis, too
    if started:
        on_axes |= {"start"}
    setting = {
        key: value
        for key, value in group.options.items()
        if key not in (*spec.keys, spec.tune)
        and (key.partition(".")[0] not in on_axes or key in spec.setting)
    }
    if spec.metric.hardware:
        setting["devices"] = _hardware(row)
    if spec.axes:  # the labels of rows and columns have the words typed for them
        typed = _typed(
            row, lambda key: key.partition(".")[0] not in spec.groups and key != spec.tune
        )
    else:
        typed = _typed(
            row,
            lambda key: (
                key not in (*spec.keys, spec.tune) and not (started and key.startswith("start."))
            ),
        )
    return {**setting, "options": typed}


def _hardware(row: Row) -> str:
    """Return the hardware that a speed or memory belongs to."""
    together = "" if row.stacked_seeds == 1 else f", {row.stacked_seeds} seeds together"
    count, on_cpu, _ = row.devices.partition(" x cpu")
    return (f"{count} x {row.cpu}" if on_cpu and row.cpu else row.devices) + together


def _tables_of_axes(spec: TableSpec, groups: Sequence[RunGroup]) -> Iterator[Table]:
    """Yield the tables whose rows and columns are the values of two options."""
    assert spec.axes is not None
    row_axis, column_axis = spec.axes
    for setting, differs, members in _by_setting(spec, groups):
        labels = _row_labels(members, row_axis)
        columns = {group.row.id: _column(group.row, column_axis) for group in members}
        runs: dict[Position, list[RunGroup]] = defaultdict(list)
        for group in members:
            runs[(labels[group.row.id],), (str(columns[group.row.id]),)].append(group)
        spec_of_task = _of_task(spec, members[0].row)
        heads = [
            Header((str(column),), (({column_axis: column},),))
            for column in sorted({*columns.values()})
        ]
        rows = [Header((label,), ()) for label in sorted({*labels.values()})]
        filled = replace(spec_of_task, rows=tuple(rows), columns=tuple(heads))
        yield _fill(filled, setting, differs, FULL, runs)


def _of_task(spec: TableSpec, row: Row) -> TableSpec:
    """Return a table of accuracies as one of the main metric of the task of `row`."""
    if spec.metric.value != METRICS["test_top1"].value or row.metric == "test_top1":
        return spec
    metric = metric_of_task(row)
    name = re.sub(r" \(.*\)", "", metric.label)
    title = f"{name[:1].upper()}{name[1:]} over images per worker"
    return replace(spec, title=title, metric=metric, decimals=metric.decimals)


def _row_labels(groups: Sequence[RunGroup], axis: str) -> dict[str, str]:
    """Return the label of each group on `axis`, by the id of its first run: name and typed options.

    If a yaml was changed between runs, options that differ are part of the label: "gn" with eps
    1e-5 and, after the change, with 1e-3.
    """
    groups_by_name: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for group in groups:
        options = {
            key.removeprefix(f"{axis}."): value
            for key, value in group.options.items()
            if key.startswith(f"{axis}.")
        }
        groups_by_name[_name(group.row, axis)].append((group.row.id, options))
    labels = {}
    for name, variants in groups_by_name.items():
        keys = _differing([options for _, options in variants])
        for id_, options in variants:
            labels[id_] = " ".join([name, *(f"{key}={options.get(key)}" for key in keys)])
    return labels


def _column(row: Row, axis: str) -> Any:
    """Return the column of a row, numbers as numbers, so that they sort by value."""
    value = getattr(row, axis)
    return value if isinstance(value, int) else _name(row, axis)


def _name(row: Row, axis: str) -> str:
    """Return the value of an option, with the options typed for it: "gn groups=8"."""
    typed = _typed(row, lambda key: key.partition(".")[0] == axis).replace(f"{axis}.", "")
    return " ".join([str(getattr(row, axis)), *typed.split()])


def _typed(row: Row, wanted: Callable[[str], bool]) -> str:
    return " ".join(word for word in _typed_options(row) if wanted(option_key(word)))


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between `settings`."""
    keys = sorted({key for setting in settings for key in setting})
    return [key for key in keys if len({str(setting.get(key)) for setting in settings}) > 1]


def _listed_tables(spec: TableSpec, groups: Sequence[RunGroup]) -> Iterator[Table]:
    """Yield the tables whose rows and columns are listed, those of small networks last."""
    for scale in range(spec.scales):
        placed = {
            group.row.id: places
            for group in groups
            if (places := _places(spec, group.options, scale))
        }
        here = [group for group in groups if group.row.id in placed]
        for setting, differs, members in _by_setting(spec, here):
            runs: dict[Position, list[RunGroup]] = defaultdict(list)
            for group in members:
                for place in placed[group.row.id]:
                    runs[place].append(group)
            yield _fill(spec, setting, differs, scale, runs)
        # A run of the paper's networks is not looked for among the small ones.
        groups = [group for group in groups if group.row.id not in placed]


def _places(spec: TableSpec, options: Mapping[str, Any], scale: int) -> list[Position]:
    """Return the entries that a run belongs to."""
    rows, columns = (
        [header.label for header in axis if header.fits(options, scale)]
        for axis in (spec.rows, spec.columns)
    )
    return list(product(rows, columns))


def _fill(
    spec: TableSpec,
    setting: Mapping[str, Any],
    differs: Sequence[str],
    scale: int,
    runs: Mapping[Position, Sequence[RunGroup]],
) -> Table:
    """Return a table with these runs; entries that are differences come from other entries."""
    entries: dict[Position, Entry] = {}
    for row, column in product(spec.rows, spec.columns):
        place = row.label, column.label
        entries[place] = _entry(spec, row, column, runs.get(place, ()))
    # After all others, from which they are computed.
    for row, column in product(spec.rows, spec.columns):
        if column.minus or row.minus:
            entries[row.label, column.label] = _difference(entries, row, column)
    lines = {
        row.label: [entries[row.label, column.label] for column in spec.columns]
        for row in spec.rows
    }
    return Table(spec, setting, differs, lines, scale)


def _entry(spec: TableSpec, row: Header, column: Header, groups: Sequence[RunGroup]) -> Entry:
    """Return an entry: of the tuned value, or of the latest variant if a yaml was changed."""
    variants: dict[str, list[RunGroup]] = defaultdict(list)
    for group in groups:
        variants[_variant(group)].append(group)
    candidates = [
        tuple(sorted((row for group in variant for row in group.rows), key=row_order))
        for variant in variants.values()
    ]
    published = spec.published.get((row.label, column.label))
    if spec.tune:
        by_value: dict[str, list[Runs]] = defaultdict(list)
        for rows in candidates:
            by_value[str(option_of(rows[0], spec.tune))].append(rows)
        values = [_latest(variants) for variants in by_value.values()]
        tried = tuple(row for rows in values for row in rows)
        metric, older = spec.metric_of(row, column), sum(map(len, candidates)) - len(tried)
        chosen = choose_value(values)
        return Entry(chosen, metric, spec.statistic, published, older, tried=tried)
    latest = _latest(candidates)
    older = sum(map(len, candidates)) - len(latest)
    return Entry(latest, spec.metric_of(row, column), spec.statistic, published, older)


def _latest(variants: Sequence[Runs]) -> Runs:
    return max(variants, key=lambda rows: max(row.finished for row in rows), default=())


def _variant(group: RunGroup) -> str:
    """Return what all seeds of an entry share; of `init_from=RUN@EPOCH` only the epoch.

    What differs from that run is on an axis or part of the setting, and older rows lack it.
    """
    options = {
        key: value
        for key, value in group.options.items()
        if key != "seed" and key.partition(".")[0] != "start"
    }
    if "init_from" in options:
        options["init_from"] = _epoch(options["init_from"])
    return str(sorted(options.items()))


def _difference(entries: Mapping[Position, Entry], row: Header, column: Header) -> Entry:
    """Return the entry of a row or column that is the difference of two others."""
    minus = column.minus or row.minus
    assert minus is not None

    def at(label: Label, other: Label | None = None) -> Entry:
        if column.minus:
            return entries[other or row.label, label]
        return entries[label, other or column.label]

    entry = entries[row.label, column.label]
    tried, second = [at(label) for label in minus.first], at(minus.second, minus.at)
    if not any(each.values for each in tried) or not second.values:
        return replace(entry, sources=(*tried, second))
    sign = -1 if entry.metric.better == "lower" else 1

    def goodness(each: Entry) -> float:
        return sign * fmean(each.values.values()) if each.values else -math.inf

    first, *others = sorted(tried, key=goodness, reverse=True)
    possible = (each for each in others if not _is_impossible(each))
    rivals = tuple(_subtract(entry, each, second) for each in possible)
    return replace(_subtract(entry, first, second), rivals=rivals)


def _is_impossible(entry: Entry) -> bool:
    return bool(entry.runs) and all(row.status == "impossible" for row in entry.runs)


def _subtract(entry: Entry, first: Entry, second: Entry) -> Entry:
    """Return `entry` as the differences of two others by seed."""
    seeds = sorted(first.values.keys() & second.values.keys())
    differences = {seed: first.values[seed] - second.values[seed] for seed in seeds}
    return replace(entry, differences=differences, sources=(first, second))
