"""The map: a row for each normalizer, a column for each number of images per worker.

Each field shows how far the mean lies below the highest one of its column. The fields of the
highest mean and of all that cannot be told apart from it are framed, so the answer can be read
without colours; those that were trained with one seed, which tells nothing, have a dotted frame.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from normbench.report.recommendation import Candidate, Recommendation, recommendations
from normbench.report.statistics import signed
from normbench.report.table import DAGGER, Table
from normbench.report.titles import setting_title

WORST = 10.0  # points below the best at which colours end
_COLOURS = "YlOrRd"  # pale for the best; distinct for colour-blind readers, and in grey
_DARKEST = 0.6  # of the scale of colours, so that black can be read on it
_FAILED = "#d9d9d9"


def draw_map(tables: Sequence[Table]) -> Figure:
    """Draw the map of each table, side by side, with the same order of normalizers.

    Those with the smallest distance from the best, averaged over all columns of all tables, are at
    the top.
    """
    columns = [recommendations(table) for table in tables]
    order = _order(columns)
    single = {
        name: all(_is_single(table, name) for table in tables if (name,) in table.lines)
        for name in order
    }
    widths = [len(each) for each in columns]
    figure = Figure(
        figsize=(1.6 + 0.55 * sum(widths), 1.3 + 0.25 * len(order)), layout="constrained"
    )
    panels = figure.subplots(1, len(tables), squeeze=False, sharey=True, width_ratios=widths)[0]
    for axes, table, recommended in zip(panels, tables, columns, strict=True):
        _draw_panel(axes, recommended, order)
        reg = table.setting.get("reg", "none")
        regularization = "" if reg == "none" else f", reg={reg}"
        axes.set_title(setting_title(table).replace(", ", "\n", 1) + regularization, fontsize=9)
        axes.set_xlabel("images per worker")
    names = [f"{name} {DAGGER}" if single[name] else name for name in order]
    panels[0].set_yticks(range(len(order)), names)
    panels[0].set_ylim(len(order) - 0.5, -0.5)
    return figure


def _is_single(table: Table, name: str) -> bool:
    return (name,) in table.single_computations


def _order(columns: Sequence[Sequence[Recommendation]]) -> list[str]:
    """Return all normalizers, the one with the smallest mean distance from the best first."""
    gaps: dict[str, list[float]] = {}
    for recommended in columns:
        for column in recommended:
            for candidate in column.candidates:
                gap = column.candidates[0].mean - candidate.mean
                gaps.setdefault(candidate.name, []).append(min(WORST, gap))
            for name in column.failed:
                gaps.setdefault(name, []).append(WORST)
    return sorted(gaps, key=lambda name: (fmean(gaps[name]), name))


def _draw_panel(axes: Axes, columns: Sequence[Recommendation], order: Sequence[str]) -> None:
    colours = mpl.colormaps[_COLOURS]
    for x, column in enumerate(columns):
        good = {candidate.name for candidate in column.good}
        unsure = {candidate.name for candidate in column.unsure}
        best = column.candidates[0] if column.candidates else None
        by_name = {candidate.name: candidate for candidate in column.candidates}
        for y, name in enumerate(order):
            candidate = by_name.get(name)
            if candidate is None and name not in column.failed:
                continue
            position = (
                1.0 if candidate is None or best is None else _colour_position(best, candidate)
            )
            field: dict[str, Any] = {"facecolor": colours(_DARKEST * position)}
            if candidate is None:
                field["facecolor"] = _FAILED
            if name in good or name in unsure:
                field |= {"edgecolor": "black", "linewidth": 1.4}
            if name in unsure:
                field["linestyle"] = ":"
            axes.add_patch(Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, **field))
            axes.text(x, y, _text(best, candidate), ha="center", va="center", fontsize=7)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_xticks(range(len(columns)), [str(column.batch) for column in columns])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _colour_position(best: Candidate, candidate: Candidate) -> float:
    """Return where on the scale of colours a candidate lies: 0 as the best, 1 far below it."""
    return min(1.0, (best.mean - candidate.mean) / WORST)


def _text(best: Candidate | None, candidate: Candidate | None) -> str:
    if candidate is None or best is None:
        return "fails"
    if candidate is best:
        return f"{best.mean:.1f}"
    return signed(candidate.mean - best.mean, 1)
