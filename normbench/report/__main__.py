"""Tables, figures, claims and a recommendation from finished runs, in seconds and without torch.

    python -m normbench.report [TABLE ...] [runs=DIR] [out=DIR]

TABLE is a file of reports/tables/ (default: all), runs the root folder of the runs (default: runs),
out where to write (default: reports). Without TABLE the whole report is made:

    out/index.html           one page: tables, figures, claims, recommendation; needs no other file
    out/claims.md, .csv      the papers' claims, judged by the rows and by the papers' numbers
    out/recommendation.md    which normalizer for so many images per worker
    out/report.tex           all tables as one document
    out/TABLE/SETTING.*      each table by itself: md, csv, tex, and its figures

With TABLE these tables are printed and written, also those that no run belongs to.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from normbench import results
from normbench.config import cli
from normbench.errors import BadInput, choose_from
from normbench.report import build, render
from normbench.report.cache import Made, fingerprint
from normbench.report.pivot import tables
from normbench.report.table import Table
from normbench.report.table_spec import Spec
from normbench.report.trial import counted, shown, trials
from normbench.run_files import require_writable


def main(arguments: Sequence[str]) -> int:
    """Make a report; the exit code is 2 if the command line cannot be used."""
    try:
        if {"-h", "--help"} & set(arguments):
            print(f"{__doc__}\nTables: {', '.join(spec.name for spec in build.specs())}")
            return 0
        folders, wanted = _parse(arguments)
        runs, out = folders["runs"], folders["out"]
        specs = build.specs(wanted)
        require_writable(out, f"out={out}", "use a writable folder, as out=reports")
        # Of a paper's table that is named there are the paper's numbers at the least.
        given = any(word.startswith("runs=") for word in arguments)
        if given or not wanted or not all(each.fixed for each in specs):
            results.require_rows(runs)
        if wanted:
            _some(specs, runs, out)
        elif Made(out).whole(fingerprint(out, runs)):
            print(f"nothing has changed since {out / build.PAGE} was made")
        else:
            _all(specs, runs, out)
    except BadInput as error:
        print(f"normbench.report: {error}", file=sys.stderr)
        return 2
    return 0


def _some(specs: Sequence[Spec], runs: Path, out: Path) -> None:
    made = tables(specs, results.read(runs), None, empty=True)
    for table in made:
        print(render.markdown(table))
    changed = build.write(made, out, runs)
    print("\n".join(f"wrote {path}" for path in changed) or "nothing has changed")


def _all(specs: Sequence[Spec], runs: Path, out: Path) -> None:
    of = fingerprint(out, runs)  # before the rows are read: who comes later is news next time
    made = tables(specs, results.read(runs), None, empty=True)
    claims = build.all_claims(specs)
    enough = shown(claims, made)
    judged = trials(claims, {spec.name: spec for spec in specs}, enough)
    report = build.Report(enough, judged, runs)
    changed = build.write_all(report, out, of)
    for table in report.with_runs:
        print(_line(table))
    if few := sorted({each.spec.name for each in made} - {each.spec.name for each in enough}):
        print(
            f"left out, unless named, as hardly any of their cells was trained and no claim can be "
            f"judged by them: {', '.join(few)}"
        )
    print(f"{len(judged)} verdicts on the papers' claims: {counted(judged)}")
    print(f"{len(changed)} files are new or changed" if changed else "no file has changed")
    print(f"all of it: {out / build.PAGE}")


def _line(table: Table) -> str:
    filled = sum(bool(cell.values) for cell in table.cells)
    all_ = sum(1 for _ in table.cells)
    return f"{table.spec.name}: {filled} of {all_} cells, {len(table.runs)} runs, {table.slug}"


def _parse(arguments: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    folders = {"runs": Path("runs"), "out": Path("reports")}
    wanted = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            wanted += argument.split(",")
        elif key in folders and value:
            folders[key] = Path(value)
        else:
            raise BadInput(f"{argument} is unknown; {choose_from(key, folders)}")
    return folders, wanted


if __name__ == "__main__":
    cli.run(main)
