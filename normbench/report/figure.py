"""Figures of tables: over images per worker, over epochs (curves), over the size of the network.

A normalizer has the same colour, marker and dashes in every figure, by its position in conf/norm/.
No two normalizers share both marker and dashes, so lines can be distinguished without colour. In
curves, where dashes distinguish training from validation, no two share both marker and colour.
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
from normbench.report.figure_kinds import BATCH, CURVES, SIZES, FileFormat, by_size
from normbench.report.metrics import METRICS
from normbench.report.statistics import summary
from normbench.report.table import Entry, Table
from normbench.report.table_spec import Label
from normbench.results import read_run_history

Files = dict[FileFormat, bytes]

# Four colours of Okabe and Ito and two of Tol, distinct for colour-blind readers, and five more as
# far from those as possible. All have a contrast of at least 3 to white.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#664400", "#8866FF", "#000000",
    "#882255", "#CC00AA", "#332288", "#4400EE",
)  # fmt: skip
#: The same data gives the same bytes.
STABLE: dict[Any, Any] = {"svg.hashsalt": "normbench", "svg.fonttype": "none"}
_MARKERS = "osD^vP*Xp<>h"
_LINES_INSIDE = 8  # a longer legend would hide lines
_DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))


def style(name: str, variant: int = 0) -> dict[str, Any]:
    """Return colour, marker and dashes of a normalizer; its variants share only the colour."""
    known = names(CONF / "norm")
    # A user's normalizer outside conf/norm/ gets a position by its name.
    place = known.index(name) if name in known else len(known) + zlib.crc32(name.encode()) % 20
    # 12 markers and 5 dashes have no common factor: a pair repeats after 60 positions.
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": _MARKERS[(place + variant) % len(_MARKERS)],
        "linestyle": _DASHES[(place + variant) % len(_DASHES)],
    }


def draw(table: Table, forms: Sequence[FileFormat]) -> Files:
    """Draw the numbers of `table` over images per worker; the same table gives the same bytes."""
    with _figure(len(table.lines)) as (figure, finish):
        axes = figure.add_subplot()
        columns = sorted({column.batch for column in table.columns if column.batch})
        for label, entries, line_style in _lines(table):
            points = [
                (column.batch, *summary(list(entry.values.values()), entry.statistic))
                for column, entry in zip(table.columns, entries, strict=True)
                if entry.values and column.batch
            ]
            if points:
                x, y, error = zip(*sorted(points), strict=True)
                bars = [each or 0.0 for each in error]
                axes.errorbar(x, y, bars, label=" ".join(label), capsize=3, **line_style)
        _over_batch(axes, columns)
        axes.set_ylabel(table.spec.label)
        _title(axes, table)
        return finish(axes, forms)


def draw_curves(table: Table, forms: Sequence[FileFormat], root: Path) -> Files:
    """Draw training and validation accuracy over epochs, means over seeds.

    The left panel has the fewest images per worker with runs, the right panel the most.
    """
    heads = [(column.batch or 0, str(column), index) for index, column in enumerate(table.columns)]
    filled = [
        head for head in sorted(heads) if any(c[head[2]].values for c in table.lines.values())
    ]
    shown = filled if len(filled) < 2 else [filled[0], filled[-1]]
    with _figure(len(table.lines), width=3.6 * len(shown)) as (figure, finish):
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, (_, head, index) in zip(panels, shown, strict=True):
            for label, entries, line_style in _lines(table):
                _curves(axes, " ".join(label), entries[index], root, line_style)
            axes.set_xlabel("epoch")
            axes.set_title(f"{head}: training (dotted), validation", fontsize=8)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("top-1 accuracy (%)")
        return finish(panels[-1], forms)


def draw_sizes(table: Table, forms: Sequence[FileFormat]) -> Files:
    """Draw the numbers of `table` over parameters and over multiply-adds."""
    with _figure(len(table.lines), width=7.0) as (figure, finish):
        panels = figure.subplots(1, 2, sharey=True)
        for axes, size in zip(panels, ("params_m", "macs_g"), strict=True):
            for norm, points in by_size(table, size).items():
                x, y = zip(*sorted(points), strict=True)
                axes.plot(x, y, label=norm, **style(norm))
            axes.set_xlabel(METRICS[size].label)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(table.spec.label)
        return finish(panels[-1], forms)


#: Functions that draw, by the end of the file name.
DRAW: Mapping[str, Callable[[Table, Sequence[FileFormat], Path], Files]] = {
    BATCH: lambda table, forms, _runs: draw(table, forms),
    CURVES: draw_curves,
    SIZES: lambda table, forms, _runs: draw_sizes(table, forms),
}


def _lines(table: Table) -> Iterator[tuple[Label, Sequence[Entry], dict[str, Any]]]:
    shown: Counter[str] = Counter()
    for label, entries in table.lines.items():
        norms = [row.norm for entry in entries for row in entry.runs]
        # "gn groups=8" is a variant of gn.
        name = norms[0] if norms else label[0].split(" ")[0]
        yield label, entries, style(name, shown[name])
        shown[name] += 1


def _curves(
    axes: Axes, label: str, entry: Entry, root: Path, line_style: Mapping[str, Any]
) -> None:
    trained: dict[float, list[float]] = defaultdict(list)
    validated: dict[float, list[float]] = defaultdict(list)
    for row in entry.runs:
        for record in read_run_history(root, row):
            for found, key in ((trained, "train_top1"), (validated, "val_top1")):
                if key in record:
                    found[round(record["epoch"], 3)].append(record[key])
    marker = {
        "marker": line_style["marker"],
        "markersize": 4,
        "markevery": 0.15,
    }  # not at every epoch
    for found, dashes, name in ((trained, ":", None), (validated or trained, "-", label)):
        # Only epochs that all seeds recorded: a mean over some of them would jump.
        whole = {x: fmean(y) for x, y in found.items() if len(y) >= len(entry.values)}
        if whole:
            x, y = zip(*sorted(whole.items()), strict=True)
            more = marker if name else {}
            axes.plot(
                x, y, color=line_style["color"], linestyle=dashes, label=name, linewidth=1, **more
            )


@contextmanager
def _figure(
    lines: int, width: float = 5.0
) -> Iterator[tuple[Figure, Callable[[Axes, Sequence[FileFormat]], Files]]]:
    """Yield a figure and the function that adds the legend and returns its files."""
    # A long legend goes beside the axes, in columns of 16; the figure gets wider.
    columns = -(-lines // 16) if lines > _LINES_INSIDE else 0
    with mpl.rc_context({**STABLE, "font.size": 9}):
        figure = Figure(figsize=(width + 1.6 * columns, 3.4), layout="constrained")

        def finish(legend_of: Axes, forms: Sequence[FileFormat]) -> Files:
            handles, labels = legend_of.get_legend_handles_labels()
            if columns:
                figure.legend(
                    handles, labels, frameon=False, loc="outside right upper",
                    ncols=columns, fontsize=7,
                )  # fmt: skip
            elif handles:
                legend_of.legend(frameon=False)
            return save_figure(figure, forms)

        yield figure, finish


def save_figure(figure: Figure, forms: Sequence[FileFormat]) -> Files:
    """Return the content of the figure's files, without a date."""
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine("none")  # laid out once for all formats: half the time
    return {form: _save_format(figure, form) for form in forms}


def _save_format(figure: Figure, form: FileFormat) -> bytes:
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
    axes.set_title(fill(table.setting_text, 70), fontsize=8)
