"""List the runs of a folder by their state, or compare two of them, without torch.

    python -m normbench.status [runs=DIR] [STATE ...]
    python -m normbench.status compare RUN RUN [runs=DIR]

    finished      has a row; its status (ok, diverged, impossible, oom) also selects runs
    running       a process holds the run's lock; its step and loss are printed
    queued        its cluster job has not started
    interrupted   stopped by Ctrl-C or a signal; the same command resumes it
    failed        ended with an error, printed in one line; the traceback is in log.txt
    lost          its process was killed before it could write a state
    damaged       its row cannot be used, for the reason that is printed; reports leave it out

Runs of a sweep are in the order of its command lines. Each has its normalizer, batch, seed and what
differs from the defaults. A run of another machine counts as running while its files
change, and as lost after ten minutes.

`compare` prints on how many test images both runs are right, the first alone, the second alone, and
neither, with the p value of McNemar's exact test. RUN is an id, as in the list; runs=DIR may be a
study.
"""

import math
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normbench import results, run_files
from normbench.config import cli
from normbench.config.cells import title_of
from normbench.config.start import is_id
from normbench.errors import BadInput, DamagedFile, choose_from, count, printable
from normbench.records.history import last_record
from normbench.records.hits import TEST_HITS
from normbench.records.studies import study_file
from normbench.results import REPORTS, Row

FINISHED = ("ok", "diverged", "impossible", "oom")
STATES = ("running", "queued", "interrupted", "failed", "lost", "damaged", "finished", *FINISHED)
#: Seconds without a change after which a run of another machine counts as lost.
SILENCE = 600.0
MOST_LETTERS = 72  # of the column of titles; longer ones move the rest of their line


@dataclass(frozen=True)
class StatusOptions:
    """Options of the command line."""

    runs: Path = cli.option(Path("runs"), "root folder of all runs")


@dataclass(frozen=True)
class Run:
    """A run as one line of the list."""

    folder: Path
    state: str
    title: str
    more: str


def runs(root: Path) -> list[Run]:
    """Return all runs below `root`, by sweep and in the order of its grids.

    Runs of an older version, whose sweep has no list, follow by normalizer, batch and seed.
    """
    # Not by row.json: an unfinished run has only its state.
    folders = {path.parent for path in root.glob("*/*/*.json")}
    folders = {folder for folder in folders if folder.parent.name != REPORTS}
    # A search has folders of candidates, which have no row.
    folders = {each for each in folders if is_id(each.name) or (each / "row.json").exists()}
    places = {sweep: _places(sweep) for sweep in {folder.parent for folder in folders}}

    def place(run: Run) -> tuple[str, float, list[str | int], str]:
        sweep, id_ = run.folder.parent, run.folder.name
        words = [int(x) if x.isdecimal() else x for x in re.split("([0-9]+)", run.title)]
        return str(sweep), places[sweep].get(id_, math.inf), words, id_

    return sorted(map(_run, folders), key=place)


def _places(sweep: Path) -> dict[str, int]:
    """Return the place of each listed run of a sweep, by its id."""
    try:
        listed = run_files.read_order(sweep)
    except DamagedFile:
        return {}
    # Two commands at the same time may list a run twice: the first place counts.
    return {id_: place for place, id_ in reversed([*enumerate(listed)])}


def _run(folder: Path) -> Run:
    try:
        return _finished_run(folder, results.read_run(folder))
    except FileNotFoundError:
        return _open_run(folder)
    except DamagedFile as damage:
        return Run(folder, "damaged", "", str(damage))


def _finished_run(folder: Path, row: Row) -> Run:
    shared = f", shared with {row.shared_with}" if row.shared_with else ""
    return Run(folder, row.status, title_of(vars(row)), f"{row.outcome}{shared}")


def _open_run(folder: Path) -> Run:
    state = run_files.read_state(folder)
    phase, title = state.get("phase", "lost"), str(state.get("title", ""))
    more = str(state.get("error", ""))
    if record := last_record(folder):
        of = f" of {state['steps']}" if "steps" in state else ""
        loss = f", loss {record['train_loss']:.3f}" if "train_loss" in record else ""
        more = more or f"step {int(record['step'])}{of}{loss}"
    if phase == "queued":
        more = f"job {state.get('job', '')}"
    if os.path.lexists(folder / results.CHECKPOINT):
        resumption = run_files.describe_resumption(state)
        more = f"{more}, {resumption or 'has a checkpoint'}".lstrip(", ")
    if phase == "running" and not _is_running(folder):
        phase = "lost"
    return Run(folder, phase, title, more)


