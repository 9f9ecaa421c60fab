"""Figures of tables: over images per worker or another number, over epochs (curves), over the size
of the network.

Panels stand below each other, so that a figure is narrow enough for a telephone. In an SVG, lines,
points and the keys of a legend carry the label of their line (data-line), and points their numbers.

A normalizer has the same colour, marker and dashes in every figure, by its position in conf/norm/.
No two normalizers share both marker and dashes, so lines can be distinguished without colour. In
curves, where dashes distinguish training from validation, no two share both marker and colour.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from normbench.config.files import CONF, names
from normbench.errors import DamagedFile, leave_out
from normbench.report.effects import draw_effects
from normbench.report.figure_files import COLOURS, RC_PARAMS, Files, artist_id, save_figure
from normbench.report.figure_kinds import (
    CURVES,
    EFFECTS,
    LINES,
    MAP,
    SENSITIVITY,
    SIZES,
    FileFormat,
    by_size,
    curve_label,
    curve_splits,
    main_metric,
)
from normbench.report.heat_map import draw_map, draw_sensitivity
from normbench.report.metrics import METRICS
from normbench.report.planned_seeds import confidence
from normbench.report.statistics import welch_contrast
from normbench.report.table import Entry, Table
from normbench.report.titles import setting_title, short_source
from normbench.results import read_run_history

_T = TypeVar("_T")

_MARKERS = "osD^vP*Xp<>h"
_LINES_IN_PANEL = 6  # more cannot be told apart; longer tables get several panels
_DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))


def style(name: str, variant: int = 0) -> dict[str, Any]:
    """Return colour, marker and dashes of a normalizer; its variants share only the colour."""
    ours = names(CONF / "norm")
    # A user's normalizer outside conf/norm/ gets a position by its name.
    place = ours.index(name) if name in ours else len(ours) + zlib.crc32(name.encode()) % 20
    # 12 markers and 5 dashes have no common factor: a pair repeats after 60 positions.
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": _MARKERS[(place + variant) % len(_MARKERS)],
        "linestyle": _DASHES[(place + variant) % len(_DASHES)],
    }


def draw(table: Table, kind: str, forms: Sequence[FileFormat], runs: Path) -> Files:
    """Draw a figure of `table`; the same table gives the same bytes. `runs` has the histories."""
    with mpl.rc_context({**RC_PARAMS, "font.size": 10, "axes.titlesize": 10}):
        return save_figure(_DRAW[kind](table, runs), forms)


@dataclass(frozen=True)
class _Line:
    """Row of a table as a line of a figure."""

    label: str
    entries: Sequence[Entry]
    style: dict[str, Any]
    dodge: float  # factor on the x-axis, so that points of several lines do not hide each other

    def key(self) -> Line2D:
        """Return the entry of the legend."""
        return Line2D([], [], label=self.label, **self.style)


def _draw_lines(table: Table, _runs: Path) -> Figure:
    """Draw numbers over images per worker, or what columns differ in: ours, then the paper's."""
    kinds = (
        (_has_ours, _draw_ours, f"ours: {setting_title(table)}"),
        (_published, _draw_published, f"the paper's: {short_source(table)}"),
    )
    parts = _split_lines(table)
    contents = [
        (kind, shown)
        for lines in parts
        for kind, (has_points, *_) in enumerate(kinds)
        if (shown := [line for line in lines if has_points(table, line)])
    ]
    figure, panels = _stack(len(contents), sharex=True)
    for axes, (kind, lines) in zip(panels, contents, strict=True):
        _, draw_line, title = kinds[kind]
        for line in lines:
            draw_line(axes, table, line)
        _finish(axes, lines, title)
    for kind in range(len(kinds)):
        _share_heights(
            [axes for axes, (each, _) in zip(panels, contents, strict=True) if each == kind]
        )
    positions = map(table.position, table.columns)
    ticks = sorted({x for x in positions if x is not None})
    for axes in panels:
        if ticks[0] > 0:
            axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set_ylabel(fill(table.spec.metric.label, 28))
    panels[-1].set_xlabel(table.over)
    return figure


def _has_ours(table: Table, line: _Line) -> bool:
    pairs = zip(table.columns, line.entries, strict=True)
    return any(entry.values and table.position(column) is not None for column, entry in pairs)


