"""Axes, lines and legends that the drawings of probes share."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normbench.records.probes import Record
from normbench.report.figure_files import COLOURS

PANEL_WIDTH, _HEIGHT = 3.4, 2.8  # inches
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":")


def make_panels(rows: int, columns: int, **options: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(PANEL_WIDTH * columns, _HEIGHT * rows + 0.4), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def numbers_of(records: Sequence[Record], key: str) -> list[float]:
    """Return the numbers in a column; missing ones are nan, a gap in a curve."""
    return [float("nan") if (v := record.get(key)) is None else float(v) for record in records]


def line_style(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": _DASHES[place % len(_DASHES)]}


def add_legend(figure: Figure, axes: Axes) -> None:
    """Put the legend of one panel below all of them."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4)


def start_at_zero(axes: Axes, top: float) -> None:
    """Let the y-axis begin a little below 0, where the frame would hide a line."""
    axes.set_ylim(-0.04 * top, top)
