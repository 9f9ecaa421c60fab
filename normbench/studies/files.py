"""Join rows of sweeps and studies into one file, and write them as folders of runs again."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from normbench import results
from normbench.config.cells import title_of
from normbench.errors import BadInput, choose_from, count, for_screen
from normbench.records.history import History
from normbench.records.hits import write_hits
from normbench.records.studies import STUDY, study_file
from normbench.results import Row
from normbench.run_files import require_writable

Prefer = Literal["first", "last"] | None
Source = tuple[Path, Row]  # a row, and the root below which it was read

#: Fields of a row that are results of its training; the others describe it or its execution.
RESULTS = (
    "status", "train_loss", "train_top1", "val_top1", "test_top1", "test_top5", "test_loss",
    "test_images", "example_weighing", "sn_ratios",
)  # fmt: skip
MOST_LINES = 20  # about conflicts


def add(sweeps: Sequence[str], runs: Path, study: Path, prefer: Prefer) -> str:
    """Copy the rows of `sweeps` below `runs` into a study; return what was done, in one line.

    Raises:
        BadInput: a sweep has no rows, or a run has two results and `prefer` is None.
    """
    known = sorted({row.sweep for row in results.read(runs)})
    sources: list[Source] = []
    for sweep in sweeps:
        rows = results.read(runs, sweep=sweep)
        if not rows:
            raise BadInput(f"{sweep} has no rows below {runs}; {choose_from(sweep, known)}")
        sources += [(runs, row) for row in rows]
    return _extend(study, sources, prefer)


def merge(files: Sequence[Path], study: Path, prefer: Prefer) -> str:
    """Join the rows of studies into one; return what was done, in one line.

    Raises:
        BadInput: a file is no study, or a run has two results and `prefer` is None.
    """
    return _extend(study, [(file, row) for file in files for row in read_study(file)], prefer)


def restore(study: Path, runs: Path) -> str:
    """Write the runs of a study as folders below `runs`; return what was done, in one line.

    Runs that have a row there already are left as they are.

    Raises:
        BadInput: `study` is none, or `runs` cannot be written.
    """
    rows = read_study(study)
    require_writable(runs, f"runs={runs}", "use a writable folder")
    written = 0
    for row in rows:
        folder = runs / row.sweep / row.id
        if (folder / "row.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        if history := results.read_run_history(study, row):
            History(folder, history)
        if (hits := results.find_test_hits(study, row)) is not None:
            write_hits(folder, (bit == "1" for bit in format(hits, f"0{row.test_images}b")))
        results.write(folder, row)
        written += 1
    return f"{runs}: {count(written, 'run')} written, {len(rows) - written} there already"


def read_study(study: Path) -> list[Row]:
    if study_file(study) is None:
        raise BadInput(f"{study} is no study: neither a folder with {STUDY} nor such a file")
    return results.read(study)


def _extend(study: Path, sources: Iterable[Source], prefer: Prefer) -> str:
    """Add rows to a study, which may not exist yet; return what was done, in one line."""
    path = study / STUDY
    require_writable(study, f"study={study}", "use a writable folder")
    present = [(study, row) for row in results.read(study)] if study_file(study) else []
    chosen = {row.id: (root, row) for root, row in present}
    conflicts = []
    for root, row in sources:
        held = chosen.get(row.id)
        if held is not None and (difference := differences(held[1], row)):
            title = title_of(vars(row))
            conflicts.append(f"{title} ({row.id}): {difference} in {held[0]} and {root}")
            if prefer == "last":
                chosen[row.id] = root, row
        elif held is None:
            chosen[row.id] = root, row
    if conflicts and prefer is None:
        print("\n".join(map(for_screen, conflicts[:MOST_LINES])))
        more = f" ({len(conflicts) - MOST_LINES} more)" if len(conflicts) > MOST_LINES else ""
        raise BadInput(
            f"{count(len(conflicts), 'run')}{more} with two results, and nothing is written; "
            "prefer=first keeps those above that are named first, prefer=last the others"
        )
    results.write_study(path, chosen.values())
    new = len(chosen) - len(present)
    changed = f", {count(len(conflicts), 'conflict')} (prefer={prefer})" if conflicts else ""
    return f"{path}: {count(len(chosen), 'run')}, {new} new{changed}"


def differences(one: Row, other: Row) -> str:
    """Return in which results two rows of one run differ: "test_top1 90.8 and 90.6"; "" in none."""
    for name in RESULTS:
        first, second = getattr(one, name), getattr(other, name)
        if first != second:
            return f"{name} {_text(first)} and {_text(second)}"
    return ""


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
