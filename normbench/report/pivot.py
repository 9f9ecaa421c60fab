"""Pivot rows into tables, one for each setting in which they were obtained."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from normbench.report.table import Column, Entry, Table, option_key, words
from normbench.report.table_spec import FULL, Header, Label, TableSpec, fits
from normbench.results import Row, flatten, row_order


def tables(
    specs: Sequence[TableSpec],
    rows: Sequence[Row],
    touched: Collection[str] | None,
    *,
    empty: bool = False,
) -> list[Table]:
    """Return the tables of `specs` with the results of `rows`, one for each setting.

    Args:
        specs: of the tables.
        rows: sorted as by `normbench.results.read`; rows of probes are ignored.
        touched: ids of runs; only settings with one of them are returned. None: all settings.
        empty: also return papers' tables without runs, with the paper's numbers alone.
    """
    return list(_tables(specs, _group_rows(rows), touched, empty))


def _tables(
    specs: Sequence[TableSpec],
    runs: Sequence["RunGroup"],
    touched: Collection[str] | None,
    empty: bool,
) -> Iterator[Table]:
    for spec in specs:
        own = _select(spec, runs)
        made = _paper_tables(spec, own) if spec.fixed else _free_tables(spec, own)
        if touched is not None:
            made = [each for each in made if any(row.id in touched for row in each.runs)]
        if not made and empty and spec.fixed:
            made = [_filled(spec, {}, [], FULL, {})]
        yield from made


@dataclass(frozen=True)
class RunGroup:
    """Rows that differ only in seed and results, and their configuration.

    The place of a group in a table is determined once for all its rows.

    Args:
        rows: sorted as by `normbench.results.read`.
        options: all scientific options, flattened; the seed only if the table is about seeds.
        parts: each part of the configuration (norm, model, batch ...) as text, for comparison.
    """

    rows: list[Row]
    options: Mapping[str, Any]
    parts: Mapping[str, str]

    @property
    def row(self) -> Row:
        """Return the first row, for what all have in common."""
        return self.rows[0]

    def by_seed(self) -> "Iterator[RunGroup]":
        """Yield each row as a group of its own, with its seed among the options."""
        for row in self.rows:
            options = {**self.options, "seed": row.seed}
            yield RunGroup([row], options, {**self.parts, "seed": repr(row.seed)})


def _group_rows(rows: Iterable[Row]) -> list[RunGroup]:
    """Group the rows of runs that differ only in seed and results."""
    groups: dict[tuple[str, ...], RunGroup] = {}
    for row in rows:
        if row.kind != "run":
            continue
        config = row.config.copy()
        config.pop("seed", None)
        key = (row.options, _hardware(row), repr(config))
        if key not in groups:
            parts = {part: repr(value) for part, value in config.items()}
            groups[key] = RunGroup([], flatten(config), parts)
        groups[key].rows.append(row)
    return list(groups.values())


def _select(spec: TableSpec, runs: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the groups that the table is about, split by seed if seeds are on an axis."""
    where = spec.where or {}
    seedless = {option: value for option, value in where.items() if option != "seed"}
    asked = [each for each in runs if fits(seedless, each.options)]
    if "seed" not in spec.keys | where.keys():
        return asked
    return [one for each in asked for one in each.by_seed() if fits(where, one.options)]


def _sorted_rows(runs: Iterable[RunGroup]) -> tuple[Row, ...]:
    """Return all rows of the groups, sorted."""
    groups = list(runs)
    if len(groups) == 1:
        return tuple(groups[0].rows)  # sorted already
    return tuple(sorted((row for group in groups for row in group.rows), key=row_order))


def _by_setting(
    spec: TableSpec, runs: Iterable[RunGroup]
) -> list[tuple[dict[str, Any], list[RunGroup]]]:
    """Return the settings of `runs`, each with its groups."""
    found: dict[tuple[str, ...], tuple[dict[str, Any], list[RunGroup]]] = {}
    for run in runs:
        left_out, more = _besides_axes(run.row, spec)
        kept = {part: text for part, text in run.parts.items() if part not in left_out}
        # Options that are not on the axis belong to the setting.
        for part in spec.options:
            kept[part] = str(
                [pair for pair in run.options.items() if _belongs(pair[0], part, spec)]
            )
        key = (*(f"{part} {text}" for part, text in sorted(kept.items())), *more.values())
        if key not in found:
            options = {
                name: value
                for name, value in run.options.items()
                if name.partition(".")[0] in kept and name not in spec.keys
            }
            found[key] = ({**options, **more}, [])
        found[key][1].append(run)
    return [found[key] for key in sorted(found)]


