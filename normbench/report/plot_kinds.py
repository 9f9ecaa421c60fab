"""The figures that a table can have; without matplotlib, which takes half a second to import."""

from collections import defaultdict
from pathlib import Path
from typing import Literal

from normbench.report.metrics import METRICS
from normbench.report.table import Table
from normbench.run_files import probe_file

Form = Literal["png", "pdf", "svg"]
FORMS: tuple[Form, ...] = ("png", "pdf", "svg")
BATCH, CURVES, SIZES = "", "-curves", "-sizes"  # endings of file names
#: Figures of probes, by the endings of their file names.
INSIDE = {f"-{kind}": kind for kind in ("spp", "power", "ratios", "example_weight")}


def kinds(table: Table, runs: Path) -> list[str]:
    """Return the figures that `table` has data for, as endings of file names.

    Over images per worker, training curves, over the network's size, and those of probes.

    Args:
        table: to draw.
        runs: root of the runs, with their curves and the records of probes.
    """
    accuracy = table.spec.metric.accuracy
    numbers = [row for cell in table.cells if cell.values for row in cell.runs]
    curves = any((runs / row.sweep / row.id / "history.csv").exists() for row in numbers)
    several = any(len(points) > 1 for points in sizes(table, "params_m").values())
    has_data = {BATCH: table.drawable, CURVES: accuracy and curves, SIZES: accuracy and several}
    folders = [runs / row.sweep / row.id for row in numbers]
    probes = [
        ending
        for ending, kind in INSIDE.items()
        if any(probe_file(folder, kind) for folder in folders)
    ]
    return [ending for ending, exists in has_data.items() if exists] + probes


def sizes(table: Table, size: str) -> dict[str, list[tuple[float, float]]]:
    """Return pairs (size of the network, metric) by normalizer.

    The best of several cells of one network, say of several levels of regularization, counts.

    Args:
        table: with an accuracy.
        size: name of the metric that measures the network, as params_m.
    """
    best: dict[str, dict[float, float]] = defaultdict(dict)
    for cell in table.cells:
        values = [value for run in cell.runs if (value := METRICS[size].of(run)) is not None]
        if values and cell.center is not None and cell.metric is table.spec.metric:
            points = best[cell.runs[0].norm]
            points[values[0]] = max(cell.center, points.get(values[0], cell.center))
    return {norm: list(points.items()) for norm, points in best.items()}
