"""The figure of effects: rows of a table that are differences, over its columns.

Each row has a panel. A point is the difference of our means with Welch's interval over seeds, a
hollow one the paper's number, if the table has one in that column. The interval of the best of
several entries is its own, Bonferroni-corrected at both ends; a verdict takes that of all of them.
"""

from collections.abc import Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normbench.report.figure_files import COLOURS
from normbench.report.planned_seeds import verdict_level
from normbench.report.statistics import bonferroni, welch_contrast
from normbench.report.table import Entry, Table

_OURS, _PAPERS, *_ = COLOURS


def draw_effects(table: Table) -> Figure:
    """Draw the differences of a table, its columns from left to right."""
    rows = [row for row in table.spec.rows if row.minus]
    figure = Figure(figsize=(5.0, 0.9 + 1.5 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), sharex=True, squeeze=False)[:, 0]
    for axes, row in zip(panels, rows, strict=True):
        _draw_row(axes, table.lines[row.label])
        axes.set_title(str(row), fontsize=10)
        axes.set_ylabel("points")
        axes.axhline(0.0, color="grey", linewidth=0.8)
        axes.margins(x=0.08, y=0.15)
    columns = [fill(str(column), 14) for column in table.columns]
    panels[-1].set_xticks(range(len(columns)), columns, fontsize=8)
    return figure


def _draw_row(axes: Axes, entries: Sequence[Entry]) -> None:
    for x, entry in enumerate(entries):
        if entry.values:
            first, second = (
                [source.values[seed] for seed in entry.values] for source in entry.sources
            )
            level = bonferroni(1 + len(entry.known_rivals), verdict_level([entry]))
            effect = welch_contrast([(1.0, first), (-1.0, second)], level)
            axes.plot(x, effect.value, "o", color=_OURS)
            if effect.low is not None and effect.high is not None:
                axes.vlines(x, effect.low, effect.high, color=_OURS)
        if entry.published and entry.published.value is not None:
            axes.plot(x, entry.published.value, "s", color=_PAPERS, markerfacecolor="white")
            axes.annotate("paper", (x, entry.published.value), (-6, 0), textcoords="offset points",
                          ha="right", va="center", fontsize=8)  # fmt: skip
