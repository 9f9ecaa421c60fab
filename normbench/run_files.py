"""What a run says of itself until it has a row: its state, its lock, and failures of its ranks.

The files are those of `normbench.results`, in the folder of the run.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Phase = Literal["queued", "running", "failed", "interrupted"]


def write(folder: Path, phase: Phase, error: str = "", **more: Any) -> None:
    """Say what becomes of an unfinished run; a row that is already there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    replaced(folder / "state.json", {"phase": phase, "error": error, **more})


def change(folder: Path, **changes: Any) -> None:
    """Change what the state of an unfinished run says, and keep the rest."""
    replaced(folder / "state.json", {**read(folder), **changes})


def read(folder: Path) -> dict[str, Any]:
    """The content of state.json, empty if there is none."""
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return state


class Busy(Exception):  # noqa: N818 (no error: somebody else does the work)
    """Another process trains this run."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder of a run. The lock goes with the process, however that ends.

    Raises:
        Busy: another process holds it.
    """
    # flock and no lock file of ours: it is gone with the process, also after kill -9.
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy from None
        yield


def is_busy(folder: Path) -> bool:
    """Whether another process holds the folder of a run."""
    try:
        with (folder / "lock").open() as file:  # only to read: the folder may be somebody else's
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def write_failure(folder: Path, rank: int, reason: str, log: str, at: float) -> None:
    """Say that a rank of a run that is led elsewhere has failed, at a moment of the clock."""
    replaced(folder / f"failed.{rank}.json", {"reason": reason, "log": log, "at": at})


def failures(folder: Path) -> list[dict[str, Any]]:
    """What such ranks have said, the earliest first."""
    found = [json.loads(path.read_text()) for path in folder.glob("failed.*.json")]
    return sorted(found, key=lambda failure: float(failure["at"]))


def forget_failures(folder: Path) -> None:
    """Before a run begins anew."""
    for path in folder.glob("failed.*.json"):
        path.unlink(missing_ok=True)


def replaced(path: Path, content: Mapping[str, Any]) -> None:
    """`path` with this content as JSON: it appears in one piece."""
    # One temporary name per process: two sweeps may finish the same run at the same moment.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # NaN is no JSON: a number that does not exist is None, and the status says why.
    temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    temporary.replace(path)
