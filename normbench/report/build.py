"""Assemble a report: read tables and claims, write every file that has changed."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from operator import call
from pathlib import Path
from tempfile import TemporaryDirectory

from normbench import results
from normbench.config import cli
from normbench.config.files import CLAIMS, TABLES, load, names
from normbench.errors import BadInput, choose_from
from normbench.report import exports, pivot, recommendation
from normbench.report.cache import Cache, data_digest, stamp, write_if_changed
from normbench.report.claims import Claim, claims
from normbench.report.figure_kinds import CURVES, FORMATS, PROBE_FIGURES, FileFormat, figure_kinds
from normbench.report.table import Table
from normbench.report.table_spec import TableSpec, spec
from normbench.report.verdicts import ClaimResult, judge_claims, tables_to_show
from normbench.run_files import probe_file

PAGE = "index.html"
Drawing = Callable[[], list[Path]]  # draws a figure, returns its files that have changed
_TEXTS: Mapping[str, Callable[[Table], str]] = {
    ".md": exports.table_markdown,
    ".csv": exports.table_csv,
    ".tex": exports.table_latex,
}


@dataclass(frozen=True)
class Report:
    """Content of a whole report."""

    tables: Sequence[Table]  # with runs, or with the paper's numbers alone
    claims: Sequence[ClaimResult]
    dropped: Sequence[str]  # tables with too few runs to judge a claim
    runs: Path  # root of the runs, or a study

    @property
    def with_runs(self) -> list[Table]:
        return [table for table in self.tables if table.runs]


def help_text(description: str, options: type) -> str:
    """Return what --help prints of a command on tables, with `options` declared by `cli.option`."""
    return f"{description}\n{cli.describe(options)}\n\nTables: {', '.join(names(TABLES))}"


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


def read_claims(specs: Sequence[TableSpec]) -> list[Claim]:
    """Read the claims of reports/claims/, which are about tables of `specs`."""
    by_name = {spec.name: spec for spec in specs}
    return [
        claim
        for file in names(CLAIMS)
        for claim in claims(file, load(CLAIMS / f"{file}.yaml"), by_name)
    ]


def read_report(specs: Sequence[TableSpec], runs: Path) -> Report:
    """Read the rows of `runs`, pivot them into tables and judge all claims."""
    # The page lists tables of papers without runs, too.
    pivoted = pivot.tables(specs, results.read(runs), empty=True)
    claims = read_claims(specs)
    shown = tables_to_show(claims, pivoted)
    verdicts = judge_claims(claims, {spec.name: spec for spec in specs}, shown)
    dropped = {table.spec.name for table in pivoted} - {table.spec.name for table in shown}
    return Report(shown, verdicts, sorted(dropped), runs)


def write(
    tables: Sequence[Table], root: Path, runs: Path, formats: Sequence[FileFormat] = FORMATS
) -> list[Path]:
    """Write each table and its figures below `root`; return the files that are new or changed.

    `runs`, their root or a study, has the histories and probes that figures show.
    """
    cache = Cache(root)
    changed = _write_tables(tables, cache, runs, formats)
    cache.save()
    return changed


def write_all(report: Report, root: Path, inputs: str) -> list[Path]:
    """Write tables, recommendation, claims, LaTeX document and page; return changed files.

    `inputs` is the digest of everything that the report depends on.
    """
    cache = Cache(root)
    trained = report.with_runs
    changed = _write_tables(trained, cache, report.runs, ("svg",))  # the page embeds svg
    changed += cache.write(
        {
            root / "recommendation.md": recommendation.markdown(trained),
            root / "claims.md": exports.claims_markdown(report.claims),
            root / "claims.csv": exports.claims_csv(report.claims),
            root / "report.tex": exports.latex_document(trained),
            root / PAGE: _page(report, root, root),
        }
    )
    cache.save(inputs)
    return changed


def study_page(report: Report, root: Path) -> str:
    """Return the page of a study; its links start from `root`."""
    with TemporaryDirectory() as figures:
        _write_tables(report.with_runs, Cache(Path(figures)), report.runs, ("svg",))
        return _page(report, Path(figures), root)


def _page(report: Report, figures: Path, root: Path) -> str:
    # Imported here: Jinja takes a tenth of a second that the tables after a sweep do not need.
    from normbench.report.page import page

    return page(report.tables, report.claims, figures, root, report.runs)


def suffixes(table: Table, runs: Path) -> list[str]:
    """Return the ends of the names of the files of a table: texts and figures."""
    figures = [f"{kind}.{form}" for kind in figure_kinds(table, runs) for form in FORMATS]
    return [*_TEXTS, *figures]


def _write_tables(
    tables: Sequence[Table], cache: Cache, runs: Path, formats: Sequence[FileFormat]
) -> list[Path]:
    changed: list[Path] = []
    drawings: list[Drawing] = []
    for table in tables:
        stem = f"{cache.root / table.spec.name / table.slug}"
        texts = {Path(stem + end): text(table) for end, text in _TEXTS.items()}
        changed += cache.write(texts)
        for kind in figure_kinds(table, runs):
            data = data_digest(*texts.values(), *_figure_data(table, kind, runs))
            paths = {form: Path(f"{stem}{kind}.{form}") for form in formats}
            # Per file: the page asks for svg only, and a png beside it may be older.
            if stale := {form: path for form, path in paths.items() if cache.is_stale(path, data)}:
                drawings.append(partial(_draw_figure, table, kind, stale, runs))
    return [*changed, *_draw_all(drawings)]


def _figure_data(table: Table, kind: str, runs: Path) -> Iterator[str]:
    """Yield what a figure shows beside the numbers of its table."""
    for row in table.runs:
        yield row.finished
        folder = runs / row.sweep / row.id
        if kind == CURVES:
            yield stamp(folder / "history.csv") or str(results.read_run_history(runs, row))
        if kind in PROBE_FIGURES:
            yield stamp(probe_file(folder, PROBE_FIGURES[kind]) or folder)


def _draw_figure(
    table: Table, kind: str, paths: Mapping[FileFormat, Path], runs: Path
) -> list[Path]:
    """Draw a figure in each format of `paths`; return the files that have changed."""
    # Imported here: matplotlib takes half a second, also of a report without new figures.
    from normbench.report.figure import draw
    from normbench.report.probe_figures import draw_table_probes

    if probe := PROBE_FIGURES.get(kind):
        files = draw_table_probes(table, probe, list(paths), runs)
    else:
        files = draw(table, kind, list(paths), runs)
    return [paths[form] for form in files if write_if_changed(paths[form], files[form])]


def _draw_all(drawings: Sequence[Drawing]) -> list[Path]:
    # Starting a process takes as long as two figures.
    processes = min(len(os.sched_getaffinity(0)), len(drawings) // 4)
    if processes < 2:
        written = list(map(call, drawings))
    else:
        # Spawned, as a fork of a process with threads may hang.
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            written = list(pool.map(call, drawings, chunksize=4))
    return [path for paths in written for path in paths]
