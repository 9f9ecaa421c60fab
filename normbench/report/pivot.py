"""Tables out of rows: one for each setting in which the rows were obtained."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from normbench.report.table import Cell, Column, Table, key_of, words
from normbench.report.table_spec import FULL, Label, Place, Spec, fits
from normbench.results import Row, flatten, row_order


def tables(
    specs: Sequence[Spec],
    rows: Sequence[Row],
    touched: Collection[str] | None,
    *,
    empty: bool = False,
) -> list[Table]:
    """The tables of `specs` from `rows`, one for each setting.

    Args:
        specs: what tables there are.
        rows: all rows, as `normbench.results.read` orders them; of those that are no runs none is
            used.
        touched: ids of runs; settings that contain none of them are left out. None: all settings.
        empty: papers' tables that no row belongs to are made too, with the paper's numbers alone.
    """
    return list(_tables(specs, _alike(rows), touched, empty))


def _tables(
    specs: Sequence[Spec], runs: Sequence["Runs"], touched: Collection[str] | None, empty: bool
) -> Iterator[Table]:
    for spec in specs:
        own = _asked(spec, runs)
        made = _paper_tables(spec, own) if spec.fixed else _free_tables(spec, own)
        if touched is not None:
            made = [each for each in made if any(row.id in touched for row in each.runs)]
        if not made and empty and spec.fixed:
            made = [_filled(spec, {}, [], FULL, {})]
        yield from made


@dataclass(frozen=True)
class Runs:
    """Rows that differ in seeds and results alone, with their configuration as tables ask for it.

    What stands where is decided once for all of them.

    Args:
        rows: of the runs, as `normbench.results.read` orders them.
        options: all scientific options, flat; the seed only where tables are about seeds.
        parts: each part of the configuration (norm, model, batch ...) as text: equal parts have
            equal texts.
    """

    rows: list[Row]
    options: Mapping[str, Any]
    parts: Mapping[str, str]

    @property
    def row(self) -> Row:
        """The first of them, for what they have in common."""
        return self.rows[0]

    def by_seed(self) -> "Iterator[Runs]":
        """Each by itself, with its seed among the options."""
        for row in self.rows:
            options = {**self.options, "seed": row.seed}
            yield Runs([row], options, {**self.parts, "seed": repr(row.seed)})


def _alike(rows: Iterable[Row]) -> list[Runs]:
    """The runs among `rows`, those together that differ in their seeds alone."""
    # By identity first: rows that were read from an index share the parts of their configurations.
    same: dict[tuple[Any, ...], list[Row]] = {}
    found: dict[tuple[str, ...], Runs] = {}
    for row in rows:
        if row.kind != "run":
            continue
        config = row.config.copy()
        config.pop("seed", None)
        ids = (row.options, row.devices, row.stacked_seeds, *map(id, config.values()))
        if ids not in same:
            texts = {part: repr(value) for part, value in config.items()}
            key = (row.options, _hardware(row), *map(str, texts.items()))
            if key not in found:
                found[key] = Runs([], flatten(config), texts)
            same[ids] = found[key].rows
        same[ids].append(row)
    return list(found.values())


def _asked(spec: Spec, runs: Sequence[Runs]) -> list[Runs]:
    """Those that the table is about; seed by seed, if it tells seeds apart."""
    where = spec.where or {}
    seedless = {option: value for option, value in where.items() if option != "seed"}
    asked = [each for each in runs if fits(seedless, each.options)]
    if "seed" not in spec.keys | where.keys():
        return asked
    return [one for each in asked for one in each.by_seed() if fits(where, one.options)]


def _in_order(runs: Iterable[Runs]) -> tuple[Row, ...]:
    """Their rows as `normbench.results.read` orders them."""
    several = list(runs)
    if len(several) == 1:
        return tuple(several[0].rows)  # in order, and keys of many rows take time
    return tuple(sorted((row for each in several for row in each.rows), key=row_order))


def _by_setting(spec: Spec, runs: Iterable[Runs]) -> list[tuple[dict[str, Any], list[Runs]]]:
    """The settings of `runs`, each with its own."""
    found: dict[tuple[str, ...], tuple[dict[str, Any], list[Runs]]] = {}
    for run in runs:
        left_out, more = _besides_axes(run.row, spec)
        kept = {part: text for part, text in run.parts.items() if part not in left_out}
        # Of a part that only some options of are on an axis the others belong to the setting.
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


def _belongs(option: str, part: str, spec: Spec) -> bool:
    return option.partition(".")[0] == part and option not in spec.keys


def _free_tables(spec: Spec, runs: Sequence[Runs]) -> list[Table]:
    settings = _by_setting(spec, runs)
    known = [setting for setting, _ in settings]
    return [_table(spec, setting, own, known) for setting, own in settings]


def _table(
    spec: Spec, setting: dict[str, Any], runs: list[Runs], known: list[dict[str, Any]]
) -> Table:
    assert isinstance(spec.rows, str)
    assert isinstance(spec.columns, str)
    names = _names(runs, spec.rows)
    cells: dict[tuple[str, Any], list[Runs]] = defaultdict(list)
    for run in runs:
        cells[names[run.row.id], _value(run.row, spec.columns)].append(run)
    labels = sorted({label for label, _ in cells})
    columns = sorted({column for _, column in cells})
    lines: dict[Label, list[Cell]] = {
        (label,): [
            Cell(_in_order(cells.get((label, column), ())), spec.metric) for column in columns
        ]
        for label in labels
    }
    heads = [
        Column((str(column),), column if spec.columns == "batch" else None) for column in columns
    ]
    return Table(
        spec, setting, _apart(setting, known), heads, lines, axes=(spec.rows, spec.columns)
    )


def _apart(setting: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> list[str]:
    """Options that tell a setting from those which have the same words."""
    own = words(setting)
    return _differing([other for other in known if words(other) == own])


def _paper_tables(spec: Spec, runs: Sequence[Runs]) -> list[Table]:
    placed: dict[int, dict[str, list[tuple[Label, Label]]]] = defaultdict(dict)
    for run in runs:
        for scale, places in _places(spec, run.options):
            placed[scale][run.row.id] = places
    made = []
    for scale, places_of in sorted(placed.items()):
        settings = _by_setting(spec, (run for run in runs if run.row.id in places_of))
        known = [setting for setting, _ in settings]
        for setting, own in settings:
            cells: dict[tuple[Label, Label], list[Runs]] = defaultdict(list)
            for run in own:
                for place in places_of[run.row.id]:
                    cells[place].append(run)
            made.append(_filled(spec, setting, _apart(setting, known), scale, cells))
    return made


def _places(
    spec: Spec, options: Mapping[str, Any]
) -> Iterable[tuple[int, list[tuple[Label, Label]]]]:
    """Where a run stands, at the scale of the paper or else in small."""
    assert spec.fixed is not None
    rows, columns = spec.fixed
    for scale in range(spec.scales):
        down = [place.label for place in rows if not place.minus and place.fits(options, scale)]
        along = [place.label for place in columns if not place.minus and place.fits(options, scale)]
        if down and along:
            yield scale, [(row, column) for row in down for column in along]
            return


def _filled(
    spec: Spec,
    setting: Mapping[str, Any],
    differs: Sequence[str],
    scale: int,
    runs: Mapping[tuple[Label, Label], Sequence[Runs]],
) -> Table:
    assert spec.fixed is not None
    rows, columns = spec.fixed
    cells = {
        (row.label, column.label): _cell(spec, row, column, runs.get((row.label, column.label), ()))
        for row in rows
        for column in columns
    }
    for row in rows:
        for column in columns:
            if column.minus or row.minus:
                cells[row.label, column.label] = _difference(cells, spec, row, column)
    lines = {row.label: [cells[row.label, column.label] for column in columns] for row in rows}
    heads = [Column(column.label, column.batch) for column in columns]
    return Table(spec, setting, differs, heads, lines, scale)


def _cell(spec: Spec, row: Place, column: Place, runs: Sequence[Runs]) -> Cell:
    theirs = (spec.published or {}).get((row.label, column.label))
    variants: dict[tuple[str, ...], list[Runs]] = defaultdict(list)
    for run in runs:
        variants[_variant(run)].append(run)
    every = [_in_order(own) for own in variants.values()]
    latest = max(every, key=lambda own: max(run.finished for run in own), default=())
    older = sum(map(len, every)) - len(latest)
    return Cell(latest, spec.of(row, column), spec.statistic, theirs, older=older)


def _variant(run: Runs) -> tuple[str, ...]:
    """What all seeds of a cell share; of a run that began with another's weights the epoch."""
    parts = {part: text for part, text in run.parts.items() if part != "seed"}
    if "init_from" in parts:
        parts["init_from"] = parts["init_from"].partition("@")[2]
    return tuple(f"{part} {text}" for part, text in sorted(parts.items()))


