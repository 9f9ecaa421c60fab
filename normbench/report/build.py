"""Assemble a report: read tables and claims, write every file that has changed."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from normbench.config.files import CLAIMS, TABLES, load, names
from normbench.errors import BadInput, choose_from
from normbench.report import recommendation
from normbench.report.cache import Cache, data_digest, stamp, write_if_changed
from normbench.report.claims import Claim, claims
from normbench.report.exports import (
    claims_csv,
    claims_markdown,
    latex_document,
    table_csv,
    table_latex,
    table_markdown,
)
from normbench.report.figure_kinds import CURVES, FORMATS, PROBE_FIGURES, FileFormat, figure_kinds
from normbench.report.table import Table
from normbench.report.table_spec import TableSpec, spec
from normbench.report.verdicts import ClaimResult
from normbench.results import read_run_history
from normbench.run_files import probe_file

PAGE = "index.html"
_TEXTS: Mapping[str, Callable[[Table], str]] = {
    ".md": table_markdown,
    ".csv": table_csv,
    ".tex": table_latex,
}


def specs(wanted: Sequence[str] = ()) -> list[TableSpec]:
    """Read the tables of reports/tables/ named in `wanted`, or all.

    Raises:
        BadInput: a table does not exist, or its file is invalid.
    """
    available = names(TABLES)
    for name in wanted:
        if name not in available:
            raise BadInput(f"table {name} is unknown; {choose_from(name, available)}")
    return [spec(name, load(TABLES / f"{name}.yaml")) for name in wanted or available]


def read_claims(tables: Sequence[TableSpec]) -> list[Claim]:
    """Read the claims of reports/claims/ about `tables`."""
    by_name = {table.name: table for table in tables}
    return [
        claim
        for file in names(CLAIMS)
        for claim in claims(file, load(CLAIMS / f"{file}.yaml"), by_name)
    ]


def suffixes(table: Table, runs: Path) -> list[str]:
    """Return the ends of the names of the files of a table: texts and figures."""
    figures = [f"{kind}.{form}" for kind in figure_kinds(table, runs) for form in FORMATS]
    return [*_TEXTS, *figures]


def write(
    tables: Sequence[Table], root: Path, runs: Path, formats: Sequence[FileFormat] = FORMATS
) -> list[Path]:
    """Write each table and its figures below `root`; return the files that are new or changed.

    Args:
        tables: to be written.
        root: folder of the report.
        runs: root of the runs or a study, for their histories and probes.
        formats: of the figures.
    """
    cache = Cache(root)
    changed = _write_tables(tables, cache, runs, formats)
    cache.save()
    return changed


def _write_tables(
    tables: Sequence[Table], cache: Cache, runs: Path, formats: Sequence[FileFormat]
) -> list[Path]:
    changed: list[Path] = []
    figures: list[_Figure] = []
    for table in tables:
        stem = cache.root / table.spec.name / table.slug
        texts = {_with_suffix(stem, end): text(table) for end, text in _TEXTS.items()}
        changed += cache.write(texts)
        for kind in figure_kinds(table, runs):
            paths = {form: _with_suffix(stem, f"{kind}.{form}") for form in formats}
            data = data_digest(*texts.values(), *_figure_data(table, kind, runs))
            # Per file: the page asks for svg only, and a png beside it may be older.
            if stale := {form: path for form, path in paths.items() if cache.is_stale(path, data)}:
                figures.append(_Figure(table, kind, stale, runs))
    return [*changed, *_draw(figures)]


def _figure_data(table: Table, kind: str, runs: Path) -> Iterator[str]:
    """Yield what a figure shows beside the numbers of its table."""
    for row in table.runs:
        yield row.finished
        folder = runs / row.sweep / row.id
        if kind == CURVES:
            yield stamp(folder / "history.csv") or str(read_run_history(runs, row))
        if kind in PROBE_FIGURES:
            yield stamp(probe_file(folder, PROBE_FIGURES[kind]) or folder)


@dataclass(frozen=True)
class _Figure:
    """A figure to be drawn, and its files by format."""

    table: Table
    kind: str
    paths: Mapping[FileFormat, Path]
    runs: Path

    def draw(self) -> list[Path]:
        # Imported here: matplotlib takes half a second, also of a report without new figures.
        from normbench.report.figure import DRAW
        from normbench.report.probe_figures import draw_table_probes

        formats = list(self.paths)
        files = (
            draw_table_probes(self.table, PROBE_FIGURES[self.kind], formats, self.runs)
            if self.kind in PROBE_FIGURES
            else DRAW[self.kind](self.table, formats, self.runs)
        )
        return [
            self.paths[form]
            for form, content in files.items()
            if write_if_changed(self.paths[form], content)
        ]


def _draw(figures: Sequence[_Figure]) -> list[Path]:
    # Starting a process takes as long as two figures.
    processes = min(len(os.sched_getaffinity(0)), len(figures) // 4)
    if processes < 2:
        written = [figure.draw() for figure in figures]
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            written = list(pool.map(_Figure.draw, figures, chunksize=4))
    return [path for paths in written for path in paths]


@dataclass(frozen=True)
class Report:
    """Content of a whole report.

    Args:
        tables: with runs, and those that have the paper's numbers alone.
        claims: judged in these tables.
        runs: root of the runs or a study.
    """

    tables: Sequence[Table]
    claims: Sequence[ClaimResult]
    runs: Path

    @property
    def with_runs(self) -> list[Table]:
        return [table for table in self.tables if table.runs]


def write_all(report: Report, root: Path, inputs: str) -> list[Path]:
    """Write tables, claims, recommendation, LaTeX document and page; return changed files.

    Args:
        report: to be written.
        root: folder of the report.
        inputs: digest of everything that the report depends on.
    """
    # Imported here: Jinja takes a tenth of a second that the tables after a sweep do not need.
    from normbench.report.page import page

    cache = Cache(root)
    changed = _write_tables(report.with_runs, cache, report.runs, ("svg",))  # the page embeds svg
    changed += cache.write(
        {
            root / "claims.md": claims_markdown(report.claims),
            root / "claims.csv": claims_csv(report.claims),
            root / "recommendation.md": recommendations(report.with_runs),
            root / "report.tex": latex_document([table_latex(each) for each in report.with_runs]),
            root / PAGE: page(report.tables, report.claims, root, root, report.runs),
        }
    )
    cache.save(inputs)
    return changed


def study_page(report: Report, root: Path) -> str:
    """Return the page of a study; its links start from `root`."""
    from normbench.report.page import page

    with TemporaryDirectory() as figures:
        _write_tables(report.with_runs, Cache(Path(figures)), report.runs, ("svg",))
        return page(report.tables, report.claims, Path(figures), root, report.runs)


def recommendations(tables: Sequence[Table]) -> str:
    """Return the recommendation for every setting, in Markdown."""
    parts = ["# Which normalizer\n", f"{recommendation.METHOD}\n"]
    for table in tables:
        if sentences := recommendation.sentences(table):
            parts.append(f"**{table.setting_text}**\n")
            parts += [f"- {sentence}" for sentence in sentences]
            parts.append("")
    return "\n".join(parts) + "\n"


def _with_suffix(stem: Path, end: str) -> Path:
    return stem.with_name(stem.name + end)  # Path.with_suffix would cut "seed=0.1"