def _is_running(folder: Path) -> bool:
    if run_files.is_locked(folder):  # by a process of this machine; flock may not see others
        return True
    newest = max(map(_modified, folder.iterdir()))
    elsewhere = run_files.read_state(folder).get("host") != platform.node()
    return elsewhere and time.time() - newest < SILENCE


def _modified(path: Path) -> float:
    """Return when a file was changed; of one that is gone meanwhile, 0."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def compare(root: Path, words: Sequence[str]) -> str:
    """Return on how many test images two runs below `root` are right, as a line.

    Raises:
        BadInput: there are not two runs that have kept their hits on the same test images.
    """
    # Imported here: a list of runs needs neither.
    from normbench.report.image_intervals import same_test_images
    from normbench.report.statistics import mcnemar

    if len(words) != 2:
        raise BadInput("compare takes two runs, as `compare RUN RUN`; without it, runs are listed")
    if not study_file(root):
        run_files.require_folder(root)
    first, second = (_read_row(root, word) for word in words)
    a, b = (_read_hits(root, row) for row in (first, second))
    if not same_test_images(first, second):
        raise BadInput(
            f"{words[0]} and {words[1]} were not tested on the same images; take two runs of one "
            "data set"
        )
    both, only_a, only_b = (hits.bit_count() for hits in (a & b, a & ~b, b & ~a))
    images = first.test_images or 0
    titles = [title_of(vars(row)) for row in (first, second)]
    return (
        f"of {images} test images both are right on {both}, only {titles[0]} on {only_a}, "
        f"only {titles[1]} on {only_b}, neither on {images - both - only_a - only_b}; "
        f"McNemar's exact p = {mcnemar(only_a, only_b):.2g} (of these two trainings)"
    )


def _read_row(root: Path, word: str) -> Row:
    """Return the row of the run that `word` names, as SWEEP/ID or ID."""
    sweep, _, run = word.rpartition("/")
    if sweep and not study_file(root):  # of runs with the same id, that of this sweep
        folder = root / sweep / run
        rows = [results.read_run(folder)] if (folder / "row.json").is_file() else []
    else:
        rows = results.read(root, run)
    row = next((row for row in rows if row.id == run), None)
    if row is None:
        raise BadInput(
            f"{word} has no row in runs={root}; `python -m normbench.status finished` lists the "
            "runs that have one"
        )
    return row


def _read_hits(root: Path, row: Row) -> int:
    hits = results.find_test_hits(root, row)
    if hits is None:
        raise BadInput(
            f"{row.id} has no usable {TEST_HITS}, so it is not known which test images it "
            "classified correctly; the command that trained it, with force=true, keeps them"
        )
    return hits


@cli.command("normbench.status", lambda: f"{__doc__}\n{cli.describe(StatusOptions)}")
def main(arguments: Sequence[str]) -> int:
    """Print a line for each run and the number of runs in each state."""
    options, states = cli.parse_options(arguments, StatusOptions)
    root = options.runs
    if states[:1] == ["compare"]:
        print(compare(root, states[1:]))
        return 0
    for word in states:
        if word not in STATES:
            raise BadInput(
                f"{word} is no state; {choose_from(word, (*STATES, 'compare'))}, or runs=DIR"
            )
    run_files.require_folder(root)
    listed = runs(root)
    if "finished" in states:
        states += FINISHED
    shown = [run for run in listed if not states or run.state in states]
    width = min(MOST_LETTERS, max((len(printable(run.title)) for run in shown), default=0))
    for run in shown:
        place, title = (
            printable(f"{run.folder.parent.name}/{run.folder.name}"),
            printable(run.title),
        )
        print(f"{run.state:<12} {place:<22} {title:<{width}}  {printable(run.more)}".rstrip())
    counts = Counter(run.state for run in listed)
    total = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    print(f"{count(len(listed), 'run')} in {root}: {total}" if listed else f"no runs in {root}")
    return 0


if __name__ == "__main__":
    cli.run(main)
