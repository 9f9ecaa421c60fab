"""Join rows of sweeps and studies into one file, and write them as folders of runs again."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from normbench import results
from normbench.config.cells import title_of
from normbench.errors import BadInput, choose_from, count, for_screen, left_out, one_line
from normbench.records.history import History
from normbench.records.hits import write_hits
from normbench.records.studies import STUDY, study_file
from normbench.results import Row, find_test_hits
from normbench.run_files import is_locked, open_locked, require_writable

Prefer = Literal["first", "last"] | None
Source = tuple[Path, Row]  # a row, and the root below which it was read

#: Fields of a row that are results of its training; the others describe it or its execution.
RESULTS = (
    "status", "train_loss", "train_top1", "val_top1", "test_top1", "test_top5", "test_loss",
    "metrics", "example_weighing", "sn_ratios",
)  # fmt: skip
MAX_CONFLICT_LINES = 20
ALL = "*"  # in the place of the name of a sweep


def add(sweeps: Sequence[str], runs: Path, study: Path, prefer: Prefer) -> str:
    """Copy the rows of `sweeps` below `runs` into a study; return what was done, in one line.

    Raises:
        BadInput: a sweep has no rows, or a run has two results and `prefer` is None.
    """
    sources: list[Source] = []
    named = set(sweeps)
    if ALL in named:  # one by one, as `results.read` returns the latest of two results of a run
        sweeps = sorted({Path(path).parts[-3] for path in results.row_files(runs)}) or sweeps
    for sweep in sweeps:
        rows = results.read(runs, sweep=sweep)
        if not rows and sweep in named:
            known = sorted({row.sweep for row in results.read(runs)})
            raise BadInput(f"{sweep} has no rows below {runs}; {choose_from(sweep, known)}")
        sources += [(runs, row) for row in rows]
    return _extend(study, sources, prefer)


def merge(files: Sequence[Path], study: Path, prefer: Prefer) -> str:
    """Join the rows of studies into one; return what was done, in one line.

    Raises:
        BadInput: a file is not a study, or a run has two results and `prefer` is None.
    """
    return _extend(study, [(file, row) for file in files for row in read_study(file)], prefer)


def restore(study: Path, runs: Path) -> str:
    """Write the runs of a study as folders below `runs`; return what was done, in one line.

    Runs that are there already are left as they are, finished or not. A folder without a record,
    which a killed command left behind, is written again.

    Raises:
        BadInput: `study` is not one, or `runs` cannot be written.
    """
    rows = read_study(study)
    require_writable(runs, f"runs={runs}", "use a writable folder")
    written = 0
    try:
        for row in rows:
            folder = runs / row.sweep / row.id
            if any(folder.glob("*.json")) or is_locked(folder):
                continue
            folder.mkdir(parents=True, exist_ok=True)
            if history := results.read_run_history(study, row):
                History(folder, history)
            if (hits := find_test_hits(study, row)) is not None:
                write_hits(folder, (bit == "1" for bit in format(hits, f"0{row.test_images}b")))
            results.write(folder, row)
            written += 1
    except OSError as error:
        raise BadInput(f"runs={runs} cannot be written ({one_line(error)})") from None
    return f"{runs}: {count(written, 'run')} written, {len(rows) - written} there already"


def read_study(study: Path) -> list[Row]:
    """Return the rows of a study.

    Raises:
        BadInput: `study` is not one.
    """
    if study_file(study) is None:
        raise BadInput(f"{study} is not a study: neither a folder with {STUDY} nor such a file")
    return results.read(study)


def _extend(study: Path, sources: Iterable[Source], prefer: Prefer) -> str:
    """Add rows to a study, which may not exist yet; return what was done, in one line.

    Another command that extends the study at the same time waits until this one has written it.
    """
    require_writable(study, f"study={study}", "use a writable folder")
    with open_locked(study / ".lock", wait=True):
        return _extend_locked(study, sources, prefer)


def _extend_locked(study: Path, sources: Iterable[Source], prefer: Prefer) -> str:
    chosen = {row.id: (study, row) for row in _rows_of_old(study)}
    before, conflicts = len(chosen), dict[str, list[str]]()
    for root, row in sources:
        previous = chosen.get(row.id)
        if previous is None:
            chosen[row.id] = root, row
        elif not row.final:
            continue
        elif not previous[1].final:  # it ran out of memory, where this one ended
            chosen[row.id] = root, row
        elif difference := describe_difference(previous[1], row):
            places = f"{_place(*previous)} and {_place(root, row)}"
            conflicts.setdefault(row.id, []).append(
                f"{title_of(vars(row))} ({row.id}): {difference} in {places}"
            )
            if prefer == "last":
                chosen[row.id] = root, row
        elif find_test_hits(*previous) is None and find_test_hits(root, row) is not None:
            chosen[row.id] = root, row
    if conflicts and prefer is None:
        lines = [line for of_run in conflicts.values() for line in of_run]
        print("\n".join(map(for_screen, lines[:MAX_CONFLICT_LINES])))
        if (more := len(lines) - MAX_CONFLICT_LINES) > 0:
            print(f"... and {more} more")
        raise BadInput(
            f"{count(len(conflicts), 'run')} with two results, and nothing is written; "
            "prefer=first keeps the first result of each line above, prefer=last the last one"
        )
    try:
        results.write_study(study / STUDY, chosen.values())
    except OSError as error:
        raise BadInput(f"{study / STUDY} cannot be written ({one_line(error)})") from None
    resolved = f", {count(len(conflicts), 'conflict')} (prefer={prefer})" if conflicts else ""
    return f"{study / STUDY}: {count(len(chosen), 'run')}, {len(chosen) - before} new{resolved}"


def _rows_of_old(study: Path) -> list[Row]:
    """Return the rows that a study has already.

    Raises:
        BadInput: lines are damaged, which writing the file again would lose.
    """
    if study_file(study) is None:
        return []
    with left_out() as sentences:
        rows = results.read(study)
        for row in rows:
            find_test_hits(study, row)
    if sentences:
        raise BadInput(f"{sentences[0]} (nothing is written, because it would lose that line)")
    return rows


def describe_difference(one: Row, other: Row) -> str:
    """Return the first result that differs, as "test_top1 90.8 and 90.6", or "" if none does.

    Results that only one of the rows has, as rows of older versions lack some, do not count.
    """
    for name in RESULTS:
        first, second = getattr(one, name), getattr(other, name)
        if first != second and not (first in (None, {}) or second in (None, {})):
            return f"{name} {_text(first)} and {_text(second)}"
    return ""


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _place(root: Path, row: Row) -> str:
    return str(root) if study_file(root) else f"{root}/{row.sweep}"
