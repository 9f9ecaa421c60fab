"""What of a table can be drawn. Apart from the drawing, which takes half a second to import."""

from collections import defaultdict
from pathlib import Path
from typing import Literal

from normbench.report.metrics import METRICS
from normbench.report.table import Table
from normbench.run_files import probe_file

Form = Literal["png", "pdf", "svg"]
FORMS: tuple[Form, ...] = ("png", "pdf", "svg")
BATCH, CURVES, SIZES = "", "-curves", "-sizes"  # at the end of a file's name
INSIDE = {f"-{kind}": kind for kind in ("spp", "power", "ratios", "example_weight")}


def kinds(table: Table, runs: Path) -> list[str]:
    """The figures of `table`: over images per worker, curves, over the network's size, inside.

    Args:
        table: to draw.
        runs: root of the runs, where their curves are.
    """
    accuracy = table.spec.metric.accuracy
    numbers = [row for cell in table.cells if cell.values for row in cell.runs]
    curves = any((runs / row.sweep / row.id / "history.csv").exists() for row in numbers)
    several = any(len(points) > 1 for points in sizes(table, "params_m").values())
    found = {BATCH: table.drawable, CURVES: accuracy and curves, SIZES: accuracy and several}
    folders = [runs / row.sweep / row.id for row in numbers]
    inside = [
        end for end, kind in INSIDE.items() if any(probe_file(folder, kind) for folder in folders)
    ]
    return [kind for kind, there_is in found.items() if there_is] + inside


def sizes(table: Table, size: str) -> dict[str, list[tuple[float, float]]]:
    """(size of the network, number) of each normalizer.

    Of several cells of one network (levels of regularization, images per worker) the best counts.
    """
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for cell in table.cells:
        values = [value for run in cell.runs if (value := METRICS[size].of(run)) is not None]
        if values and cell.center is not None and cell.metric is table.spec.metric:
            known = found[cell.runs[0].norm]
            known[values[0]] = max(cell.center, known.get(values[0], cell.center))
    return {norm: list(points.items()) for norm, points in found.items()}
