"""Assemble a report: read tables and claims, write every file that has changed."""

import glob
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from operator import call
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normbench import results
from normbench.config import cli
from normbench.config.files import CLAIMS, TABLES, load, names
from normbench.config.plan import usable_cores
from normbench.errors import (
    BadInput,
    DamagedFile,
    choose_from,
    leave_out,
    leave_out_again,
    left_out,
)  # fmt: skip
from normbench.records.probes import probe_file
from normbench.records.studies import study_file
from normbench.report import exports, latex, pivot, recommendation_text
from normbench.report.cache import (
    Cache,
    data_digest,
    leave_out_unwritten,
    stamp,
    write_if_changed,
)  # fmt: skip
from normbench.report.claim_results import ClaimResult
from normbench.report.claims import Claim, claims
from normbench.report.figure_kinds import CURVES, FORMATS, PROBE_FIGURES, FileFormat, figure_kinds
from normbench.report.table import Table
from normbench.report.table_spec import TableSpec, spec
from normbench.report.verdicts import judge_claims, tables_to_show
from normbench.run_files import remove_temporary_files, require_folder

PAGE = "index.html"
_TEXTS: Mapping[str, Callable[[Table], str]] = {
    ".md": exports.table_markdown,
    ".csv": exports.table_csv,
    ".tex": latex.table_latex,
}


@dataclass(frozen=True)
class Drawn:
    """A figure that was drawn."""

    changed: Sequence[Path]
    paths: Sequence[Path]  # also of files that have not changed
    left_out: Sequence[str]  # sentences


Drawing = Callable[[], Drawn]


@dataclass(frozen=True)
class Report:
    """Content of a whole report."""

    tables: Sequence[Table]  # with runs, or with the paper's numbers alone
    claims: Sequence[ClaimResult]
    dropped: Sequence[str]  # tables with too few runs to judge a claim
    runs: Path  # root of the runs, or a study
    complete: bool  # False if damaged files were left out

    @property
    def with_runs(self) -> list[Table]:
        return [table for table in self.tables if table.runs]


def help_text(description: str, options: type) -> str:
    """Return what --help prints of a command on tables, with `options` declared by `cli.option`."""
    return f"{description}\n{cli.describe(options)}\n\nTables: {', '.join(names(TABLES))}"


def specs(wanted: Sequence[str] = ()) -> list[TableSpec]:
    """Read the tables of reports/tables/ named in `wanted`, or all; invalid files are left out.

    Raises:
        BadInput: a table in `wanted` does not exist, or its file is invalid.
    """
    available = names(TABLES)
    for name in wanted:
        if name not in available:
            raise BadInput(f"table {name} is unknown; {choose_from(name, available)}")
    read = []
    for name in wanted or available:
        try:
            read.append(spec(name, load(TABLES / f"{name}.yaml")))
        except DamagedFile as damage:
            if wanted:
                raise
            leave_out(damage)
    return read


def reports_folder(runs: Path, chosen: Path | str | None) -> Path:
    """Return the folder for reports on `runs`: the chosen one, or one beside their rows."""
    if chosen is not None:
        return Path(chosen)
    study = study_file(runs)
    return (runs if study is None else study.parent) / results.REPORTS


def require_rows(root: Path) -> None:
    """Refuse a folder `root` without finished runs.

    Raises:
        BadInput: it has none, or is the folder of a single sweep.
    """
    if study_file(root):
        return
    require_folder(root)
    if results.row_files(root):
        return
    # Not Path.glob, which raises for a link to too long a name.
    if any(glob.iglob("*/row.json", root_dir=root)):  # noqa: PTH207
        raise BadInput(
            f"runs={root} is the folder of one sweep; use the folder of all sweeps, "
            f"as runs={root.parent}"
        )
    raise BadInput(f"runs={root} holds no finished run; `python -m normbench` trains")


