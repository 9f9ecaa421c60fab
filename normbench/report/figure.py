"""Accuracy over images per worker, one line a normalizer.

A normalizer has the same colour, marker and dashes in every figure: they follow from its place in
conf/norm/, not from which others a figure shows. No two share both marker and dashes, so the lines
can be told apart without colour.
"""

import io
import zlib
from collections import Counter
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from normbench.home import CONF, names
from normbench.report.statistics import mean_and_std
from normbench.report.table import Table

# Okabe and Ito's colours, which stay apart for colour-blind readers, without yellow.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP*Xp<>h"
_LINES_INSIDE = 8  # more would hide what they name
_DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))


def style(name: str, variant: int = 0) -> dict[str, Any]:
    """Colour, marker and dashes of the normalizer `name`; variants of it share the colour alone."""
    known = names(CONF / "norm")
    # A normalizer of the user's own has no place in conf/norm/, but a name.
    place = known.index(name) if name in known else len(known) + zlib.crc32(name.encode()) % 20
    # The three lengths have no common factor: a pair of marker and dashes returns after 60 places.
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "marker": _MARKERS[(place + variant) % len(_MARKERS)],
        "linestyle": _DASHES[(place + variant) % len(_DASHES)],
    }


def draw(table: Table, form: str) -> bytes:
    """The figure of `table` as "png" or "pdf"; the same table gives the same bytes."""
    with mpl.rc_context({"svg.hashsalt": "normbench", "font.size": 9}):
        # A long legend stands beside the axes, in columns of 16, and the figure grows for it.
        columns = -(-len(table.lines) // 16) if len(table.lines) > _LINES_INSIDE else 0
        figure = Figure(figsize=(5.0 + 1.6 * columns, 3.4), layout="constrained")
        axes = figure.add_subplot()
        shown: Counter[str] = Counter()
        for label, cells in table.lines.items():
            name = label.split(" ")[0]  # "gn groups=8" is a variant of gn
            look = style(name, shown[name])
            shown[name] += 1
            points = [
                (column, *mean_and_std(list(cell.values.values())))
                for column, cell in zip(table.columns, cells, strict=True)
                if cell.values
            ]
            if points:
                x, y, error = zip(*points, strict=True)
                bars = [each or 0.0 for each in error]
                axes.errorbar(x, y, bars, label=label, capsize=3, **look)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(list(table.columns)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([str(column) for column in table.columns])
        axes.set_xlabel("images per worker")
        axes.set_ylabel(table.spec.label)
        axes.set_title(fill(table.heading.partition(": ")[2], 70), fontsize=8)
        axes.grid(alpha=0.3)
        if columns:
            figure.legend(frameon=False, loc="outside right upper", ncols=columns, fontsize=7)
        else:
            axes.legend(frameon=False)
        out = io.BytesIO()
        dated = "Software" if form == "png" else "CreationDate"
        figure.savefig(out, format=form, dpi=160, metadata={dated: None})
    return out.getvalue()