def _belongs(option: str, part: str, spec: TableSpec) -> bool:
    return option.partition(".")[0] == part and option not in spec.keys


def _free_tables(spec: TableSpec, runs: Sequence[RunGroup]) -> list[Table]:
    settings = _by_setting(spec, runs)
    known = [setting for setting, _ in settings]
    return [_table(spec, setting, own, known) for setting, own in settings]


def _table(
    spec: TableSpec, setting: dict[str, Any], runs: list[RunGroup], known: list[dict[str, Any]]
) -> Table:
    assert isinstance(spec.rows, str)
    assert isinstance(spec.columns, str)
    names = _names(runs, spec.rows)
    entries: dict[tuple[str, Any], list[RunGroup]] = defaultdict(list)
    for run in runs:
        entries[names[run.row.id], _value(run.row, spec.columns)].append(run)
    labels = sorted({label for label, _ in entries})
    columns = sorted({column for _, column in entries})
    lines: dict[Label, list[Entry]] = {
        (label,): [
            Entry(_sorted_rows(entries.get((label, column), ())), spec.metric) for column in columns
        ]
        for label in labels
    }
    heads = [
        Column((str(column),), column if spec.columns == "batch" else None) for column in columns
    ]
    return Table(
        spec, setting, _distinguishing(setting, known), heads, lines, axes=(spec.rows, spec.columns)
    )


