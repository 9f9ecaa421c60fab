"""Time of starting: a sweep over a process for each run, and from one run to the next.

Both train the same cells from the command line to the last row, into temporary folders. By hand
there is a process of normbench for each cell, one after the other.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path

from normbench.bench.measure import Timer, compare, measure_in_turn, quartiles, save
from normbench.bench.options import BenchSweepOptions
from normbench.errors import BadInput
from normbench.execution.provenance import commit

POLL = 0.005  # seconds between two looks at the files of a sweep
#: Runs of a few steps, one after the other, that tell of the first as soon as it is done.
SHORT = (
    "recipe.images=512", "recipe.epochs=null", "trainer.log_every=1", "trainer.chunk=1", "jobs=1",
)  # fmt: skip


def bench_sweep(options: BenchSweepOptions, words: Sequence[str]) -> None:
    """Time a sweep, and one command for each of its cells."""
    other = options.against
    if other is not None and not (other / "normbench/__main__.py").exists():
        raise BadInput(f"against={other}: it holds no normbench; a checkout of another commit does")
    cells = _parse_cells(words)
    to_first, to_next = [], []

    def time_starts() -> float:
        started = time.monotonic()
        first, others = measure_starts(words)
        to_first.append(first)
        to_next.extend(others)
        return time.monotonic() - started

    entries: dict[str, Timer] = {
        "sweep": partial(_time_commands, [["-m", *words]]),
        "a process each": partial(_time_commands, cells),
        "starts": time_starts,
    }
    if other is not None:
        name = f"sweep at commit {commit(other)[:7] or 'unknown'}"
        entries[name] = partial(_time_commands, [["-m", *words]], other.resolve())
    # Each command is a process of its own, so nothing stays warm.
    timings = measure_in_turn(entries, options.rounds, warm_up=False)
    del timings["starts"]  # its runs say more than their sum
    timings |= {
        "command to first step": quartiles(to_first),
        "row to next first step": quartiles(to_next),
    }
    save(options.out, compare(timings, "what", "seconds", words=" ".join(words)))


def _parse_cells(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each cell of a grid."""
    choices = []
    for word in words:
        key, _, values = word.partition("=")
        if "(" in values or not values:
            raise BadInput(f"{word}: a grid to be timed is of lists, as norm=bn,gn seed=0,1,2")
        choices.append([f"{key}={value}" for value in values.split(",")])
    cells = [[*cell] for cell in product(*choices)]
    if len(cells) < 2:
        raise BadInput("a grid is timed, as norm=bn,gn seed=0,1,2; this is one cell")
    return cells


def _time_commands(commands: Sequence[Sequence[str]], checkout: Path | None = None) -> float:
    """Return seconds of commands, one after the other, perhaps by another checkout."""
    with tempfile.TemporaryDirectory() as root:
        started = time.monotonic()
        for words in commands:
            process = _start(words, root, checkout)
            _require_success(process)
        return time.monotonic() - started


def measure_starts(words: Sequence[str]) -> tuple[float, list[float]]:
    """Return seconds from the command to the first step, and from each row to the next step."""
    with tempfile.TemporaryDirectory() as root:
        stepped: dict[Path, float] = {}
        ended: dict[Path, float] = {}
        started = time.monotonic()
        process = _start(["-m", *words, *SHORT], root)
        while process.poll() is None:
            time.sleep(POLL)
            for run in Path(root).glob("runs/*/*/"):
                if run not in stepped and _has_record(run):
                    stepped[run] = time.monotonic()
                if run not in ended and (run / "row.json").exists():
                    ended[run] = time.monotonic()
        _require_success(process)
    runs = sorted(stepped, key=lambda run: stepped[run])
    between = [stepped[after] - ended[before] for before, after in pairwise(runs)]
    return stepped[runs[0]] - started, between


def _start(words: Sequence[str], root: str, checkout: Path | None = None) -> subprocess.Popen[str]:
    # Before the installed packages, so that -m normbench runs the other checkout.
    path = os.pathsep.join(map(str, filter(None, [checkout, os.environ.get("PYTHONPATH")])))
    return subprocess.Popen(
        [sys.executable, "-m", "normbench", *words],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": path} if path else None,
    )  # fmt: skip


def _require_success(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a command of the grid failed:\n{output}")


def _has_record(run: Path) -> bool:
    """Return whether the curve of a run has a record."""
    try:
        # The first line has the names of the columns.
        return (run / "history.csv").read_text().count("\n") > 1
    except FileNotFoundError:
        return False
