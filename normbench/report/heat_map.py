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


def draw_map(table: Table) -> Figure:
    """Draw the map of a table.

    Normalizers with the smallest distance from the best, averaged over columns, are at the top.
    """
    columns = recommendations(table)
    order = _order(columns)
    figure = Figure(
        figsize=(1.6 + 0.55 * len(columns), 1.3 + 0.25 * len(order)), layout="constrained"
    )
    axes = figure.subplots()
    for x, column in enumerate(columns):
        _draw_column(axes, x, column, order)
    reg = table.setting.get("reg", "none")
    regularization = "" if reg == "none" else f", reg={reg}"
    axes.set_title(setting_title(table).replace(", ", "\n", 1) + regularization, fontsize=9)
    axes.set_xlabel("images per worker")
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_xticks(range(len(columns)), [str(column.batch) for column in columns])
    single = table.single_computations
    names = [f"{name} {DAGGER}" if (name,) in single else name for name in order]
    axes.set_yticks(range(len(order)), names)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure


def _order(columns: Sequence[Recommendation]) -> list[str]:
    """Return all normalizers, the one with the smallest mean distance from the best first."""
    gaps: dict[str, list[float]] = {}
    for column in columns:
        for candidate in column.candidates:
            gap = column.candidates[0].mean - candidate.mean
            gaps.setdefault(candidate.name, []).append(min(WORST, gap))
        for name in column.failed:
            gaps.setdefault(name, []).append(WORST)
    return sorted(gaps, key=lambda name: (fmean(gaps[name]), name))


def _draw_column(axes: Axes, x: int, column: Recommendation, order: Sequence[str]) -> None:
    """Draw the fields of one number of images per worker, at `x`."""
    for name in column.failed:
        _draw_field(axes, x, order.index(name), "fails", facecolor=_FAILED)
    for candidate in column.candidates:
        best = column.candidates[0]
        text = f"{best.mean:.1f}" if candidate is best else signed(candidate.mean - best.mean, 1)
        colour = mpl.colormaps[_COLOURS](_DARKEST * _colour_position(best, candidate))
        frame: dict[str, Any] = {}
        if candidate not in column.worse:
            frame = {"edgecolor": "black", "linewidth": 1.4}
        if candidate in column.unsure:
            frame["linestyle"] = ":"
        _draw_field(axes, x, order.index(candidate.name), text, facecolor=colour, **frame)


def _draw_field(axes: Axes, x: int, y: int, text: str, **field: Any) -> None:
    axes.add_patch(Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, **field))
    axes.text(x, y, text, ha="center", va="center", fontsize=7)


def _colour_position(best: Candidate, candidate: Candidate) -> float:
    """Return where on the scale of colours a candidate lies: 0 as the best, 1 far below it."""
    return min(1.0, (best.mean - candidate.mean) / WORST)