def _distinguishing(setting: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the options that distinguish a setting from others with the same text."""
    own = words(setting)
    return _differing([other for other in known if words(other) == own])


def _paper_tables(spec: TableSpec, runs: Sequence[RunGroup]) -> list[Table]:
    placed: dict[int, dict[str, list[tuple[Label, Label]]]] = defaultdict(dict)
    for run in runs:
        for scale, places in _places(spec, run.options):
            placed[scale][run.row.id] = places
    made = []
    for scale, places_of in sorted(placed.items()):
        settings = _by_setting(spec, (run for run in runs if run.row.id in places_of))
        known = [setting for setting, _ in settings]
        for setting, own in settings:
            entries: dict[tuple[Label, Label], list[RunGroup]] = defaultdict(list)
            for run in own:
                for place in places_of[run.row.id]:
                    entries[place].append(run)
            made.append(_filled(spec, setting, _distinguishing(setting, known), scale, entries))
    return made


def _places(
    spec: TableSpec, options: Mapping[str, Any]
) -> Iterable[tuple[int, list[tuple[Label, Label]]]]:
    """Yield the scale (full, else small) and the entries that a run belongs to."""
    assert spec.fixed is not None
    rows, columns = spec.fixed
    for scale in range(spec.scales):
        down = [place.label for place in rows if not place.minus and place.fits(options, scale)]
        along = [place.label for place in columns if not place.minus and place.fits(options, scale)]
        if down and along:
            yield scale, [(row, column) for row in down for column in along]
            return


def _filled(
    spec: TableSpec,
    setting: Mapping[str, Any],
    differs: Sequence[str],
    scale: int,
    runs: Mapping[tuple[Label, Label], Sequence[RunGroup]],
) -> Table:
    assert spec.fixed is not None
    rows, columns = spec.fixed
    entries = {
        (row.label, column.label): _cell(spec, row, column, runs.get((row.label, column.label), ()))
        for row in rows
        for column in columns
    }
    for row in rows:
        for column in columns:
            if column.minus or row.minus:
                entries[row.label, column.label] = _difference(entries, spec, row, column)
    lines = {row.label: [entries[row.label, column.label] for column in columns] for row in rows}
    heads = [Column(column.label, column.batch) for column in columns]
    return Table(spec, setting, differs, heads, lines, scale)


def _cell(spec: TableSpec, row: Header, column: Header, runs: Sequence[RunGroup]) -> Entry:
    theirs = (spec.published or {}).get((row.label, column.label))
    variants: dict[tuple[str, ...], list[RunGroup]] = defaultdict(list)
    for run in runs:
        variants[_variant(run)].append(run)
    every = [_sorted_rows(own) for own in variants.values()]
    latest = max(every, key=lambda own: max(run.finished for run in own), default=())
    older = sum(map(len, every)) - len(latest)
    return Entry(latest, spec.of(row, column), spec.statistic, theirs, older=older)


def _variant(run: RunGroup) -> tuple[str, ...]:
    """Return what all seeds of an entry share; of `init_from=RUN@EPOCH` only the epoch."""
    parts = {part: text for part, text in run.parts.items() if part != "seed"}
    if "init_from" in parts:
        parts["init_from"] = parts["init_from"].partition("@")[2]
    return tuple(f"{part} {text}" for part, text in sorted(parts.items()))


def _difference(
    entries: Mapping[tuple[Label, Label], Entry], spec: TableSpec, row: Header, column: Header
) -> Entry:
    minus = column.minus or row.minus
    assert minus is not None

    def at(label: Label, other: Label | None = None) -> Entry:
        if column.minus:
            return entries[other or row.label, label]
        return entries[label, other or column.label]

    theirs = (spec.published or {}).get((row.label, column.label))
    metric = spec.of(row, column)
    tried, second = [at(label) for label in minus.first], at(minus.second, minus.at)
    candidates = [entry for entry in tried if entry.values]
    if not candidates or not second.values:
        return Entry((), metric, spec.statistic, theirs, sources=(*tried, second))
    sign = -1 if metric.better == "lower" else 1
    first = max(candidates, key=lambda entry: sign * fmean(entry.values.values()))
    seeds = first.values.keys() & second.values.keys()
    return Entry(
        (), metric, spec.statistic, theirs,
        given={seed: first.values[seed] - second.values[seed] for seed in sorted(seeds)},
        sources=(first, second), among=len(candidates),
    )  # fmt: skip


def _besides_axes(row: Row, spec: TableSpec) -> tuple[Collection[str], dict[str, str]]:
    """Return the parts of the configuration outside the setting, and what it has beside them."""
    # workers or global_batch follows from `batch` and must not split the table.
    follows = {"fixed_workers": "global_batch", "fixed_global_batch": "workers"}
    left_out = spec.groups | {"seed", follows.get(row.protocol, "")}
    if "global_batch" in spec.groups:
        left_out |= {"batch", "workers"}
    more = {"devices": _hardware(row)} if spec.metric.hardware else {}
    if spec.fixed:
        # Options of a group on an axis that the table does not name belong to the setting.
        return left_out, {**more, "options": _options(row, lambda key: key not in spec.keys)}
    typed = _options(row, lambda key: key.partition(".")[0] not in spec.groups)
    return left_out, {**more, "options": typed}


def _hardware(row: Row) -> str:
    """Return the hardware that a speed or memory belongs to."""
    return (
        row.devices
        if row.stacked_seeds == 1
        else f"{row.devices}, {row.stacked_seeds} seeds together"
    )


def _names(runs: Sequence[RunGroup], axis: str) -> dict[str, str]:
    """Return the label of each run on `axis`, by run id: its name and typed options.

    If a yaml was changed between runs, options that differ are part of the label.
    """
    alike: dict[str, dict[str, list[RunGroup]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        alike[_name(run.row, axis)][run.parts.get(axis, "")].append(run)
    names = {}
    for name, variants in alike.items():
        # "gn" with eps 1e-5 and, after a change of its yaml, with 1e-3: both labels show eps.
        options = {text: _axis_options(own[0], axis) for text, own in variants.items()}
        keys = _differing(list(options.values()))
        for text, values in options.items():
            called = " ".join([name, *(f"{key}={values.get(key)}" for key in keys)])
            names.update({run.row.id: called for run in variants[text]})
    return names


def _axis_options(run: RunGroup, axis: str) -> dict[str, Any]:
    within = f"{axis}."
    options = run.options.items()
    return {key.removeprefix(within): value for key, value in options if key.startswith(within)}


def _name(row: Row, axis: str) -> str:
    own = _options(row, lambda key: key.partition(".")[0] == axis).replace(f"{axis}.", "")
    return " ".join([str(getattr(row, axis)), *own.split()])


def _value(row: Row, axis: str) -> Any:
    """Return the same, but numbers as numbers, so that columns sort by value."""
    value = getattr(row, axis)
    return value if isinstance(value, int) else _name(row, axis)


def _options(row: Row, wanted: Callable[[str], bool]) -> str:
    if not row.options:
        return ""
    return " ".join(word for word in row.options.split() if wanted(option_key(word)))


def _differing(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between `options`."""
    keys = sorted({key for each in options for key in each})
    return [key for key in keys if len({str(each.get(key)) for each in options}) > 1]