def read_claims(specs: Sequence[TableSpec]) -> list[Claim]:
    """Read the claims of reports/claims/, which are about tables of `specs`.

    Invalid claims are left out, and so is a claim about a table whose file is invalid.
    """
    by_name = {spec.name: spec for spec in specs}
    invalid = {*names(TABLES)} - by_name.keys()
    read: list[Claim] = []
    for file in names(CLAIMS):
        try:
            raw = load(CLAIMS / f"{file}.yaml")
        except DamagedFile as damage:
            leave_out(damage)
            continue
        # Each claim alone, so that an invalid one is the only one to be left out.
        for part in _claims_alone(raw, invalid):
            try:
                read += claims(file, part, by_name)
            except DamagedFile as damage:
                leave_out(damage)
    return read


def judge_tables(tables: Sequence[Table]) -> list[ClaimResult]:
    """Judge the papers' claims about those of `tables` that have runs."""
    known = specs()
    results = judge_claims(read_claims(known), {spec.name: spec for spec in known}, tables)
    return [result for result in results if result.table is not None]


def _claims_alone(raw: Mapping[str, Any], invalid: Collection[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the content of a file with each of its claims alone, but those of `invalid` tables."""
    entries = raw.get("claims")
    if not isinstance(entries, Mapping):  # which is not valid
        yield raw
        return
    for name, entry in entries.items():
        tables = entry.get("tables") if isinstance(entry, Mapping) else None
        if not isinstance(tables, list) or not any(table in invalid for table in tables):
            yield {**raw, "claims": {name: entry}}


def read_report(specs: Sequence[TableSpec], runs: Path) -> Report:
    """Read the rows of `runs`, pivot them into tables and judge all claims."""
    with left_out() as sentences:
        rows = results.read(runs)
        claims_read = read_claims(specs)
        # The page lists tables of papers without runs, too.
        pivoted = pivot.tables(specs, rows, empty=True, root=runs)
        shown = tables_to_show(claims_read, pivoted)
        verdicts = judge_claims(claims_read, {spec.name: spec for spec in specs}, shown)
    leave_out_again(sentences)
    dropped = {table.spec.name for table in pivoted} - {table.spec.name for table in shown}
    return Report(shown, verdicts, sorted(dropped), runs, complete=not sentences)


def write(
    tables: Sequence[Table], root: Path, runs: Path, formats: Sequence[FileFormat] = FORMATS
) -> list[Path]:
    """Write each table and its figures below `root`; return the files that are new or changed.

    Figures are in `formats`, and in those in which they are there. `runs`, their root or a study,
    has the histories and probes that figures show.
    """
    cache = _open_cache(root, tables)
    changed = _write_tables(tables, cache, runs, formats)
    cache.save()
    return changed


def files_below(root: Path) -> set[Path]:
    """Return the files of a report before it is written, for `count_changes`."""
    files: set[Path] = set()
    for folder, folders, inside in os.walk(root):
        files |= {Path(folder, name) for name in inside}
        if folder != str(root):
            folders.clear()  # a report has one level of folders; `root` may have more
    return files


def count_changes(changed: Collection[Path], before: Collection[Path]) -> str:
    """Return how many of the `changed` files are new, and how many replace one of `before`."""
    replaced = sum(path in before for path in changed)
    numbers = {"new": len(changed) - replaced, "replaced": replaced}
    counts = [f"{number} {word}" for word, number in numbers.items() if number]
    return f"files: {', '.join(counts)}" if counts else "no file has changed"


def _open_cache(root: Path, tables: Sequence[Table]) -> Cache:
    """Return the cache of the report in `root`, and remove what a killed report has left there."""
    for folder in {root, *(root / table.spec.name for table in tables)}:
        remove_temporary_files(folder)
    return Cache(root)


def write_all(report: Report, root: Path, inputs: str) -> list[Path]:
    """Write tables, recommendation, claims, LaTeX document and page; return changed files.

    `inputs` is the digest of everything that the report depends on. Files that cannot be written,
    and damaged ones that cannot be drawn, are left out.
    """
    trained = report.with_runs
    cache = _open_cache(root, trained)
    with left_out() as sentences:
        changed = _write_tables(trained, cache, report.runs, ("svg",))  # the page embeds svg
        changed += cache.write(
            {
                root / "recommendation.md": recommendation_text.markdown(trained),
                root / "claims.md": exports.claims_markdown(report.claims),
                root / "claims.csv": exports.claims_csv(report.claims),
                root / "report.tex": latex.latex_document(trained),
                root / PAGE: _page(report, root, root),
            }
        )
    leave_out_again(sentences)
    # Otherwise the next report would not name what this one has left out.
    cache.save(inputs if report.complete and not sentences else "")
    return changed


def study_files(report: Report, root: Path) -> dict[Path, str]:
    """Return page, tables and, if any is tested, claims of a study in the folder `root`."""
    tables = report.with_runs
    documents = [exports.tables_markdown(tables)]
    if recommendation_text.recommending(tables):
        documents.insert(0, recommendation_text.markdown(tables))
    files = {root / "tables.md": "\n".join(documents)}
    if any(result.verdict.outcome != "untested" for result in report.claims):
        files[root / "claims.md"] = exports.claims_markdown(report.claims)
    with TemporaryDirectory() as figures:
        _write_tables(tables, Cache(Path(figures)), report.runs, ("svg",))
        return {root / PAGE: _page(report, Path(figures), root), **files}


def _page(report: Report, figures: Path, root: Path) -> str:
    # Imported here: Jinja takes a tenth of a second that the tables after a sweep do not need.
    from normbench.report.page import page

    return page(report.tables, report.claims, figures, root, report.runs)


def images(tables: Sequence[Table], root: Path, runs: Path) -> dict[str, Path]:
    """Return the PNG files of the figures of `tables` below `root`, by name of table and figure."""
    names = [
        f"{table.spec.name}/{table.slug}{kind}"
        for table in tables
        for kind in figure_kinds(table, runs)
    ]
    paths = {name: root / f"{name}.png" for name in names}
    return {name: path for name, path in paths.items() if path.is_file()}


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
            # The page asks for svg alone; a png that is there would go on showing older runs.
            possible = {form: Path(f"{stem}{kind}.{form}") for form in FORMATS}
            paths = {
                form: path for form, path in possible.items() if form in formats or path.exists()
            }
            if stale := {form: path for form, path in paths.items() if cache.is_stale(path, data)}:
                drawings.append(partial(_draw_figure, table, kind, stale, runs))
    for drawn in _draw_all(drawings):
        changed += drawn.changed
        leave_out_again(drawn.left_out)
        for path in drawn.paths if drawn.left_out else ():
            cache.forget(path)
    return changed


def _figure_data(table: Table, kind: str, runs: Path) -> Iterator[str]:
    """Yield what a figure shows beside the numbers of its table."""
    for row in table.runs:
        yield row.finished
        folder = runs / row.sweep / row.id
        if kind == CURVES:
            curve = stamp(folder / "history.csv")
            yield curve or str(study_file(runs) and results.read_run_history(runs, row))
        if kind in PROBE_FIGURES:
            yield stamp(probe_file(folder, PROBE_FIGURES[kind]) or folder)


def _draw_figure(table: Table, kind: str, paths: Mapping[FileFormat, Path], runs: Path) -> Drawn:
    """Draw a figure in each format of `paths`; without data that can be drawn, remove it."""
    # Imported here: matplotlib takes half a second, also of a report without new figures.
    from normbench.report.figure import draw
    from normbench.report.probe_figures import draw_table_probes

    with left_out() as sentences:  # of this process, which may be one of a pool
        if probe := PROBE_FIGURES.get(kind):
            files = draw_table_probes(table, probe, list(paths), runs)
        else:
            files = draw(table, kind, list(paths), runs)
        for form in paths.keys() - files.keys():
            with leave_out_unwritten(paths[form]):
                paths[form].unlink(missing_ok=True)
        changed = [paths[form] for form in files if write_if_changed(paths[form], files[form])]
    return Drawn(changed, list(paths.values()), sentences)


def _draw_all(drawings: Sequence[Drawing]) -> list[Drawn]:
    # Starting a process takes as long as two figures.
    processes = min(usable_cores(), len(drawings) // 4)
    if processes < 2:
        return list(map(call, drawings))
    try:
        # Spawned, as a fork of a process with threads may hang.
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            return list(pool.map(call, drawings, chunksize=4))
    except (BrokenProcessPool, OSError):  # one was killed, or cannot be started
        return list(map(call, drawings))
