"""The whole report as one self-contained page: tables, figures, claims, recommendation."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from normbench.config.files import SWEEPS
from normbench.report import recommendation
from normbench.report.figure_kinds import BATCH, CURVES, PROBE_FIGURES, SIZES, figure_kinds
from normbench.report.footnotes import (
    DAGGER,
    DOUBLE_DAGGER,
    footnotes,
    shared_entries,
    short_commit,
    single_computation_rows,
)
from normbench.report.table import MISSING, Entry, Table, format_difference
from normbench.report.table_spec import FULL, Label, TableSpec
from normbench.report.verdicts import METHOD, ClaimResult, count_verdicts, group_by_claim
from normbench.results import Row, study_file

FILTERS = {"data": "Data set", "model": "Network", "reg": "Regularization"}
_CAPTIONS = {
    BATCH: "over images per worker: {statistic} and standard deviation over seeds.",
    CURVES: "Top-1 accuracy over epochs, mean over seeds: training dotted, validation solid.",
    SIZES: "over parameters and multiply-adds of the network.",
    "-spp": "Signal propagation over residual blocks after the last epoch; first seed.",
    "-power": "Power of the normalized activations over depth after the last epoch; first seed.",
    "-ratios": "Ratios learned by switchable normalization, by receptive field; all seeds.",
    "-example_weight": "Weight alpha of an image in its own statistics: validation results.",
}


@dataclass(frozen=True)
class _Folders:
    """Folders that the page reads from and links to.

    Args:
        figures: where the svg files of the figures are.
        root: where the page will be; links are relative to it.
        runs: root of the runs, or a study.
    """

    figures: Path
    root: Path
    runs: Path

    def link(self, path: Path) -> str:
        return quote(os.path.relpath(path, self.root))


def page(
    tables: Sequence[Table], claims: Sequence[ClaimResult], figures: Path, root: Path, runs: Path
) -> str:
    """Return the page as HTML.

    Args:
        tables: with runs, and those that have the paper's numbers alone.
        claims: with their verdicts.
        figures: folder below which the figures of the tables were written.
        root: folder of the page; its links are relative to it.
        runs: root of the runs, or a study.
    """
    folders = _Folders(figures, root, runs)
    trained = [table for table in tables if table.runs]
    rows = list({row.id: row for table in trained for row in table.runs}.values())
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html").render(
        title="Normalizers over images per worker, compared with the papers",
        summary=_summary(trained, rows),
        names=FILTERS,
        filters={key: sorted({str(getattr(row, key)) for row in rows}) for key in FILTERS},
        tables=[_table(table, folders) for table in trained],
        empty=[_table(table, folders) for table in tables if not table.runs],
        claims=_claims(claims, {anchor(table) for table in tables}),
        verdicts=count_verdicts(claims),
        claims_method=METHOD,
        recommendation_method=recommendation.METHOD,
        recommendations=[part for table in trained for part in _recommendation(table)],
        provenance=_provenance(rows),
    )


def anchor(table: Table) -> str:
    """Return the id of a table on the page."""
    return re.sub(r"[^\w-]+", "_", f"{table.spec.name}-{table.slug}")


def _summary(tables: Sequence[Table], rows: Sequence[Row]) -> str:
    data = ", ".join(sorted({row.data for row in rows})) or "no data set"
    return f"{len(rows)} runs on {data}, in {len(tables)} tables. Each number links to its runs."


def _provenance(rows: Sequence[Row]) -> str:
    commits = sorted({short_commit(row.commit) for row in rows if row.commit})
    versions = sorted({f"{key} {value}" for row in rows for key, value in row.versions.items()})
    latest = max((row.finished for row in rows), default="")
    return f"Last run finished {latest}; commits {', '.join(commits)}; {', '.join(versions)}."


def _table(table: Table, folders: _Folders) -> dict[str, Any]:
    prefix = anchor(table)
    head = _head([column.label for column in table.columns])
    figures = figure_kinds(table, folders.runs) if table.runs else []
    return {
        "anchor": prefix,
        "title": table.spec.title,
        "source": table.spec.source,
        "sweep": table.spec.sweep,
        "heading": f"{table.heading} ({table.spec.source or table.spec.name})",
        "setting": table.setting_text,
        "corner": table.corner,
        "levels": len(head),
        "head": head,
        "lines": list(_lines(table, prefix)),
        "notes": footnotes(table),
        "figures": [_figure(table, kind, prefix, folders.figures) for kind in figures],
        "count": len(table.runs),
        "runs": list(_runs(table, prefix, folders)),
        "data": _filter_values(table.runs) if table.runs else _paper_filter_values(table.spec),
    }


def _filter_values(rows: Sequence[Row]) -> Mapping[str, str]:
    """Return the values by which a part of the page is filtered."""
    return {key: " ".join(sorted({str(getattr(row, key)) for row in rows})) for key in FILTERS}


def _paper_filter_values(spec: TableSpec) -> Mapping[str, str]:
    """Return the same of a table without runs, as far as it states the paper's options."""
    axes = [axis for axis in (spec.rows, spec.columns) if not isinstance(axis, str)]
    levels = [level for axis in axes for header in axis for level in header.conditions]
    values: dict[str, set[str]] = {}
    for options in (spec.where or {}, spec.setting or {}, *(level[FULL] for level in levels)):
        for key in options:
            if key not in FILTERS:
                continue
            choices = options[key] if isinstance(options[key], list) else [options[key]]
            values.setdefault(key, set()).update(map(str, choices))
    return {key: " ".join(sorted(values[key])) for key in FILTERS if key in values}


