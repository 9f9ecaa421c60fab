"""Recommend a normalizer, and make tables, figures and verdicts on claims, from finished runs.

    python -m normbench.report [TABLE ...] [runs=DIR] [reports=DIR] [study=DIR]

TABLE is the name of a file in reports/tables/. Without one, the whole report is made, in the folder
reports/ beside the rows:

    index.html           one page: recommendation, curves, claims, tables
    recommendation.md    which normalizer for which number of images per worker
    claims.md, .csv      verdicts on the papers' claims
    report.tex           all tables as one LaTeX document
    TABLE/SETTING.*      each table alone: md, csv, tex and its figures

With TABLE, only these tables are printed and written, even if they have no runs, and the verdicts
on claims about them are printed. The recommendation is printed first. Takes seconds and needs no
torch. Damaged files, and files that cannot be written, are named and left out; the exit code is 1
then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normbench import results
from normbench.config import cli
from normbench.config.output import terminal
from normbench.errors import BadInput, count
from normbench.records.studies import STUDY, study_file
from normbench.report import build
from normbench.report.cache import Cache, inputs_digest, write_if_changed
from normbench.report.claim_results import count_verdicts
from normbench.report.pivot import tables
from normbench.report.printout import print_recommendations, print_tables, print_verdicts
from normbench.report.table_spec import TableSpec
from normbench.run_files import require_writable


@dataclass(frozen=True)
class ReportOptions:
    """Options of the command line."""

    runs: Path | None = cli.option(
        None, "folder of all sweeps (runs), or a study: its folder or its rows.jsonl.gz"
    )
    reports: Path | None = cli.option(None, "where to write (DIR/reports of runs=DIR)")
    study: Path | None = cli.option(
        None, "write page, tables and claims of a study (normbench.studies), and nothing else",
    )  # fmt: skip


@cli.command(
    "normbench.report",
    lambda: build.help_text(__doc__, ReportOptions),
    needs_all_files=True,
)
def main(arguments: Sequence[str]) -> int:
    """Make a report."""
    for word in arguments:
        if word.startswith("out="):
            raise BadInput(f"{word} is unknown; reports={word[4:] or 'DIR'} chooses the folder")
    options, words = cli.parse_options(arguments, ReportOptions)
    wanted = [name for word in words for name in word.split(",")]
    specs = build.specs(wanted)
    if options.study:
        if options.runs or options.reports:
            raise BadInput(
                f"study={options.study} cannot be combined with runs= or reports=; leave them out"
            )
        _write_study(specs, options.study)
        return 0
    runs = options.runs or Path("runs")
    # A paper's table has the paper's numbers even without runs.
    if options.runs or not wanted or any(spec.axes for spec in specs):
        build.require_rows(runs)
    reports = build.reports_folder(runs, options.reports)
    require_writable(reports, f"reports={reports}", "use a writable folder, as reports=tables")
    if wanted:
        _write_some(specs, runs, reports)
        return 0
    inputs = inputs_digest(reports, runs)  # before reading: rows written meanwhile count next time
    if Cache(reports).is_current(inputs):
        print(f"nothing has changed since {reports / build.PAGE} was made")
    else:
        _write_all(specs, runs, reports, inputs)
    return 0


def _write_some(specs: Sequence[TableSpec], runs: Path, reports: Path) -> None:
    printed = tables(specs, results.read(runs), empty=True, root=runs)
    print_tables(printed, terminal())
    if any(table.runs and table.spec.paper for table in printed):
        print_verdicts(build.judge_tables(printed), terminal())
    before = build.files_below(reports)
    changed = build.write(printed, reports, runs)
    for path in changed:
        print(f"{'replaced' if path in before else 'new'}: {path}")
    for name in [spec.name for spec in specs if spec.name not in {t.spec.name for t in printed}]:
        print(
            f"{name}: none of the runs below {runs} fits its rows, columns and `where`, or with "
            "`tune` no entry has two values of that option"
        )
    if not changed:
        print("no file has changed")


def _write_all(specs: Sequence[TableSpec], runs: Path, reports: Path, inputs: str) -> None:
    report = build.read_report(specs, runs)
    before = build.files_below(reports)
    changed = build.write_all(report, reports, inputs)
    print_recommendations(report.with_runs, terminal())
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
    print(build.count_changes(changed, before))
    print(f"page: {reports / build.PAGE}")


def _write_study(specs: Sequence[TableSpec], study: Path) -> None:
    """Write index.html, tables.md and claims.md into the folder of a study."""
    if study_file(study) is None:
        raise BadInput(
            f"study={study} has no {STUDY}; `python -m normbench.studies add SWEEP study={study}` "
            "makes a study"
        )
    require_writable(study, f"study={study}", "use a writable folder")
    files = build.study_files(build.read_report(specs, study / STUDY), study)
    for path, text in files.items():
        write_if_changed(path, text.encode())
    print(f"page: {study / build.PAGE}")


if __name__ == "__main__":
    cli.run(main)
