"""Recommend a normalizer, and make tables, figures and verdicts on claims, from finished runs.

    python -m normbench.report [TABLE ...] [runs=DIR] [out=DIR] [study=DIR]

TABLE is the name of a file in reports/tables/. Without one, the whole report is made:

    out/index.html           one page: recommendation, tables with their figures, claims
    out/recommendation.md    which normalizer for which number of images per worker
    out/claims.md, .csv      verdicts on the papers' claims
    out/report.tex           all tables as one LaTeX document
    out/TABLE/SETTING.*      each table alone: md, csv, tex and its figures

With TABLE, only these tables are printed and written, even if they have no runs. The recommendation
is printed first. Takes seconds and needs no torch. Damaged files, and files that cannot be written,
are named and left out; the exit code is 1 then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normbench import results
from normbench.config import cli
from normbench.errors import BadInput, count
from normbench.records.studies import STUDY, study_file
from normbench.report import build, recommendation
from normbench.report.cache import Cache, inputs_digest, write_if_changed
from normbench.report.claim_results import count_verdicts
from normbench.report.exports import table_markdown
from normbench.report.pivot import tables
from normbench.report.table import Table
from normbench.report.table_spec import TableSpec
from normbench.run_files import require_writable


@dataclass(frozen=True)
class ReportOptions:
    """Options of the command line."""

    runs: Path | None = cli.option(
        None, "folder of all sweeps (runs), or a study: its folder or its rows.jsonl.gz"
    )
    out: Path | None = cli.option(None, "where to write (reports)")
    study: Path | None = cli.option(
        None, "write the rows and curves of `runs` to DIR/rows.jsonl.gz and the page to "
        "DIR/index.html, and nothing else; without runs=, redraw the page of an existing study",
    )  # fmt: skip


@cli.command(
    "normbench.report",
    lambda: build.help_text(__doc__, ReportOptions),
    needs_all_files=True,
)
def main(arguments: Sequence[str]) -> int:
    """Make a report."""
    options, words = cli.parse_options(arguments, ReportOptions)
    wanted = [name for word in words for name in word.split(",")]
    specs = build.specs(wanted)
    if options.study:
        _write_study(specs, options.study, options)
        return 0
    runs, out = options.runs or Path("runs"), options.out or Path("reports")
    require_writable(out, f"out={out}", "use a writable folder, as out=reports")
    # A paper's table has the paper's numbers even without runs.
    if options.runs or not wanted or any(spec.axes for spec in specs):
        build.require_rows(runs)
    if wanted:
        _write_some(specs, runs, out)
        return 0
    inputs = inputs_digest(out, runs)  # before reading: rows written meanwhile count next time
    if Cache(out).is_current(inputs):
        print(f"nothing has changed since {out / build.PAGE} was made")
    else:
        _write_all(specs, runs, out, inputs)
    return 0


def _write_some(specs: Sequence[TableSpec], runs: Path, out: Path) -> None:
    printed = tables(specs, results.read(runs), empty=True, root=runs)
    _recommend(printed)
    for table in printed:
        print(table_markdown(table))
    changed = build.write(printed, out, runs)
    print("\n".join(f"wrote {path}" for path in changed) or "nothing has changed")


def _write_all(specs: Sequence[TableSpec], runs: Path, out: Path, inputs: str) -> None:
    report = build.read_report(specs, runs)
    changed = build.write_all(report, out, inputs)
    _recommend(report.with_runs)
    for table in report.with_runs:
        entries = list(table.entries)
        filled = f"{sum(bool(entry.values) for entry in entries)} of {len(entries)} entries"
        print(f"{table.spec.name}: {filled}, {count(len(table.runs), 'run')}, {table.slug}")
    if report.dropped:
        print(
            "left out unless named, because too few of their entries have runs to judge a claim: "
            + ", ".join(report.dropped)
        )
    print(f"verdicts on the papers' claims: {count_verdicts(report.claims)}")
    print(f"new or changed: {count(len(changed), 'file')}" if changed else "no file has changed")
    print(f"page: {out / build.PAGE}")


def _recommend(tables: Sequence[Table]) -> None:
    """Print the recommendation, if a table compares normalizers."""
    if any(map(recommendation.sentences, tables)):
        print(recommendation.markdown(tables))


def _write_study(specs: Sequence[TableSpec], study: Path, options: ReportOptions) -> None:
    """Write rows.jsonl.gz and index.html of a study."""
    if options.out:
        raise BadInput(f"out={options.out}: study={study} is where a study is written")
    path = study / STUDY
    runs = options.runs or (path if study_file(study) else Path("runs"))
    build.require_rows(runs)
    require_writable(study, f"study={study}", "use a writable folder")
    if study_file(runs) is None:
        try:
            results.write_study(path, runs, results.read(runs))
        except OSError as error:
            raise BadInput(
                f"{path} cannot be written ({error.strerror}); study=DIR can be elsewhere"
            ) from None
        print(f"wrote {path}")
    elif study_file(runs) != path:
        raise BadInput(f"runs={runs} is a study already; copy it to {study}")
    page = build.study_page(build.read_report(specs, path), study)
    write_if_changed(study / build.PAGE, page.encode())
    print(f"page: {study / build.PAGE}")


if __name__ == "__main__":
    cli.run(main)
