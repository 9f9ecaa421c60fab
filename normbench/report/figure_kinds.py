"""Kinds of figures of a table, apart from the drawing, which imports matplotlib."""

import os
from collections import defaultdict
from pathlib import Path
from typing import Literal

from normbench.records.probes import PROBES, probe_file
from normbench.records.studies import study_file
from normbench.report.metrics import METRICS, metric_of_task
from normbench.report.table import Table
from normbench.results import Row, read_run_history

FileFormat = Literal["png", "pdf", "svg"]
FORMATS: tuple[FileFormat, ...] = ("png", "pdf", "svg")
# Ends of file names.
LINES, MAP, SENSITIVITY = "", "-map", "-sensitivity"
EFFECTS, CURVES, SIZES = "-effects", "-curves", "-sizes"
#: Captions of the figures of probes by kind; `probe_drawings` draws them.
PROBE_CAPTIONS = {
    "spp": "Signal propagation over residual blocks after the last epoch; first seed.",
    "power": "Power of the normalized activations over depth after the last epoch; first seed.",
    "ratios": "Ratios learned by switchable normalization, by group of layers; all seeds.",
    "example_weight": "Weight alpha of an image in its own statistics: validation results.",
}
MIN_MAP_ROWS = 10  # of a map; fewer normalizers are compared by lines
PROBE_FIGURES = {f"-{kind}": kind for kind in PROBE_CAPTIONS}
CAPTIONS = {
    LINES: "{label} over {over}: {statistic} and standard deviation over seeds.",
    MAP: "{label}: how much lower each normalizer's mean is than the highest one at each number of "
    "images per worker; framed: the highest, and those not significantly lower.",
    SENSITIVITY: "{label} over {over}: how much lower each mean is than the highest of its row.",
    EFFECTS: "Differences of {label}: of means, with Welch's interval over seeds.",
    CURVES: "{curves} over epochs, mean over seeds: {splits}.",
    SIZES: "{label} over parameters and multiply-adds of the network.",
    **{end: PROBE_CAPTIONS[kind] for end, kind in PROBE_FIGURES.items()},
}


def figure_kinds(table: Table, runs: Path) -> list[str]:
    """Return the kinds of figures that `table` has data for; `runs` has histories and probes."""
    accuracy = table.spec.metric.accuracy
    rows = [row for entry in table.entries if entry.values for row in entry.runs]
    folders = [runs / row.sweep / row.id for row in rows]
    if not accuracy and not any(f"val_{main_metric(row)}" in row.metrics for row in rows):
        curves = False  # other tasks have curves of held-out images alone
    elif study_file(runs):
        curves = any(read_run_history(runs, row) for row in rows)
    else:
        curves = any(os.path.lexists(folder / "history.csv") for folder in folders)
    # A single size makes no line.
    sizes = any(len(points) > 1 for points in by_size(table, table.spec.sizes[0]).values())
    many = accuracy and table.drawable and len(table.lines) >= MIN_MAP_ROWS
    sensitivity = many and not table.over_batch
    drawn = {
        LINES: table.drawable and not sensitivity,
        MAP: many and table.over_batch and table.spec.compares_norms,
        SENSITIVITY: sensitivity,
        EFFECTS: accuracy and not table.spec.paper and _has_effects(table),
        CURVES: (accuracy or table.spec.metric.of_task) and curves,
        SIZES: accuracy and sizes,
    }
    probed = [folder for folder in folders if (folder / PROBES).is_dir()]
    for end, kind in PROBE_FIGURES.items():
        drawn[end] = any(probe_file(folder, kind) for folder in probed)
    return [end for end, has_data in drawn.items() if has_data]


def curve_label(table: Table) -> str:
    """Return what the curves of a table show, the main metric of its runs, with its unit."""
    of_rows = (metric_of_task(row) for entry in table.entries for row in entry.runs)
    return next(of_rows, table.spec.metric).label.removeprefix("test ")


def curve_splits(table: Table) -> str:
    """Return of which images the curves of a table are; other tasks are measured on some alone."""
    accuracy = table.spec.metric.accuracy
    return "training (dotted), validation" if accuracy else "validation"


def main_metric(row: Row) -> str:
    """Return the main metric of the task of a row without the name of the split, as "miou"."""
    return row.metric.removeprefix("test_")


def _has_effects(table: Table) -> bool:
    rows = [row for row in table.spec.rows if row.minus]
    return any(entry.values for row in rows for entry in table.lines[row.label])


def by_size(table: Table, size: str) -> dict[str, list[tuple[float, float]]]:
    """Return (size of the network, best number) for each size, by normalizer.

    The size is a metric, such as params_m or macs_g.
    """
    best: dict[str, dict[float, float]] = defaultdict(dict)
    for entry in table.entries:
        values = [value for row in entry.runs if (value := METRICS[size].of(row)) is not None]
        if values and entry.center is not None and entry.metric is table.spec.metric:
            points = best[entry.runs[0].norm]
            points[values[0]] = max(entry.center, points.get(values[0], entry.center))
    return {norm: list(points.items()) for norm, points in best.items()}