def _difference(
    cells: Mapping[tuple[Label, Label], Cell], spec: Spec, row: Place, column: Place
) -> Cell:
    minus = column.minus or row.minus
    assert minus is not None

    def at(label: Label, other: Label | None = None) -> Cell:
        if column.minus:
            return cells[other or row.label, label]
        return cells[label, other or column.label]

    theirs = (spec.published or {}).get((row.label, column.label))
    metric = spec.of(row, column)
    tried, second = [at(label) for label in minus.first], at(minus.second, minus.at)
    candidates = [cell for cell in tried if cell.values]
    if not candidates or not second.values:
        return Cell((), metric, spec.statistic, theirs, sources=(*tried, second))
    sign = -1 if metric.better == "lower" else 1
    first = max(candidates, key=lambda cell: sign * fmean(cell.values.values()))
    seeds = first.values.keys() & second.values.keys()
    return Cell(
        (), metric, spec.statistic, theirs,
        given={seed: first.values[seed] - second.values[seed] for seed in sorted(seeds)},
        sources=(first, second), among=len(candidates),
    )  # fmt: skip


def _besides_axes(row: Row, spec: Spec) -> tuple[Collection[str], dict[str, str]]:
    """Parts of the configuration that are no part of the setting, and what else is one."""
    # What follows from `batch` differs from column to column and must not split the table.
    follows = {"fixed_workers": "global_batch", "fixed_global_batch": "workers"}
    left_out = spec.groups | {"seed", follows.get(row.protocol, "")}
    if "global_batch" in spec.groups:
        left_out |= {"batch", "workers"}
    more = {"devices": _hardware(row)} if spec.metric.hardware else {}
    if spec.fixed:
        # Of a group on an axis, options that the table does not name were typed for all its runs.
        return left_out, {**more, "options": _options(row, lambda key: key not in spec.keys)}
    typed = _options(row, lambda key: key.partition(".")[0] not in spec.groups)
    return left_out, {**more, "options": typed}