def _head(labels: Sequence[Label]) -> list[list[tuple[str, int]]]:
    """Return for each level of the column labels its words and how many columns each spans."""
    levels = []
    for level in range(len(labels[0])):
        last = level == len(labels[0]) - 1
        widths = [
            (above[-1], len(list(group)))
            for above, group in groupby(labels, key=lambda label, k=level: label[: k + 1])  # type: ignore[misc]
        ]
        levels.append([(label[-1], 1) for label in labels] if last else widths)
    return levels


def _lines(table: Table, prefix: str) -> Iterator[dict[str, Any]]:
    best = table.best()
    single, shared = single_computation_rows(table), shared_entries(table)
    for number, (label, entries) in enumerate(table.lines.items()):
        yield {
            "label": " ".join(label),
            "mark": DAGGER if label in single else "",
            "entries": [
                {
                    "ours": entry.text(table.decimals(entry))
                    + (f" {DOUBLE_DAGGER}" if (label, index) in shared else ""),
                    "theirs": "" if entry.published is None else str(entry.published),
                    "difference": _difference(table, entry),
                    "best": (label, index) in best,
                    "link": f"{prefix}-{number}-{index}" if entry.runs else "",
                    "spoken": _spoken(label, table, index, entry),
                }
                for index, entry in enumerate(entries)
            ],
        }


def _spoken(label: Label, table: Table, index: int, entry: Entry) -> str:
    """Return the label of a link for screen readers."""
    place = f"{' '.join(label)}, {table.columns[index]}"
    return f"{place}: {entry.text(table.decimals(entry))}; to its {len(entry.runs)} runs"


def _difference(table: Table, entry: Entry) -> str:
    difference = table.difference(entry)
    return "" if difference is None else format_difference(difference, table.decimals(entry))


def _runs(table: Table, prefix: str, folders: _Folders) -> Iterator[dict[str, Any]]:
    in_study = study_file(folders.runs) is not None
    for number, (label, entries) in enumerate(table.lines.items()):
        for index, entry in enumerate(entries):
            for position, row in enumerate(entry.runs):
                value = entry.metric.of(row)
                text = MISSING if value is None else f"{value:.{table.decimals(entry) + 1}f}"
                folder = "" if in_study else folders.link(folders.runs / row.sweep / row.id)
                yield {
                    "anchor": "" if position else f"{prefix}-{number}-{index}",
                    "entry": f"{' '.join(label)}, {table.columns[index]}",
                    "seed": row.seed,
                    "number": text if row.status == "ok" else f"{row.status}: {row.reason}",
                    "id": row.id,
                    "shared": row.shared_with,
                    "folder": folder,
                    "sweep": row.sweep,
                    "file": _sweep_file(row.sweep, folders),
                    "commit": short_commit(row.commit) or "unknown",
                }


def _sweep_file(sweep: str, folders: _Folders) -> str:
    path = SWEEPS / f"{sweep}.yaml"
    return folders.link(path) if path.exists() else ""


def _figure(table: Table, kind: str, prefix: str, figures: Path) -> dict[str, Any]:
    path = figures / table.spec.name / f"{table.slug}{kind}.svg"
    caption = _CAPTIONS[kind].format(statistic=table.spec.statistic)
    if kind in (BATCH, SIZES):
        caption = f"{table.spec.label} {caption}"
    lines = ", ".join(" ".join(label) for label in table.lines)
    # A short prefix: a figure has a hundred references.
    ids = "f" + hashlib.sha256(f"{prefix}{kind}".encode()).hexdigest()[:10]
    return {
        "svg": inline_svg(path.read_text(), ids),
        "caption": caption,
        "wide": kind in PROBE_FIGURES,
        "spoken": f"{table.heading}: {caption} {lines}",
    }


def inline_svg(svg: str, prefix: str) -> str:
    """Return an SVG file as part of a page: unique ids, black as the colour of text.

    Args:
        svg: content of the file.
        prefix: of all ids. Figures use the same ids for markers and clip paths; a reference must
            not lead into another figure, which may be hidden.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    svg = re.sub(
        r' id="([^"]+)"', lambda hit: f' id="{prefix}-{hit[1]}"' if hit[1] in used else "", svg
    )
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("#000000", "currentColor")


def _claims(results: Sequence[ClaimResult], anchors: Set[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the claims of each paper with their verdicts, those without runs apart.

    Args:
        results: of all claims.
        anchors: of the tables on the page.
    """
    papers: dict[str, list[dict[str, Any]]] = {}
    for claim, group in group_by_claim(results):
        papers.setdefault(claim.paper, []).append(
            {
                "says": claim.sentence,
                "place": claim.place,
                "tested": [_claim(result, anchors) for result in group if result.table],
                "untested": [_claim(result, anchors) for result in group if not result.table],
            }
        )
    return papers


def _claim(result: ClaimResult, anchors: Set[str]) -> dict[str, Any]:
    place = anchor(result.table) if result.table else f"{result.spec.name}-published"
    rows = result.table.runs if result.table else None
    return {
        "evidence": result.evidence,
        "outcome": result.verdict.outcome,
        "reason": result.verdict.reason,
        "effect": result.effect,
        "seeds": result.seeds,
        "table": result.spec.name,
        "setting": result.setting,
        "anchor": place if place in anchors else "",  # tables with too few runs are left out
        "data": _filter_values(rows) if rows else _paper_filter_values(result.spec),
    }


def _recommendation(table: Table) -> Iterator[dict[str, Any]]:
    if sentences := recommendation.sentences(table):
        yield {
            "setting": table.setting_text,
            "sentences": sentences,
            "data": _filter_values(table.runs),
        }
