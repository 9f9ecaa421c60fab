"""Files of tables and claims in, rows in; a report out. What did not change is not made again."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from normbench.config.files import CLAIMS, TABLES, load, names
from normbench.errors import BadInput, choose_from
from normbench.report import latex, recommendation, render, trial
from normbench.report.cache import Made, digest, put, stamp
from normbench.report.claims import Claim, claims
from normbench.report.plot_kinds import CURVES, FORMS, INSIDE, Form, kinds
from normbench.report.table import Table
from normbench.report.table_spec import Spec, spec
from normbench.report.trial import Trial
from normbench.run_files import probe_file

PAGE = "index.html"
_TEXTS: Mapping[str, Callable[[Table], str]] = {
    ".md": render.markdown,
    ".csv": render.numbers,
    ".tex": latex.latex,
}


def specs(wanted: Sequence[str] = ()) -> list[Spec]:
    """The tables of reports/tables/, all or those that are `wanted`.

    Raises:
        BadInput: one of them does not exist, or its file is none.
    """
    known = names(TABLES)
    for name in wanted:
        if name not in known:
            raise BadInput(f"table {name} is unknown; {choose_from(name, known)}")
    return [spec(name, load(TABLES / f"{name}.yaml")) for name in wanted or known]


def all_claims(known: Sequence[Spec]) -> list[Claim]:
    """The claims of reports/claims/."""
    by_name = {each.name: each for each in known}
    files = names(CLAIMS)
    return [each for file in files for each in claims(file, load(CLAIMS / f"{file}.yaml"), by_name)]


def forms(table: Table, runs: Path) -> list[str]:
    """The endings of the files that a table by itself is written to."""
    drawn = [f"{kind}.{form}" for kind in kinds(table, runs) for form in FORMS]
    return [*_TEXTS, *drawn]


def write(
    tables: Sequence[Table], root: Path, runs: Path, drawn: Sequence[Form] = FORMS
) -> list[Path]:
    """Write each table below `root` in all forms, with its figures; what is new or changed.

    Args:
        tables: to write.
        root: where to.
        runs: root of the runs, for their curves.
        drawn: forms of the figures.
    """
    made = Made(root)
    changed = _write(tables, made, runs, drawn)
    made.keep()
    return changed


def _write(tables: Sequence[Table], made: Made, runs: Path, drawn: Sequence[Form]) -> list[Path]:
    changed: list[Path] = []
    figures: list[_Figure] = []
    for table in tables:
        stem = made.root / table.spec.name / table.slug
        texts = {_beside(stem, end): text(table) for end, text in _TEXTS.items()}
        changed += made.write(texts)
        for kind in kinds(table, runs):
            paths = {form: _beside(stem, f"{kind}.{form}") for form in drawn}
            own = digest(*texts.values(), *_seen(table, kind, runs))
            # The page's are svg alone: a png beside it may show older runs.
            if stale := {form: path for form, path in paths.items() if made.stale(path, own)}:
                figures.append(_Figure(table, kind, stale, runs))
    return [*changed, *_draw(figures)]


def _seen(table: Table, kind: str, runs: Path) -> Iterator[str]:
    """What a figure shows beside the numbers of its table."""
    for row in table.runs:
        yield row.finished
        folder = runs / row.sweep / row.id
        if kind == CURVES:
            yield stamp(folder / "history.csv")
        if kind in INSIDE:
            yield stamp(probe_file(folder, INSIDE[kind]) or folder)


@dataclass(frozen=True)
class _Figure:
    """A figure to be drawn, its files by their forms."""

    table: Table
    kind: str
    paths: Mapping[Form, Path]
    runs: Path

    def draw(self) -> list[Path]:
        # matplotlib takes half a second to import, which a report without news should not pay.
        from normbench.report.figure import DRAW
        from normbench.report.probe_figures import draw_table_probes

        forms = list(self.paths)
        drawn = (
            draw_table_probes(self.table, INSIDE[self.kind], forms, self.runs)
            if self.kind in INSIDE
            else DRAW[self.kind](self.table, forms, self.runs)
        )
        written = [put(self.paths[form], content) for form, content in drawn.items()]
        return [path for path in written if path]


def _draw(figures: Sequence[_Figure]) -> Iterator[Path]:
    workers = min(
        len(os.sched_getaffinity(0)), len(figures) // 4
    )  # a process starts in the time of two figures
    if workers < 2:
        found = [figure.draw() for figure in figures]
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            found = list(pool.map(_Figure.draw, figures, chunksize=4))
    return (path for paths in found for path in paths)


@dataclass(frozen=True)
class Report:
    """All that a report is about."""

    tables: Sequence[Table]
    trials: Sequence[Trial]
    runs: Path

    @property
    def with_runs(self) -> list[Table]:
        return [table for table in self.tables if table.runs]


def write_all(report: Report, root: Path, of: str) -> list[Path]:
    """The whole report: tables, claims, recommendation, LaTeX, and the page that has them all.

    Args:
        report: to write.
        root: where to.
        of: the fingerprint of all that it is made of.
    """
    # Jinja takes a tenth of a second that a sweep's own tables need not pay.
    from normbench.report.page import page

    made = Made(root)
    changed = _write(report.with_runs, made, report.runs, ("svg",))  # the page has these inside
    changed += made.write(
        {
            root / "claims.md": trial.markdown(report.trials),
            root / "claims.csv": trial.numbers(report.trials),
            root / "recommendation.md": advice(report.with_runs),
            root / "report.tex": latex.document([latex.latex(each) for each in report.with_runs]),
            root / PAGE: page(report.tables, report.trials, root, report.runs),
        }
    )
    made.finish(of)
    return changed


def advice(tables: Sequence[Table]) -> str:
    """The recommendation for every setting, in Markdown."""
    parts = ["# Which normalizer\n", f"{recommendation.RULES}\n"]
    for table in tables:
        if found := recommendation.sentences(table):
            parts.append(f"**{table.described}**\n")
            parts += [f"- {sentence}" for sentence in found]
            parts.append("")
    return "\n".join(parts) + "\n"


def _beside(stem: Path, end: str) -> Path:
    return stem.with_name(stem.name + end)  # with_suffix would take "seed=0.1" apart