def _hardware(row: Row) -> str:
    """What a speed or a memory was measured on, and how many networks shared it."""
    return (
        row.devices
        if row.stacked_seeds == 1
        else f"{row.devices}, {row.stacked_seeds} seeds together"
    )


def _names(runs: Sequence[Runs], axis: str) -> dict[str, str]:
    """What to call each row on `axis`, by run id: the name, and the options that belong to it.

    Where a yaml has changed since, runs of one name have other options; then those are named too.
    """
    alike: dict[str, dict[str, list[Runs]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        alike[_name(run.row, axis)][run.parts.get(axis, "")].append(run)
    names = {}
    for name, variants in alike.items():
        # Two runs called "gn", of eps 1e-5 and, since the yaml was changed, of 1e-3: both are named
        # with their eps.
        options = {text: _own(own[0], axis) for text, own in variants.items()}
        keys = _differing(list(options.values()))
        for text, values in options.items():
            called = " ".join([name, *(f"{key}={values.get(key)}" for key in keys)])
            names.update({run.row.id: called for run in variants[text]})
    return names


def _own(run: Runs, axis: str) -> dict[str, Any]:
    within = f"{axis}."
    options = run.options.items()
    return {key.removeprefix(within): value for key, value in options if key.startswith(within)}


def _name(row: Row, axis: str) -> str:
    own = _options(row, lambda key: key.partition(".")[0] == axis).replace(f"{axis}.", "")
    return " ".join([str(getattr(row, axis)), *own.split()])


def _value(row: Row, axis: str) -> Any:
    """The same, but a number stays one, so that columns sort as numbers."""
    value = getattr(row, axis)
    return value if isinstance(value, int) else _name(row, axis)


def _options(row: Row, wanted: Callable[[str], bool]) -> str:
    if not row.options:
        return ""
    return " ".join(word for word in row.options.split() if wanted(key_of(word)))


def _differing(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which not all `options` agree."""
    keys = sorted({key for each in options for key in each})
    return [key for key in keys if len({str(each.get(key)) for each in options}) > 1]
