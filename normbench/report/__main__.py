"""Tables and figures from finished runs, in seconds and without torch.

    python -m normbench.report [TABLE ...] [runs=DIR] [out=DIR]

TABLE is a file of reports/tables/ (default: all), runs the root folder of the runs (default: runs),
out where to write (default: reports).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from normbench import results
from normbench.errors import BadInput, choose_from
from normbench.report import build, render
from normbench.report.table import tables


def main(arguments: Sequence[str]) -> int:
    """Regenerate tables; the exit code is 2 if the command line cannot be used."""
    if {"-h", "--help"} & set(arguments):
        print(f"{__doc__}\nTables: {', '.join(spec.name for spec in build.specs())}")
        return 0
    try:
        folders, wanted = _parse(arguments)
        specs = build.specs(wanted)
        rows = results.read(folders["runs"])
        out = folders["out"]
        results.writable(out, f"out={out}", "name a folder that can, as in out=reports")
        if not rows:
            raise BadInput(_nothing_in(folders["runs"]))
    except BadInput as error:
        print(f"normbench.report: {error}", file=sys.stderr)
        return 2
    made = tables(specs, rows, None)
    for table in made:
        print(render.markdown(table))
    changed = build.write(made, folders["out"])
    print("\n".join(f"wrote {path}" for path in changed) or "nothing has changed")
    return 0


def _nothing_in(root: Path) -> str:
    if any(root.glob("*/row.json")):
        return (
            f"runs={root} is the folder of one sweep; name the root of all, as runs={root.parent}"
        )
    return f"runs={root} holds no finished run; `python -m normbench` trains"


def _parse(arguments: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    folders = {"runs": Path("runs"), "out": Path("reports")}
    wanted = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            wanted.append(argument)
        elif key in folders and value:
            folders[key] = Path(value)
        else:
            raise BadInput(f"{argument} is unknown; {choose_from(key, folders)}")
    return folders, wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
