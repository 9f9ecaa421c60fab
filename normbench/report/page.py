"""The whole report as one page that needs no other file: tables, figures, claims, the answer."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from normbench.config.files import SWEEPS
from normbench.report import recommendation
from normbench.report.footnotes import MARK, SHARED, notes, one_computation, shared_cells, short
from normbench.report.plot_kinds import BATCH, CURVES, INSIDE, SIZES, kinds
from normbench.report.table import MISSING, Cell, Table, signed
from normbench.report.table_spec import FULL, Label, Spec
from normbench.report.trial import RULES, Trial, by_claim, counted
from normbench.results import Row

FILTERS = {"data": "Data set", "model": "Network", "reg": "Regularization"}
_CAPTIONS = {
    BATCH: "over images per worker: {statistic}, with the standard deviation over the seeds.",
    CURVES: "Top-1 accuracy over epochs, means of the seeds: training dotted, validation solid.",
    SIZES: "over parameters and multiply-adds of the network.",
    "-spp": "Signal propagation over residual blocks after the last epoch, first seeds.",
    "-power": "Power of the normalized maps over depth after the last epoch, first seeds.",
    "-ratios": "Ratios that switchable normalization learned, by receptive field, all seeds.",
    "-example_weight": "Images that count in their own statistics: validation images over alpha.",
}


def page(tables: Sequence[Table], trials: Sequence[Trial], root: Path, runs: Path) -> str:
    """The page; figures are taken from the files that were written below `root`.

    Args:
        tables: all, those without runs have the paper's numbers alone.
        trials: of the claims.
        root: where the page will lie; its links start from there.
        runs: root of the runs.
    """
    trained = [table for table in tables if table.runs]
    rows = list({row.id: row for table in trained for row in table.runs}.values())
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html").render(
        title="Normalizers over images per worker, beside the papers",
        summary=_summary(trained, rows),
        names=FILTERS,
        filters={key: sorted({str(getattr(row, key)) for row in rows}) for key in FILTERS},
        tables=[_table(table, root, runs) for table in trained],
        empty=[_table(table, root, runs) for table in tables if not table.runs],
        trials=_claims(trials, {anchor(table) for table in tables}),
        verdicts=counted(trials),
        rules=RULES,
        rules_of_advice=recommendation.RULES,
        answer=[part for table in trained for part in _answer(table)],
        provenance=_provenance(rows),
    )


def _summary(tables: Sequence[Table], rows: Sequence[Row]) -> str:
    data = ", ".join(sorted({row.data for row in rows})) or "no data set"
    return f"{len(rows)} runs on {data}, in {len(tables)} tables. A number leads to its runs."


def _provenance(rows: Sequence[Row]) -> str:
    commits = sorted({short(row.commit) for row in rows if row.commit})
    versions = sorted({f"{key} {value}" for row in rows for key, value in row.versions.items()})
    latest = max((row.finished for row in rows), default="")
    return f"Last run finished {latest}; commits {', '.join(commits)}; {', '.join(versions)}."


def anchor(table: Table) -> str:
    """Where a table stands on the page."""
    return re.sub(r"[^\w-]+", "_", f"{table.spec.name}-{table.slug}")


def _table(table: Table, root: Path, runs: Path) -> dict[str, Any]:
    own = anchor(table)
    head = _head([column.label for column in table.columns])
    listed = list(_runs(table, own, root, runs))
    return {
        "anchor": own,
        "title": table.spec.title,
        "source": table.spec.source,
        "sweep": table.spec.sweep,
        "heading": f"{table.heading} ({table.spec.source or table.spec.name})",
        "setting": table.described,
        "corner": table.corner,
        "levels": len(head),
        "head": head,
        "lines": list(_lines(table, own)),
        "notes": notes(table),
        "figures": [_figure(table, kind, own, root) for kind in kinds(table, runs)],
        "count": len(table.runs),
        "runs": listed,
        "data": _data(table.runs) if table.runs else _asked(table.spec),
    }


def _data(rows: Sequence[Row]) -> Mapping[str, str]:
    """What the filters ask for."""
    return {key: " ".join(sorted({str(getattr(row, key)) for row in rows})) for key in FILTERS}


def _asked(spec: Spec) -> Mapping[str, str]:
    """The same of the paper's runs; what its table does not say is nothing to filter by."""
    axes = [axis for axis in (spec.rows, spec.columns) if not isinstance(axis, str)]
    levels = [level for axis in axes for place in axis for level in place.wants]
    found: dict[str, set[str]] = {}
    for want in (spec.where or {}, spec.setting or {}, *(level[FULL] for level in levels)):
        for key in want.keys() & FILTERS.keys():
            values = want[key] if isinstance(want[key], list) else [want[key]]
            found.setdefault(key, set()).update(map(str, values))
    return {key: " ".join(sorted(values)) for key, values in found.items()}


def _head(labels: Sequence[Label]) -> list[list[tuple[str, int]]]:
    """The words of each level of the columns, with the number of columns below each."""
    levels = []
    for level in range(len(labels[0])):
        last = level == len(labels[0]) - 1
        widths = [
            (above[-1], len(list(group)))
            for above, group in groupby(labels, key=lambda label, k=level: label[: k + 1])  # type: ignore[misc]
        ]
        levels.append([(label[-1], 1) for label in labels] if last else widths)
    return levels


