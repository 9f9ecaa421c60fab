"""Figures of probes: the records that each one shows, and its files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from normbench.errors import DamagedFile, leave_out
from normbench.records.probes import Record, last_epoch, probe_file
from normbench.report.figure_files import RC_PARAMS, Files, save_figure
from normbench.report.figure_kinds import FileFormat
from normbench.report.probe_columns import read_probe
from normbench.report.probe_drawings import DRAW
from normbench.report.table import Table
from normbench.report.table_spec import Header, Label

#: Kinds drawn for one seed: curves over blocks and layers are not averaged.
ONE_SEED = ("spp", "power")


def draw(
    kind: str,
    records: Sequence[Record],
    title: str = "",
    forms: Sequence[FileFormat] = ("png", "pdf"),
) -> Files:
    """Return the files of a probe's figure; equal records give equal bytes."""
    style: dict[Any, Any] = {"font.size": 8, "axes.titlesize": 8, "legend.frameon": False}
    with mpl.rc_context({**RC_PARAMS, **style}):
        figure = DRAW[kind](records)
        if title:
            figure.suptitle(title, fontsize=9)
        return save_figure(figure, forms)


def draw_table_probes(table: Table, kind: str, forms: Sequence[FileFormat], runs: Path) -> Files:
    """Return the figure of a probe in the runs of `table`; each entry is one network.

    Kinds in `ONE_SEED` are drawn for the last epoch of the first seed, others for all seeds. A
    network of several entries, one for each metric, is drawn once.
    Damaged files are left out; if none is left, there is no figure.
    """
    records: list[Record] = []
    drawn: set[str] = set()
    for label, entries in table.lines.items():
        for column, entry in zip(table.columns, entries, strict=True):
            for row in sorted(entry.runs, key=lambda row: row.seed):
                if row.id in drawn:
                    continue
                drawn.add(row.id)
                network = {"network": _network_name(label, column), "seed": row.seed}
                network["panel"] = label[0] if len(label) > 1 else None
                if path := probe_file(runs / row.sweep / row.id, kind):
                    try:
                        measured = read_probe(path, kind)
                    except DamagedFile as damage:
                        leave_out(damage)
                        continue
                    records += [{**record, **network} for record in measured]
                    # The first seed that was probed stands for the entry.
                    if kind in ONE_SEED:
                        break
    if not records:
        return {}
    return draw(kind, last_epoch(records, "network") if kind in ONE_SEED else records, forms=forms)


def _network_name(label: Label, column: Header) -> str:
    """Return row and column of a network; a column of a metric alone tells nothing about it."""
    place = f"batch {column}" if str(column).isdigit() else str(column)
    return ", ".join([" ".join(label), *([place] if column.keys else [])])
