"""Figures in the papers' manner: accuracy over images per worker, curves, accuracy over size.

A normalizer has the same colour, marker and dashes in every figure: they follow from its place in
conf/norm/, not from which others a figure shows. No two share both marker and dashes, so the lines
can be told apart without colour; of curves, whose dashes say something else, no two share both
marker and colour.
"""

import io
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from normbench.config.files import CONF, names
from normbench.report.metrics import METRICS
from normbench.report.plot_kinds import BATCH, CURVES, SIZES, Form, sizes
from normbench.report.statistics import summary
from normbench.report.table import Cell, Table
from normbench.report.table_spec import Label
from normbench.results import Row, read_history

Drawn = dict[Form, bytes]

# Four of Okabe and Ito's colours and two of Tol's, which stay apart for colour-blind readers, and
# others as far as possible from those in the eyes of all. Each has a contrast of 3 to white, which
# leaves no yellow and no light blue. Of eleven the usual normalizers have each its own.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#664400", "#8866FF", "#000000",
    "#882255", "#CC00AA", "#332288", "#4400EE",
)  # fmt: skip
#: So that the same numbers give the same bytes.
STABLE: dict[Any, Any] = {"svg.hashsalt": "normbench", "svg.fonttype": "none"}
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
        "color": COLOURS[place % len(COLOURS)],
        "marker": _MARKERS[(place + variant) % len(_MARKERS)],
        "linestyle": _DASHES[(place + variant) % len(_DASHES)],
    }


def draw(table: Table, forms: Sequence[Form]) -> Drawn:
    """The numbers of `table` over images per worker; the same table gives the same bytes."""
    with _figure(len(table.lines)) as (figure, finish):
        axes = figure.add_subplot()
        columns = sorted({column.batch for column in table.columns if column.batch})
        for label, cells, look in _lines(table):
            points = [
                (column.batch, *summary(list(cell.values.values()), cell.statistic))
                for column, cell in zip(table.columns, cells, strict=True)
                if cell.values and column.batch
            ]
            if points:
                x, y, error = zip(*sorted(points), strict=True)
                bars = [each or 0.0 for each in error]
                axes.errorbar(x, y, bars, label=" ".join(label), capsize=3, **look)
        _over_batch(axes, columns)
        axes.set_ylabel(table.spec.label)
        _title(axes, table)
        return finish(axes, forms)


def draw_curves(table: Table, forms: Sequence[Form], root: Path) -> Drawn:
    """Training and validation accuracy over the epochs, means over the seeds.

    Left with the fewest and right with the most images per worker of the table, as far as it has
    runs there.
    """
    heads = [(column.batch or 0, str(column), index) for index, column in enumerate(table.columns)]
    filled = [
        head for head in sorted(heads) if any(c[head[2]].values for c in table.lines.values())
    ]
    shown = filled if len(filled) < 2 else [filled[0], filled[-1]]
    with _figure(len(table.lines), width=3.6 * len(shown)) as (figure, finish):
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, (_, head, index) in zip(panels, shown, strict=True):
            for label, cells, look in _lines(table):
                _curves(axes, " ".join(label), cells[index], root, look)
            axes.set_xlabel("epoch")
            axes.set_title(f"{head}: training (dotted), validation", fontsize=8)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("top-1 accuracy (%)")
        return finish(panels[-1], forms)


def draw_sizes(table: Table, forms: Sequence[Form]) -> Drawn:
    """The numbers of `table` over parameters and over multiply-adds."""
    with _figure(len(table.lines), width=7.0) as (figure, finish):
        panels = figure.subplots(1, 2, sharey=True)
        for axes, size in zip(panels, ("params_m", "macs_g"), strict=True):
            for norm, points in sizes(table, size).items():
                x, y = zip(*sorted(points), strict=True)
                axes.plot(x, y, label=norm, **style(norm))
            axes.set_xlabel(METRICS[size].label)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(table.spec.label)
        return finish(panels[-1], forms)


#: By the end of the file's name.
DRAW: Mapping[str, Callable[[Table, Sequence[Form], Path], Drawn]] = {
    BATCH: lambda table, forms, _runs: draw(table, forms),
    CURVES: draw_curves,
    SIZES: lambda table, forms, _runs: draw_sizes(table, forms),
}


def _lines(table: Table) -> Iterator[tuple[Label, Sequence[Cell], dict[str, Any]]]:
    shown: Counter[str] = Counter()
    for label, cells in table.lines.items():
        norms = [row.norm for cell in cells for row in cell.runs]
        # "gn groups=8" is a variant of gn.
        name = norms[0] if norms else label[0].split(" ")[0]
        yield label, cells, style(name, shown[name])
        shown[name] += 1


def _curves(axes: Axes, label: str, cell: Cell, root: Path, look: Mapping[str, Any]) -> None:
    trained: dict[float, list[float]] = defaultdict(list)
    validated: dict[float, list[float]] = defaultdict(list)
    for row in cell.runs:
        for record in _history(root, row):
            for found, key in ((trained, "train_top1"), (validated, "val_top1")):
                if key in record:
                    found[round(record["epoch"], 3)].append(record[key])
    marker = {"marker": look["marker"], "markersize": 4, "markevery": 0.15}  # not at every epoch
    for found, dashes, name in ((trained, ":", None), (validated or trained, "-", label)):
        # Only where all seeds have a record: a mean over some of them would jump.
        whole = {x: fmean(y) for x, y in found.items() if len(y) >= len(cell.values)}
        if whole:
            x, y = zip(*sorted(whole.items()), strict=True)
            more = marker if name else {}
            axes.plot(x, y, color=look["color"], linestyle=dashes, label=name, linewidth=1, **more)


def _history(root: Path, row: Row) -> list[dict[str, float]]:
    folder = root / row.sweep / row.id
    return list(read_history(folder)) if (folder / "history.csv").exists() else []


@contextmanager
def _figure(
    lines: int, width: float = 5.0
) -> Iterator[tuple[Figure, Callable[[Axes, Sequence[Form]], Drawn]]]:
    """A figure, and what ends it: with a legend, as bytes."""
    # A long legend stands beside the axes, in columns of 16, and the figure grows for it.
    columns = -(-lines // 16) if lines > _LINES_INSIDE else 0
    with mpl.rc_context({**STABLE, "font.size": 9}):
        figure = Figure(figsize=(width + 1.6 * columns, 3.4), layout="constrained")

        def finish(legend_of: Axes, forms: Sequence[Form]) -> Drawn:
            handles, labels = legend_of.get_legend_handles_labels()
            if columns:
                figure.legend(
                    handles, labels, frameon=False, loc="outside right upper",
                    ncols=columns, fontsize=7,
                )  # fmt: skip
            elif handles:
                legend_of.legend(frameon=False)
            return saved(figure, forms)

        yield figure, finish


def saved(figure: Figure, forms: Sequence[Form]) -> Drawn:
    """The content of its files, without a date."""
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine("none")  # laid out once for all forms: half of the time
    return {form: _saved(figure, form) for form in forms}


def _saved(figure: Figure, form: Form) -> bytes:
    out = io.BytesIO()
    dated = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}[form]
    figure.savefig(out, format=form, dpi=160, metadata={dated: None}, transparent=form == "svg")
    return out.getvalue()


def _over_batch(axes: Axes, columns: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(columns)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(columns), [str(column) for column in columns])
    axes.set_xlabel("images per worker")
    axes.grid(alpha=0.3)


def _title(axes: Axes, table: Table) -> None:
    axes.set_title(fill(table.described, 70), fontsize=8)
