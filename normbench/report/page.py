"""The whole report as one self-contained page: recommendation, curves, claims, tables.

`page.html` is the template; it takes tables, claims and rows as they are, and functions from here.
"""

import hashlib
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from normbench.config.files import SWEEPS, names
from normbench.errors import DamagedFile, count
from normbench.records.studies import study_file
from normbench.report import recommendation_text
from normbench.report.best import best_of_ours, best_published
from normbench.report.claim_results import (
    MEANINGS,
    METHOD,
    METHOD_TABLE,
    ClaimResult,
    count_verdicts,
    expect_by_chance,
    group_claims,
)  # fmt: skip
from normbench.report.figure_kinds import (
    CAPTIONS,
    CURVES,
    PROBE_FIGURES,
    curve_label,
    curve_splits,
    figure_kinds,
)
from normbench.report.footnotes import footnotes, short_commit
from normbench.report.repeats import covered_by_papers, repeats
from normbench.report.table import MISSING, Entry, Table
from normbench.report.table_spec import FULL, TableSpec
from normbench.report.titles import (
    comparison_title,
    is_twin,
    setting_title,
    short_source,
    table_title,
)
from normbench.results import PREDICTIONS, Row
from normbench.run_files import read_file

FILTERS = {"data": "Data set", "model": "Network", "reg": "Regularization"}


def page(
    tables: Sequence[Table], claims: Sequence[ClaimResult], figures: Path, root: Path, runs: Path
) -> str:
    """Return the page as HTML.

    Some `tables` have the paper's numbers alone. `figures` is the folder of their svg files, `root`
    that of the page, from which links start, and `runs` the root of the runs, or a study.
    """
    trained = [table for table in tables if table.runs]
    rows = list({row.id: row for table in trained for row in table.runs}.values())
    recommending = recommendation_text.recommending(trained)
    in_recommendation = {anchor(table) for table, _ in recommending}
    in_papers = {anchor(table) for table in covered_by_papers(trained)} - in_recommendation
    trained = [table for table in trained if anchor(table) not in in_papers]
    repeated = {anchor(table): other for table, other in repeats(trained)}
    shown = [table for table in trained if anchor(table) not in repeated]
    same_runs = {anchor(table): other for table, other in repeats(shown, published=False)}
    listed = [table for table in shown if anchor(table) not in same_runs]
    tested = [result for result in claims if result.table and result.verdict.outcome != "untested"]

    def link(path: Path) -> str:
        return quote(os.fsencode(os.path.relpath(path, root)))  # names of files need not be UTF-8

    # An undefined name in the template is an error, not an empty text.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["code"] = _mark_code
    return environment.get_template("page.html").render(
        title="Normalizers over images per worker, compared with the papers",
        summary=_summary(rows),
        provenance=_provenance(rows),
        filter_names=FILTERS,
        filters={key: sorted({str(getattr(row, key)) for row in rows}) for key in FILTERS},
        recommending=recommending,
        words=recommendation_text,
        shown=shown,
        tables=[table for table in trained if anchor(table) not in in_recommendation],
        repeated=repeated,
        same_runs=same_runs,
        anchors_of_runs=anchors_of_runs(listed),
        runs_of=runs_of,
        empty=[table for table in tables if not table.runs],
        papers=group_claims(tested),
        untested=group_claims([result for result in claims if result not in tested]),
        verdicts=f"{count_verdicts(claims)}. {expect_by_chance(claims)}",
        claims_method=METHOD,
        claims_method_table=METHOD_TABLE,
        meanings=MEANINGS,
        anchor=anchor,
        anchors={anchor(table) for table in tables},  # tables with too few runs are left out
        footnotes=footnotes,
        best_of_ours=best_of_ours,
        best_published=best_published,
        table_title=table_title,
        setting_title=setting_title,
        comparison_title=comparison_title,
        short_source=short_source,
        is_twin=is_twin,
        figures=lambda table: [*_figures(table, figures, runs)],
        pictures=lambda table: [*_pictures(table, runs)],
        filter_values=_filter_values,
        paper_filter_values=_paper_filter_values,
        number=_number,
        short_commit=short_commit,
        runs_link="" if study_file(runs) else link(runs),
        sweep_links={name: link(SWEEPS / f"{name}.yaml") for name in names(SWEEPS)},
    )


