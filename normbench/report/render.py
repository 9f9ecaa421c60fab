"""A table as Markdown and as CSV."""

import csv
import io

from tabulate import tabulate

from normbench.report.footnotes import MARK, SHARED, notes, one_computation, shared_cells
from normbench.report.table import Table


def markdown(table: Table) -> str:
    """Heading, table and notes."""
    header, body = table.grid()
    same = one_computation(table)
    shared = shared_cells(table)
    marked = [
        [
            f"{words} {MARK}" if label in same else words,
            *(f"{cell} {SHARED}" if (label, k) in shared else cell for k, cell in enumerate(cells)),
        ]
        for label, (words, *cells) in zip(table.lines, body, strict=True)
    ]
    drawn = tabulate(marked, header, tablefmt="pipe", disable_numparse=True)
    listed = "\n".join(f"- {note}" for note in notes(table))
    return f"**{table.heading}**\n\n{drawn}\n\n{listed}\n"


def numbers(table: Table) -> str:
    """CSV, one line for each run of a cell, and one for each number of the paper."""
    out = io.StringIO()
    plain = ("norm", "batch", "seed", "status")
    last = ("options", "id", "sweep", "commit")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "column", *plain, "metric", "value", "error", *last])
    for label, cells in table.lines.items():
        for column, cell in zip(table.columns, cells, strict=True):
            where = (" ".join(label), str(column))
            name = cell.metric.label
            for run in cell.runs:
                own = [getattr(run, key) for key in plain]
                writer.writerow(
                    [*where, *own, name, cell.metric.of(run), "", *(getattr(run, k) for k in last)]
                )
            if cell.published:
                number = cell.published
                source = f"{table.spec.source}{' (unverified)' if number.unverified else ''}"
                value = number.word if number.value is None else number.value
                error = "" if number.error is None else number.error
                writer.writerow(
                    [*where, "", "", "", "published", name, value, error, "", "", source, ""]
                )
    return out.getvalue()
