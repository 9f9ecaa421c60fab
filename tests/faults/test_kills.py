"""Kill -9 the processes of a sweep at random moments; the same command then gives the same rows.

python tests/faults/test_kills.py [KILLS] [SEED]
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from normbench import results, run_files
from normbench.config.compose import compose
from normbench.execution.progress import short_titles
from support.cells import RESUMABLE
from support.processes import processes, server_of, services, terminal, wait_until_gone
from support.rows import numbers

#: Two normalizers of which each batch is a computation of its own.
GRID = ("-m", "norm=bn,evonorm_b0", "batch=4", *RESUMABLE, "recipe.images=6400", "logger=wandb")
HANGS = 900  # seconds, of which a slow machine needs a tenth
VICTIMS = ("parent", "run", "fork server", "W&B service", "rank 1")


@dataclass(frozen=True)
class Kill:
    """A kill -9 of a process of a sweep, `moment` seconds after its first run has begun."""

    victim: str
    moment: float

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the sweep that has such a process."""
        two_ranks = ("trainer.devices=2", "runs=runs_of_two_ranks")
        return (*GRID, *(two_ranks if self.victim == "rank 1" else ()))

    @property
    def runs(self) -> str:
        return "runs_of_two_ranks" if self.victim == "rank 1" else "runs"


def find(victim: str, folder: Path, runs: str, parent: int) -> int | None:
    """Return the process id of a victim among the processes of the sweep in `folder`."""
    if victim == "parent":
        return parent
    if victim == "run":
        states = [path.parent for path in folder.glob(f"{runs}/*/*/state.json")]
        pids = {int(run_files.read_state(path).get("pid", 0)) for path in states}
        return min(pids & {*processes(str(folder))}, default=None)
    if victim == "rank 1":
        return next((pid for pid in processes(str(folder)) if _output(pid) == "log.1.txt"), None)
    if victim == "fork server":
        with suppress(LookupError):
            return server_of(parent)
        return None
    return next(iter(services(folder)), None)


def _output(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/fd/1").readlink().name
    return ""


def sweep_until_killed(folder: Path, kill: Kill) -> tuple[bool, int, str]:
    """Run a sweep and kill its victim; return whether it was hit, exit code and output."""
    with terminal(folder, *kill.words) as process:

        def over() -> bool:
            return process.poll() is not None

        begun = False
        while not begun and not over():
            states = [path.parent for path in folder.glob(f"{kill.runs}/*/*/state.json")]
            living = {*processes(str(folder))}
            begun = any(run_files.read_state(path).get("pid") in living for path in states)
            time.sleep(0.02)
        time.sleep(kill.moment)
        hit = False
        while not hit and not over():
            victim = find(kill.victim, folder, kill.runs, process.pid)
            if victim is not None:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    hit = True
            time.sleep(0.02)
        out, _ = process.communicate(timeout=HANGS)
    wait_until_gone(folder)
    return hit, process.returncode, out


def run_sweep(folder: Path, *words: str) -> str:
    """Run a sweep that nobody disturbs; return its output."""
    with terminal(folder, *words) as process:
        out, _ = process.communicate(timeout=HANGS)
    assert process.returncode == 0, out
    wait_until_gone(folder)
    return out


def make_room(folder: Path, runs: str, draws: random.Random) -> None:
    """Delete all rows but one, so that the next sweep has something to train."""
    rows = sorted(folder.glob(f"{runs}/*/*/row.json"))
    for row in draws.sample(rows, max(0, len(rows) - 1)):
        row.unlink()


def disturb(folder: Path, kills: list[Kill], tell: Callable[[str], None], seed: int) -> None:
    """Kill processes of sweeps in `folder`, and compare the rows with undisturbed ones."""
    draws = random.Random(seed)
    expected: dict[str, dict[str, dict[str, object]]] = {}
    hits = 0
    for kill in kills:
        if kill.runs not in expected:
            run_sweep(folder, *kill.words, f"runs=undisturbed_{kill.runs}")
            read = results.read(folder / f"undisturbed_{kill.runs}")
            expected[kill.runs] = {row.id: numbers(row) for row in read}
    titles: dict[str, str] = {}
    for kill in kills[:5]:
        titles |= short_titles(compose(list(kill.words))[0])
    for number, kill in enumerate(kills, 1):
        hit, code, out = sweep_until_killed(folder, kill)
        hits += hit
        read = results.read(folder / kill.runs)
        tell(
            f"{number}: {kill.victim} {'killed' if hit else 'was over'} after {kill.moment:.1f} s; "
            f"exit code {code}, {len(read)} of {len(expected[kill.runs])} rows"
        )
        assert all(expected[kill.runs][row.id] == numbers(row) for row in read)
        assert "Traceback" not in out, out
        assert code in ((-signal.SIGKILL,) if kill.victim == "parent" and hit else (0, 1)), out
        if kill.victim in ("fork server", "W&B service"):  # no run depends on them
            assert code == 0, out
        for row in read:
            assert f"failed: {titles[row.id]}:" not in out, out
        if number < len(kills):
            make_room(folder, kill.runs, draws)
    for kill in {kill.runs: kill for kill in kills}.values():
        run_sweep(folder, *kill.words)
        rows = {row.id: numbers(row) for row in results.read(folder / kill.runs)}
        assert rows == expected[kill.runs]
        left = {*(folder / kill.runs).rglob(".*"), *(folder / kill.runs).rglob("*.pt")}
        left |= {*(folder / kill.runs).rglob("previous.json")}
        assert left <= {folder / kill.runs / "reports" / ".report.json"}  # the report's cache
    assert hits > len(kills) / 2


def draw_kills(number: int, seed: int) -> list[Kill]:
    """Return `number` kills of all victims in turn at random moments."""
    draws = random.Random(seed)
    return [Kill(VICTIMS[k % len(VICTIMS)], draws.uniform(0, 2.5)) for k in range(number)]


@pytest.mark.slow
def test_kills_at_random_moments_change_no_row(tmp_path: Path) -> None:
    disturb(tmp_path, draw_kills(5, seed=0), print, seed=0)


if __name__ == "__main__":
    count, seed = (int(word) for word in (sys.argv[1:] + ["30", "0"][len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as name:
        disturb(Path(name), draw_kills(count, seed), lambda line: print(line, flush=True), seed)
    print(f"{count} kills, seed {seed}: the rows are those of the undisturbed sweeps")