def _lines(table: Table, own: str) -> Iterator[dict[str, Any]]:
    best, same, shared = table.best(), one_computation(table), shared_cells(table)
    for at, (label, cells) in enumerate(table.lines.items()):
        yield {
            "label": " ".join(label),
            "mark": MARK if label in same else "",
            "cells": [
                {
                    "ours": cell.text(table.decimals(cell))
                    + (f" {SHARED}" if (label, index) in shared else ""),
                    "theirs": "" if cell.published is None else str(cell.published),
                    "difference": _difference(table, cell),
                    "best": (label, index) in best,
                    "link": f"{own}-{at}-{index}" if cell.runs else "",
                    "spoken": _spoken(label, table, index, cell),
                }
                for index, cell in enumerate(cells)
            ],
        }


def _spoken(label: Label, table: Table, index: int, cell: Cell) -> str:
    where = f"{' '.join(label)}, {table.columns[index]}"
    return f"{where}: {cell.text(table.decimals(cell))}; to its {len(cell.runs)} runs"


def _difference(table: Table, cell: Cell) -> str:
    found = table.difference(cell)
    return "" if found is None else signed(found, table.decimals(cell))


def _runs(table: Table, own: str, root: Path, runs: Path) -> Iterator[dict[str, Any]]:
    for at, (label, cells) in enumerate(table.lines.items()):
        for index, cell in enumerate(cells):
            for first, row in enumerate(cell.runs):
                value = cell.metric.of(row)
                number = MISSING if value is None else f"{value:.{table.decimals(cell) + 1}f}"
                yield {
                    "anchor": "" if first else f"{own}-{at}-{index}",
                    "cell": f"{' '.join(label)}, {table.columns[index]}",
                    "seed": row.seed,
                    "number": number if row.status == "ok" else f"{row.status}: {row.reason}",
                    "id": row.id,
                    "shared": row.shared_with,
                    "folder": _link(runs / row.sweep / row.id, root),
                    "sweep": row.sweep,
                    "file": _sweep_file(row.sweep, root),
                    "commit": short(row.commit) or "unknown",
                }


def _sweep_file(sweep: str, root: Path) -> str:
    path = SWEEPS / f"{sweep}.yaml"
    return _link(path, root) if path.exists() else ""


def _link(path: Path, root: Path) -> str:
    return quote(os.path.relpath(path, root))


def _figure(table: Table, kind: str, own: str, root: Path) -> dict[str, Any]:
    path = root / table.spec.name / f"{table.slug}{kind}.svg"
    caption = _CAPTIONS[kind].format(statistic=table.spec.statistic)
    if kind in (BATCH, SIZES):
        caption = f"{table.spec.label} {caption}"
    lines = ", ".join(" ".join(label) for label in table.lines)
    # Of a few letters: a figure has a hundred references.
    ids = "f" + hashlib.sha256(f"{own}{kind}".encode()).hexdigest()[:10]
    return {
        "svg": inline(path.read_text(), ids),
        "caption": caption,
        "inside": kind in INSIDE,
        "spoken": f"{table.heading}: {caption} {lines}",
    }


def inline(svg: str, own: str) -> str:
    """An SVG file as a part of a page: its black is the colour of text, and no id is met twice.

    Args:
        svg: content of the file.
        own: what its ids begin with. Figures have markers and clip paths of the same names, and
            what one of them refers to must not be in another, which may be hidden.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    svg = re.sub(
        r' id="([^"]+)"', lambda found: f' id="{own}-{found[1]}"' if found[1] in used else "", svg
    )
    svg = re.sub(r'(url\(|href=")#', rf"\1#{own}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("#000000", "currentColor")


def _claims(trials: Sequence[Trial], shown: Set[str]) -> dict[str, list[dict[str, Any]]]:
    """The claims of each paper, each with its trials; those without runs apart.

    Args:
        trials: of the claims.
        shown: anchors of the tables on the page.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for claim, own in by_claim(trials):
        bound = f" (bound {claim.bound:g})" if claim.bound else ""
        found.setdefault(claim.paper, []).append(
            {
                "says": claim.says + bound,
                "place": claim.place,
                "tried": [_trial(trial, shown) for trial in own if trial.table],
                "untried": [_trial(trial, shown) for trial in own if not trial.table],
            }
        )
    return found


def _trial(trial: Trial, shown: Set[str]) -> dict[str, Any]:
    place = anchor(trial.table) if trial.table else f"{trial.spec.name}-published"
    return {
        "evidence": trial.evidence,
        "word": trial.verdict.word,
        "reason": trial.verdict.reason,
        "effect": trial.effect,
        "seeds": trial.seeds,
        "table": trial.spec.name,
        "setting": trial.setting,
        "anchor": place if place in shown else "",  # a table with too few runs is left out
        "data": _data(trial.table.runs) if trial.table else _asked(trial.spec),
    }


def _answer(table: Table) -> Iterator[dict[str, Any]]:
    if found := recommendation.sentences(table):
        yield {
            "setting": table.described,
            "sentences": found,
            "data": _data(table.runs),
        }
