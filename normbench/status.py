"""The runs in a folder by their state, without torch.

    python -m normbench.status [runs=DIR] [STATE ...]

    finished      there is a row; also as ok, diverged, impossible, oom
    running       a process holds the run: the step, the time of its last sign
    queued        a job of a cluster waits
    interrupted   stopped by Ctrl-C or a signal; the same command goes on from the last checkpoint
    failed        an error, in a line; the trace is in log.txt
    lost          neither: its process was killed, and nobody was left to say so

A run counts as running while its lock is held, and on other machines while its curve grows.
"""

import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from normbench import results, run_files
from normbench.config import cli
from normbench.config.files import default_choices
from normbench.errors import BadInput, choose_from
from normbench.results import last_record

FINISHED = ("ok", "diverged", "impossible", "oom")
STATES = ("running", "queued", "interrupted", "failed", "lost", "finished", *FINISHED)
#: Seconds without a sign after which a run of another machine counts as lost.
SILENCE = 600.0


@dataclass(frozen=True)
class Run:
    """A run's folder and what it says."""

    folder: Path
    state: str
    title: str
    more: str


def runs(root: Path) -> Iterator[Run]:
    """All runs below `root`, by sweep and id."""
    for folder in sorted({path.parent for path in root.glob("*/*/*.json")}):
        yield _finished(folder) if (folder / "row.json").exists() else _open(folder)


def _finished(folder: Path) -> Run:
    row = results.read_row(folder / "row.json")
    plain = [f"{name}={getattr(row, name)}" for name in ("batch", "seed", "model", "data")]
    usual = {**default_choices(), "precision": "32-true"}
    unusual = [
        f"{name}={getattr(row, name)}"
        for name in ("reg", "recipe", "protocol", "precision")
        if getattr(row, name) != usual[name]
    ]
    title = " ".join([row.norm, *plain, f"workers={row.workers}", *unusual])
    shared = f", shared with {row.shared_with}" if row.shared_with else ""
    measured = row.reason or f"test {row.test_top1:.1f} %"
    return Run(folder, row.status, f"{title} {row.options}".strip(), f"{measured}{shared}")


def _open(folder: Path) -> Run:
    state = run_files.read_state(folder)
    phase, title = state.get("phase", "lost"), state.get("title", "")
    more = state.get("error", "")
    if record := last_record(folder):
        of = f" of {state['steps']}" if "steps" in state else ""
        more = more or f"step {int(record['step'])}{of}, loss {record['train_loss']:.3f}"
    if (folder / results.CHECKPOINT).exists():
        more = f"{more}, has a checkpoint".lstrip(", ")
    if phase == "queued":
        more = f"job {state.get('job', '')}"
    if phase == "running" and not _alive(folder):
        phase = "lost"
    return Run(folder, phase, title, more)


def _alive(folder: Path) -> bool:
    if run_files.is_locked(folder):
        return True
    newest = max(path.stat().st_mtime for path in folder.iterdir())
    elsewhere = run_files.read_state(folder).get("host") != platform.node()
    return elsewhere and time.time() - newest < SILENCE


def main(arguments: Sequence[str]) -> int:
    """Print a line for each run, and how many there are of each state."""
    if {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return 0
    root, wanted = Path("runs"), []
    try:
        for word in arguments:
            key, _, value = word.partition("=")
            if key == "runs" and value:
                root = Path(value).expanduser()
            elif word in STATES:
                wanted.append(word)
            else:
                raise BadInput(f"{word} is no state; {choose_from(word, STATES)}, or runs=DIR")
        if not root.is_dir():
            raise BadInput(f"runs={root}: there is no such folder")
        found = list(runs(root))
    except BadInput as error:
        print(f"normbench.status: {error}", file=sys.stderr)
        return 2
    if "finished" in wanted:
        wanted += FINISHED
    for run in found:
        if not wanted or run.state in wanted:
            place = f"{run.folder.parent.name}/{run.folder.name}"
            print(f"{run.state:<12} {place:<22} {run.title:<40} {run.more}".rstrip())
    counts = Counter(run.state for run in found)
    total = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    print(f"{len(found)} runs in {root}: {total}" if found else f"no runs in {root}")
    return 0


if __name__ == "__main__":
    cli.run(main)