def _draw_ours(axes: Axes, table: Table, line: _Line) -> None:
    points, decimals = [], table.spec.decimals
    for column, entry in zip(table.columns, line.entries, strict=True):
        x = table.position(column)
        if entry.values and x is not None:
            center, std = entry.summary
            level = confidence([entry])
            effect = welch_contrast([(1.0, [*entry.values.values()])], level)
            text = f"{line.label}, {_at(table, x)}: {center:.{decimals}f}"
            if effect.low is not None:
                ends = f"{effect.low:.{decimals}f}, {effect.high:.{decimals}f}"
                text += f", {100 * level:g} % interval of the mean [{ends}]"
            # One seed has no deviation, and its bar no length.
            points.append((x, center, std or 0.0, f"{text}, n = {len(entry.values)}"))
    _draw_points(axes, line, points)


def _draw_published(axes: Axes, table: Table, line: _Line) -> None:
    _draw_points(
        axes,
        line,
        [
            (x, value, error, f"{line.label}, {_at(table, x)}, the paper's: {text}")
            for x, value, error, text in _published(table, line)
        ],
        markerfacecolor="white",
    )


def _at(table: Table, x: float) -> str:
    """Return a place on the x-axis in words: "4 images per worker", "learning rate 0.1"."""
    return f"{x} {table.over}" if table.over_batch else f"{table.over} {x:g}"


def _published(table: Table, line: _Line) -> list[tuple[float, float, float, str]]:
    """Return place, number, deviation and text of the paper's numbers in a row."""
    return [
        (x, number.value, number.error or 0.0, str(number))
        for column, entry in zip(table.columns, line.entries, strict=True)
        if (x := table.position(column)) is not None and (number := entry.published)
        if number.value is not None
    ]


def _draw_points(
    axes: Axes, line: _Line, points: Sequence[tuple[float, float, float, str]], **marker: Any
) -> None:
    """Draw a line with bars, and each point apart, so that it has a text of its own."""
    if not points:
        return
    points = sorted(points)
    x = [place * line.dodge for place, *_ in points]
    y, errors = ([point[part] for point in points] for part in (1, 2))
    bars = axes.errorbar(x, y, errors, capsize=3, **line.style | {"marker": ""})
    for artist in bars.get_children():
        artist.set_gid(artist_id("line", line.label))
    for at, (_, value, _, text) in zip(x, points, strict=True):
        axes.plot(
            at, value, gid=artist_id("point", line.label, text),
            **line.style | {"linestyle": ""} | marker,
        )  # fmt: skip


def _draw_curves(table: Table, runs: Path) -> Figure:
    """Draw training and validation accuracy over epochs, means over seeds.

    Of other tasks, draw the main metric on the validation images; training steps do not measure it.

    Panels are of the fewest images per worker with runs, and of the most. Columns may also be
    several numbers of the same runs, which have one panel.
    """
    columns: dict[frozenset[str], tuple[int, str, int]] = {}
    for index, column in enumerate(table.columns):
        entries = [line[index] for line in table.lines.values()]
        if ids := frozenset(row.id for entry in entries if entry.values for row in entry.runs):
            columns.setdefault(ids, (column.batch or 0, str(column), index))
    heads = sorted(columns.values())
    shown = heads if len(heads) < 2 else [heads[0], heads[-1]]
    parts = _split_lines(table)
    figure, panels = _stack(len(shown) * len(parts), sharex=True, sharey=True)
    for axes, ((_, head, index), part) in zip(panels, product(shown, parts), strict=True):
        # Dashes distinguish training from validation here.
        lines = [replace(line, style={**line.style, "linestyle": "-"}) for line in part]
        for line in lines:
            _draw_curve(axes, line, line.entries[index], runs)
        images = f"{head} images per worker" if head.isdigit() else head
        _finish(axes, lines, f"{images}: {curve_splits(table)}")
        axes.set_ylabel(fill(curve_label(table), 28))
    panels[-1].set_xlabel("epoch")
    return figure


