"""Heat maps: which normalizer is the best, and how much depends on a learning rate.

A map of normalizers has a column for each number of images per worker. Each field shows how far the
mean lies below the highest one of its column. The fields of the highest mean and of all that cannot
be told apart from it are framed, so the answer can be read without colours. A dashed frame is that
of a normalizer that varies far more over seeds than the others, so it may lie far below; a dotted
one is that of a single seed, which tells nothing. A legend below says what occurs.

A map of sensitivity has a column for each learning rate, or what else the columns of a table differ
in. Each field shows how far the mean lies below the highest one of its row, which is framed.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from normbench.report.recommendation import Recommendation, recommendations
from normbench.report.statistics import signed
from normbench.report.table import DAGGER, WORDS, Entry, Table
from normbench.report.titles import setting_title

WORST = 10.0  # points below the best that a field without a result counts as
_DARKEST_GAP = 5.0  # points below the best at which colours end
_COLOURS = "YlOrRd"  # pale for the best; distinct for colour-blind readers, and in grey
_DARKEST = 0.6  # of the scale of colours, so that black can be read on it
_FAILED = "#d9d9d9"
_NOT_POSSIBLE = WORDS["impossible"]
_FRAME: Mapping[str, Any] = {"edgecolor": "black", "linewidth": 1.4}


def draw_map(table: Table) -> Figure:
    """Draw the map of a table of normalizers over images per worker.

    Normalizers with the smallest distance from the best, averaged over columns, are at the top.
    """
    columns = recommendations(table)
    order = _order(columns)
    single = table.single_computations
    names = [f"{name} {DAGGER}" if (name,) in single else name for name in order]
    figure, axes = _grid(table, [str(column.batch) for column in columns], names)
    for x, column in enumerate(columns):
        _draw_column(axes, x, column, order)
    label = table.spec.metric.label
    framed = [each for column in columns for each in (*column.good, *column.unsure)]
    failures = {_short(failure) for column in columns for failure in column.failed.values()}
    grey = f"; grey counts as {WORST:.0f} points" if failures else ""
    _explain(
        figure,
        {
            f"bold: {label} of the best of a column; others: points below it": True,
            "framed: not significantly below the best": True,
            "dashed: undecided, as its seeds vary far more": any(each.unstable for each in framed),
            "dotted: one seed, which tells nothing": any(column.unsure for column in columns),
            f"{DAGGER} does not depend on images per worker": bool(single),
            f"{_NOT_POSSIBLE}: cannot work": _NOT_POSSIBLE in failures,
            "grey: runs without a result (div.: diverged)": bool(failures - {_NOT_POSSIBLE}),
            f"rows: by their mean distance from the best{grey}": True,
        },
    )
    return figure


def draw_sensitivity(table: Table) -> Figure:
    """Draw how far the means of each row lie below its highest one.

    Rows whose mean distance is smallest, which are the least sensitive, are at the top. Where some
    seed failed, no mean is shown; a row that fails everywhere is at the bottom.
    """
    positions = [*map(table.position, table.columns)]
    columns = [at for at, x in enumerate(positions) if x is not None]
    lines = [
        (" ".join(label), [entries[at] for at in columns])
        for label, entries in table.plain_lines.items()
    ]
    lines = [line for line in lines if any(each.values or each.failed for each in line[1])]
    lines.sort(key=lambda line: (_mean_gap(line[1]), line[0]))
    headers = [str(table.columns[at]) for at in columns]
    figure, axes = _grid(table, headers, [name for name, _ in lines])
    for y, (_, entries) in enumerate(lines):
        best = max(_means(entries), default=None)
        for x, entry in enumerate(entries):
            if entry.failed:
                _draw_field(axes, x, y, "fails", facecolor=_FAILED)
            elif entry.center is not None and best is not None:
                is_best = entry.center == best
                frame = _FRAME if is_best else {}
                _draw_mean(axes, x, y, entry.center, best, is_best=is_best, **frame)
    label = table.spec.metric.label
    fails = any(entry.failed for _, entries in lines for entry in entries)
    _explain(
        figure,
        {
            f"bold: {label} of the best of a row; others: points below it": True,
            "fails: some seed has no result": fails,
        },
    )
    return figure


def _explain(figure: Figure, meanings: Mapping[str, bool]) -> None:
    """Write below a map what its fields mean, as far as they occur."""
    width = round(17 * figure.get_figwidth())
    lines = [fill(text, width) for text, occurs in meanings.items() if occurs]
    figure.supxlabel("\n".join(lines), fontsize=7, x=0.02, ha="left")


def _means(entries: Sequence[Entry]) -> list[float]:
    """Return the means of the entries without a failure."""
    return [each.center for each in entries if each.center is not None and not each.failed]


def _mean_gap(entries: Sequence[Entry]) -> float:
    """Return how far entries lie below the highest one on average; a failure counts as `WORST`."""
    means = _means(entries)
    failures = [WORST for entry in entries if entry.failed]
    return fmean([*(min(WORST, max(means) - mean) for mean in means), *failures])


def _grid(table: Table, columns: Sequence[str], rows: Sequence[str]) -> tuple[Figure, Axes]:
    """Return an empty map with the names of its columns and rows."""
    figure = Figure(
        figsize=(1.6 + 0.55 * len(columns), 2.1 + 0.25 * len(rows)), layout="constrained"
    )
    axes = figure.subplots()
    reg = table.setting.get("reg", "none")
    regularization = "" if reg == "none" else f", reg={reg}"
    width = max(24, 9 * len(columns))
    title = [fill(line, width) for line in setting_title(table).split(", ", 1)]
    axes.set_title("\n".join(title) + regularization, fontsize=9)
    axes.set_xlabel(table.over)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure, axes


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
    for name, failure in column.failed.items():
        _draw_field(axes, x, order.index(name), _short(failure), facecolor=_FAILED)
    for candidate in column.candidates:
        y, best = order.index(candidate.name), column.candidates[0]
        frame = {} if candidate in column.worse else {**_FRAME}
        if candidate in column.unsure:
            frame["linestyle"] = ":"
        elif frame and candidate.unstable:
            frame["linestyle"] = "--"
        _draw_mean(axes, x, y, candidate.mean, best.mean, is_best=candidate is best, **frame)


def _draw_mean(
    axes: Axes, x: int, y: int, mean: float, best: float, *, is_best: bool, **frame: Any
) -> None:
    """Draw a field: of the best its mean, of another one its distance from the best."""
    gap = round(best - mean, 1)
    text = f"{best:.1f}" if is_best else signed(-gap, 1) if gap else "0.0"
    colour = mpl.colormaps[_COLOURS](_DARKEST * min(1.0, (best - mean) / _DARKEST_GAP))
    weight = "bold" if is_best else "normal"
    _draw_field(axes, x, y, text, weight=weight, facecolor=colour, **frame)


def _short(failure: str) -> str:
    """Shorten "1 of 5 div." for a field; where no run can work, "n/a"."""
    if failure.endswith(_NOT_POSSIBLE):
        return _NOT_POSSIBLE
    return "fails" if "," in failure else failure.replace(" of ", "/")


def _draw_field(
    axes: Axes, x: int, y: int, text: str, weight: str = "normal", **field: Any
) -> None:
    axes.add_patch(Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, **field))
    axes.text(x, y, text, ha="center", va="center", fontsize=7, fontweight=weight)