def _mark_code(text: str) -> Markup:
    """Return a text of Markdown whose only marks are backticks as HTML."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def anchor(table: Table) -> str:
    """Return the id of a table on the page."""
    return re.sub(r"[^\w-]+", "_", f"{table.spec.name}-{table.slug}")


def anchors_of_runs(tables: Sequence[Table]) -> dict[tuple[str, ...], str]:
    """Return the id on the page of the list of runs of each entry, by the ids of these runs."""
    return {
        runs_of(entry): f"{anchor(table)}-{line}-{column}"
        for table in reversed(tables)
        for line, entries in enumerate(table.lines.values())
        for column, entry in enumerate(entries)
        if entry.runs
    }


def runs_of(entry: Entry) -> tuple[str, ...]:
    """Return the ids of the runs of an entry."""
    return tuple(run.id for run in entry.runs)


def _summary(rows: Sequence[Row]) -> str:
    data = ", ".join(sorted({row.data for row in rows})) or "no data set"
    return f"{count(len(rows), 'run')} on {data}. Each number links to its runs."


def _provenance(rows: Sequence[Row]) -> str:
    commits = sorted({short_commit(row.commit) for row in rows if row.commit})
    versions = sorted({f"{key} {value}" for row in rows for key, value in row.versions.items()})
    latest = max((row.finished for row in rows), default="")
    return f"Last run finished {latest}; commits {', '.join(commits)}; {', '.join(versions)}."


def _filter_values(rows: Sequence[Row]) -> Mapping[str, str]:
    """Return the values by which a part of the page is filtered."""
    return {key: " ".join(sorted({str(getattr(row, key)) for row in rows})) for key in FILTERS}


def _paper_filter_values(spec: TableSpec) -> Mapping[str, str]:
    """Return the same of a table without runs, as far as it states the paper's options."""
    levels = [level for header in (*spec.rows, *spec.columns) for level in header.conditions]
    values: dict[str, set[str]] = {}
    for options in (spec.where, spec.setting, *(level[FULL] for level in levels)):
        for key in options.keys() & FILTERS.keys():
            choices = options[key] if isinstance(options[key], list) else [options[key]]
            values.setdefault(key, set()).update(map(str, choices))
    return {key: " ".join(sorted(values[key])) for key in FILTERS if key in values}


def _number(table: Table, entry: Entry, row: Row) -> str:
    """Return the number of a run as text, or why there is none."""
    if row.status != "ok":
        return f"{row.status}: {row.reason}"
    value = entry.metric.of(row)
    # A digit more than the mean in the table, so that runs can be told apart.
    return MISSING if value is None else f"{value:.{table.decimals(entry) + 1}f}"


def _figures(table: Table, figures: Path, runs: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of a table that could be drawn and written."""
    spec = table.spec
    lines = ", ".join(" ".join(label) for label in table.lines)
    for kind in figure_kinds(table, runs):
        path = figures / spec.name / f"{table.slug}{kind}.svg"
        try:
            svg = read_file(path).decode(errors="replace")
        except (FileNotFoundError, DamagedFile):
            continue
        curves = curve_label(table)
        caption = CAPTIONS[kind].format(
            label=spec.metric.label,
            statistic=spec.statistic,
            over=table.over,
            curves=curves[:1].upper() + curves[1:],
            splits=curve_splits(table),
        )
        # A short prefix: a figure has a hundred references.
        prefix = "f" + hashlib.sha256(f"{anchor(table)}{kind}".encode()).hexdigest()[:10]
        yield {
            "svg": inline_svg(svg, prefix),
            "caption": caption,
            "open": kind != CURVES and kind not in PROBE_FIGURES,
            "spoken": f"{table.heading}: {caption} {lines}",
        }


def _pictures(table: Table, runs: Path) -> Iterator[tuple[str, str]]:
    """Yield the predictions of the first run of each entry that has some, as text and data URI."""
    for label, entries in table.lines.items():
        for column, entry in zip(table.columns, entries, strict=True):
            for run in entry.runs[:1]:
                with suppress(FileNotFoundError, DamagedFile):
                    content = read_file(runs / run.sweep / run.id / PREDICTIONS)
                    source = f"data:image/png;base64,{b64encode(content).decode()}"
                    yield f"{' '.join(label)}, {column}, seed {run.seed}", source


def inline_svg(svg: str, prefix: str) -> str:
    """Return an SVG file as part of a page: unique ids, black as the colour of text.

    Figures use the same ids for markers and clip paths; with a `prefix` of its own, no reference
    leads into another figure, which may be hidden.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    svg = re.sub(
        r' id="([^"]+)"', lambda hit: f' id="{prefix}-{hit[1]}"' if hit[1] in used else "", svg
    )
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
    # Without a size of its own a figure fills the width that the page gives it.
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    # Hundredths of a point are enough, and half of the size.
    svg = re.sub(
        r"<(?:path|use|rect|text|g transform)[^>]*>", lambda tag: _DIGITS.sub("", tag[0]), svg
    )
    return re.sub(r"\s*\n\s*", "\n", svg).replace("#000000", "currentColor")


_DIGITS = re.compile(r"(?<=\d\.\d\d)\d+")