def _draw_curve(axes: Axes, line: _Line, entry: Entry, runs: Path) -> None:
    # By epoch.
    trained: dict[float, list[float]] = defaultdict(list)
    validated: dict[float, list[float]] = defaultdict(list)
    damaged = 0
    for row in entry.runs:
        try:
            records = read_run_history(runs, row)
        except DamagedFile as damage:
            leave_out(damage)
            damaged += 1
            continue
        name = main_metric(row)
        for record in records:
            for values, key in ((trained, f"train_{name}"), (validated, f"val_{name}")):
                if key in record and "epoch" in record:
                    values[round(record["epoch"], 3)].append(record[key])
    # Not a marker at every epoch.
    marker = {"marker": line.style["marker"], "markersize": 4, "markevery": 0.15}
    for accuracies, dashes, more in ((trained, ":", {}), (validated or trained, "-", marker)):
        # Only epochs that all seeds recorded: a mean over some of them would jump.
        means = {
            x: fmean(y) for x, y in accuracies.items() if len(y) >= len(entry.values) - damaged
        }
        if means:
            x, y = zip(*sorted(means.items()), strict=True)
            axes.plot(
                x, y, color=line.style["color"], linestyle=dashes, linewidth=1,
                gid=artist_id("line", line.label), **more,
            )  # fmt: skip


def _draw_sizes(table: Table, _runs: Path) -> Figure:
    """Draw numbers over two sizes of the networks, as parameters and multiply-adds."""
    sizes = [by_size(table, size) for size in table.spec.sizes]
    parts = _split([*sizes[0]])
    figure, panels = _stack(len(sizes) * len(parts), sharey=True)
    for axes, (place, norms) in zip(panels, product(range(len(sizes)), parts), strict=True):
        for norm in norms:
            x, y = zip(*sorted(sizes[place][norm]), strict=True)
            axes.plot(x, y, gid=artist_id("line", norm), **style(norm))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        lines = [_Line(norm, (), style(norm), 1.0) for norm in norms]
        _finish(axes, lines, "")
        axes.set(xlabel=METRICS[table.spec.sizes[place]].label)
        axes.set_ylabel(fill(table.spec.metric.label, 28))
    return figure


_DRAW: Mapping[str, Callable[[Table, Path], Figure]] = {
    LINES: _draw_lines,
    CURVES: _draw_curves,
    SIZES: _draw_sizes,
    MAP: lambda table, _runs: draw_map(table),
    SENSITIVITY: lambda table, _runs: draw_sensitivity(table),
    EFFECTS: lambda table, _runs: draw_effects(table),
}


def _split_lines(table: Table) -> list[list[_Line]]:
    """Return the rows with numbers as lines, split into panels."""
    variants: Counter[str] = Counter()
    lines = []
    for label, entries in table.plain_lines.items():
        norms = [row.norm for entry in entries for row in entry.runs]
        # "gn groups=8" is a variant of gn.
        name = norms[0] if norms else label[0].split(" ")[0]
        if any(entry.values or entry.published for entry in entries):
            lines.append((" ".join(label), entries, style(name, variants[name])))
        variants[name] += 1
    return [
        [
            _Line(*line, 2 ** (0.06 * (place - (len(part) - 1) / 2)))
            for place, line in enumerate(part)
        ]
        for part in _split(lines)
    ]


def _split(lines: Sequence[_T]) -> list[Sequence[_T]]:
    """Split lines into parts of about equal length, each for one panel."""
    count = max(1, -(-len(lines) // _LINES_IN_PANEL))
    ends = [len(lines) * place // count for place in range(count + 1)]
    return [lines[first:last] for first, last in pairwise(ends)]


def _stack(count: int, **options: Any) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure of panels below each other, narrow enough for a telephone."""
    figure = Figure(figsize=(4.6, 3.1 * count), layout="constrained")
    return figure, figure.subplots(count, 1, squeeze=False, **options)[:, 0]


def _finish(axes: Axes, lines: Sequence[_Line], title: str) -> None:
    """Put grid, title and legend to a panel; entries of the legend name the lines they are of."""
    axes.grid(alpha=0.3)
    axes.tick_params(labelbottom=True)
    if title:
        axes.set_title(fill(title, 52), loc="left")
    widest = max((len(line.label) for line in lines), default=0)
    legend = axes.legend(
        handles=[line.key() for line in lines], frameon=False, fontsize=9,
        loc="upper left", bbox_to_anchor=(0, -0.24), borderaxespad=0.0,
        ncols=max(1, min(3, 54 // (widest + 7))),
    )  # fmt: skip
    for line, handle, text in zip(lines, legend.legend_handles, legend.get_texts(), strict=True):
        for artist in (handle, text):
            if artist is not None:
                artist.set_gid(artist_id("key", line.label))


def _share_heights(panels: Sequence[Axes]) -> None:
    """Give panels the range of all of them."""
    ends = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
