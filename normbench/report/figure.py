"""Figures of tables: over images per worker, over epochs (curves), over the size of the network.

A normalizer has the same colour, marker and dashes in every figure, by its position in conf/norm/.
No two normalizers share both marker and dashes, so lines can be distinguished without colour. In
curves, where dashes distinguish training from validation, no two share both marker and colour.
"""

import io
import re
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogFormatterSciNotation, MaxNLocator, NullLocator

from normbench.config.files import CONF, names
from normbench.errors import DamagedFile, leave_out
from normbench.report.figure_kinds import BATCH, CURVES, SIZES, FileFormat, by_size
from normbench.report.metrics import METRICS
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
#: The same data gives the same bytes, and no text is markup: a name may have a dollar sign.
RC_PARAMS: dict[Any, Any] = {
    "svg.hashsalt": "normbench", "svg.fonttype": "none", "text.parse_math": False,
}  # fmt: skip
_MARKERS = "osD^vP*Xp<>h"
_LINES_INSIDE = 8  # a longer legend would hide lines
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
    # A long legend goes beside the axes, in columns of 16; the figure gets wider.
    lines = len(table.lines)
    columns = -(-lines // 16) if lines > _LINES_INSIDE else 0
    with mpl.rc_context({**RC_PARAMS, "font.size": 9}):
        figure = Figure(figsize=(5.0, 3.4), layout="constrained")
        axes = _DRAW[kind](figure, table, runs)
        handles, labels = axes.get_legend_handles_labels()
        if columns:
            figure.set_figwidth(figure.get_figwidth() + 1.6 * columns)
            figure.legend(
                handles, labels, frameon=False, loc="outside right upper",
                ncols=columns, fontsize=7,
            )  # fmt: skip
        elif handles:
            axes.legend(frameon=False)
        return save_figure(figure, forms)


def _draw_over_batch(figure: Figure, table: Table, _runs: Path) -> Axes:
    """Draw numbers over images per worker."""
    axes = figure.add_subplot()
    for label, entries, line_style in _lines(table):
        points = [
            (column.batch, *entry.summary)
            for column, entry in zip(table.columns, entries, strict=True)
            if entry.values and column.batch
        ]
        if points:
            x, y, error = zip(*sorted(points), strict=True)
            # One seed has no deviation, and its bar no length.
            bars = [each or 0.0 for each in error]
            axes.errorbar(x, y, bars, label=" ".join(label), capsize=3, **line_style)
    batches = sorted({column.batch for column in table.columns if column.batch})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(batches))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set(xlabel="images per worker", ylabel=table.spec.metric.label)
    axes.set_title(fill(table.setting_text, 70), fontsize=8)
    axes.grid(alpha=0.3)
    return axes


def _draw_curves(figure: Figure, table: Table, runs: Path) -> Axes:
    """Draw training and validation accuracy over epochs, means over seeds.

    The left panel has the fewest images per worker with runs, the right panel the most.
    """
    heads = sorted(
        (column.batch or 0, str(column), index)
        for index, column in enumerate(table.columns)
        if any(entries[index].values for entries in table.lines.values())
    )
    shown = heads if len(heads) < 2 else [heads[0], heads[-1]]
    figure.set_figwidth(3.6 * len(shown))
    panels: Sequence[Axes] = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (_, head, index) in zip(panels, shown, strict=True):
        for label, entries, line_style in _lines(table):
            _draw_curve(axes, " ".join(label), entries[index], runs, line_style)
        axes.set_xlabel("epoch")
        axes.set_title(f"{head}: training (dotted), validation", fontsize=8)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("top-1 accuracy (%)")
    return panels[-1]


def _draw_curve(
    axes: Axes, label: str, entry: Entry, runs: Path, line_style: Mapping[str, Any]
) -> None:
    # Accuracies by epoch.
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
        for record in records:
            for accuracies, key in ((trained, "train_top1"), (validated, "val_top1")):
                if key in record and "epoch" in record:
                    accuracies[round(record["epoch"], 3)].append(record[key])
    # Not a marker at every epoch.
    marker = {"label": label, "marker": line_style["marker"], "markersize": 4, "markevery": 0.15}
    for accuracies, dashes, more in ((trained, ":", {}), (validated or trained, "-", marker)):
        # Only epochs that all seeds recorded: a mean over some of them would jump.
        means = {
            x: fmean(y) for x, y in accuracies.items() if len(y) >= len(entry.values) - damaged
        }
        if means:
            x, y = zip(*sorted(means.items()), strict=True)
            axes.plot(x, y, color=line_style["color"], linestyle=dashes, linewidth=1, **more)


def _draw_sizes(figure: Figure, table: Table, _runs: Path) -> Axes:
    """Draw numbers over two sizes of the networks, as parameters and multiply-adds."""
    figure.set_figwidth(7.0)
    panels: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    for axes, size in zip(panels, table.spec.sizes, strict=True):
        for norm, points in by_size(table, size).items():
            x, y = zip(*sorted(points), strict=True)
            axes.plot(x, y, label=norm, **style(norm))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(METRICS[size].label)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(table.spec.metric.label)
    return panels[-1]


_DRAW: Mapping[str, Callable[[Figure, Table, Path], Axes]] = {
    BATCH: _draw_over_batch,
    CURVES: _draw_curves,
    SIZES: _draw_sizes,
}


def _lines(table: Table) -> Iterator[tuple[Label, Sequence[Entry], dict[str, Any]]]:
    """Yield label, entries and style of each row."""
    variants: Counter[str] = Counter()
    for label, entries in table.lines.items():
        norms = [row.norm for entry in entries for row in entry.runs]
        # "gn groups=8" is a variant of gn.
        name = norms[0] if norms else label[0].split(" ")[0]
        yield label, entries, style(name, variants[name])
        variants[name] += 1


def use_log_scale(axes: Axes) -> None:
    """Make the y-axis logarithmic."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_PowerFormatter())
    axes.yaxis.set_minor_formatter(_PowerFormatter())


class _PowerFormatter(LogFormatterSciNotation):
    """Labels of a logarithmic axis as plain text: 10³, where matplotlib's are markup."""

    _POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label at `x`, "" if the axis is too full for it."""
        plain = re.sub(r"\$|\\mathdefault|[{}]", "", super().__call__(x, pos))
        number, _, power = plain.replace(r"\times", "×").partition("^")
        return number + power.translate(self._POWERS)


def save_figure(figure: Figure, forms: Sequence[FileFormat]) -> Files:
    """Return the content of the figure's files, without a date."""
    with warnings.catch_warnings():
        # Names may have letters that the font lacks, or leave no room beside them.
        warnings.filterwarnings("ignore", "Glyph|constrained_layout")
        if engine := figure.get_layout_engine():
            engine.execute(figure)
            figure.set_layout_engine("none")  # laid out once for all formats: half the time
        return {form: _save(figure, form) for form in forms}


def _save(figure: Figure, form: FileFormat) -> bytes:
    dated = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}
    out = io.BytesIO()
    figure.savefig(
        out, format=form, dpi=160, metadata={dated[form]: None}, transparent=form == "svg"
    )
    if form == "svg":  # XML has no control characters, not even escaped ones
        return re.sub(rb"[\0-\x08\x0b\x0c\x0e-\x1f]", b"", out.getvalue())
    return out.getvalue()
