"""Files in the folder of a run: its state, its lock, and what probes measured in its network.

A run owns `<runs>/<sweep>/<run id>/`:

    row.json       the result (`normbench.results`); the run is finished once it exists
    state.json     phase of an unfinished run: queued, running, failed or interrupted
    lock           held by the process that trains the run
    failed.N.json  why rank N failed, if it ran on another machine
    probes/        KIND.csv, one line for each block, layer, alpha ... of each epoch

A probe during training writes probes/KIND.csv. `python -m normbench.probe` may use other images, so
it writes probes/KIND.command.csv where training writes the same kind.
"""

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from normbench.errors import BadInput

Phase = Literal["queued", "running", "failed", "interrupted"]

PROBES = "probes"
#: Columns of probe files that are never numbers: the run id 1234567890e1 would parse as one.
TEXT_COLUMNS = frozenset(
    {"network", "run", "name", "layer", "group", "of", "split", "best", "mode", "status", "reason"}
    | {"act", "input", "statistics"}
)

Record = dict[str, Any]  # one line of a CSV file; values are str, int, float, bool or None


class RunLocked(Exception):  # noqa: N818 (not an error: another process does the work)
    """Another process trains this run."""


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` at the end of the block.

    Readers see the old content or the new one; a process that is killed leaves the old one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # One temporary name per process: two sweeps may finish the same run at the same moment.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    yield temporary
    temporary.replace(path)


def write_file(path: Path, content: bytes) -> None:
    """Write `path` atomically."""
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `path` as JSON, atomically.

    Raises:
        ValueError: a number is not finite; JSON has no NaN.
    """
    write_file(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def require_writable(folder: Path, name: str, remedy: str) -> Path:
    """Return `folder`, created if it is missing.

    Raises:
        BadInput: no file can be created there; the message has `name` (as "out=DIR") and `remedy`.
    """
    probe = folder / f".writable.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(f"{name} cannot be written ({error.strerror}); {remedy}") from None
    return folder


def write_state(folder: Path, phase: Phase, error: str = "", **more: Any) -> None:
    """Replace the state of an unfinished run; its row, if there is one, stays."""
    write_json(folder / "state.json", {"phase": phase, "error": error, **more})


def update_state(folder: Path, **changes: Any) -> None:
    """Change some entries of the state of an unfinished run."""
    write_json(folder / "state.json", {**read_state(folder), **changes})


def read_state(folder: Path) -> dict[str, Any]:
    """Return the content of state.json, {} if there is none."""
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return state


def open_locked(path: Path, *, wait: bool = False) -> IO[bytes]:
    """Open `path`, created if it is missing, and lock it until it is closed.

    The kernel releases the lock when the process ends, however it ends. With `wait` this process
    waits until no other one holds it.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab")  # not "wb": the holder of the lock may be writing it
    try:
        # flock rather than a lock file of our own: after kill -9 a lock file would stay.
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run.

    Raises:
        RunLocked: another process holds the lock.
    """
    try:
        file = open_locked(folder / "lock")
    except BlockingIOError:
        raise RunLocked from None
    with file:
        yield


def is_locked(folder: Path) -> bool:
    """Return whether another process holds the lock of a run."""
    try:
        with (folder / "lock").open() as file:  # read-only: the folder may belong to another user
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def write_failure(folder: Path, rank: int, reason: str, log: str, at: float) -> None:
    """Record the failure of a rank at second `at` since 1970; rank 0 may be on another machine."""
    write_json(folder / f"failed.{rank}.json", {"reason": reason, "log": log, "at": at})


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded failures of ranks, the earliest first."""
    failures = [json.loads(path.read_text()) for path in folder.glob("failed.*.json")]
    return sorted(failures, key=lambda failure: float(failure["at"]))


def clear_failures(folder: Path) -> None:
    """Remove recorded failures before a run starts again."""
    for path in folder.glob("failed.*.json"):
        path.unlink(missing_ok=True)


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write `records` as CSV, atomically; columns in the order of their first appearance."""
    rounded = [
        {name: f"{x:.9g}" if isinstance(x, float) else x for name, x in each.items()}
        for each in records
    ]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for each in records for name in each))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rounded)
    write_file(path, text.getvalue().encode())


def read_records(path: Path) -> list[Record]:
    """Read a CSV file of `write_records`: numbers become numbers, empty fields None."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    return [
        {name: x if name in TEXT_COLUMNS else _parse_value(x) for name, x in line.items()}
        for line in lines
    ]


def append_epoch(folder: Path, kind: str, records: Sequence[Record], epoch: int) -> None:
    """Add the records of a probe after `epoch` to the file of the run.

    Records of this epoch and later ones are replaced: they come from a training that was resumed
    from an earlier checkpoint.
    """
    path = folder / PROBES / f"{kind}.csv"
    earlier = read_records(path) if path.exists() else []
    write_records(path, [*(record for record in earlier if record["epoch"] < epoch), *records])


def group_by(records: Sequence[Record], *columns: str) -> dict[Any, list[Record]]:
    """Group `records` by one column (keys are values) or several (keys are tuples of values)."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        values = tuple(record.get(column) for column in columns)
        groups.setdefault(values if len(columns) > 1 else values[0], []).append(record)
    return groups


def last_epoch(records: Sequence[Record], *columns: str) -> list[Record]:
    """Return the records of the last epoch of each network; `columns` identify a network."""
    last: list[Record] = []
    for group in group_by(records, *columns).values():
        epoch = max(record["epoch"] for record in group)
        last += [record for record in group if record["epoch"] == epoch]
    return last


def network_label(key: tuple[str, int | None]) -> str:
    """Return the label of (network, epoch) in a figure or table."""
    network, epoch = key
    return network if epoch is None else f"{network}, epoch {epoch}"


def probe_file(folder: Path, kind: str) -> Path | None:
    """Return the probe file of a run: the one from training, or else from the probe command."""
    if not (folder / PROBES).is_dir():  # most runs have no probes
        return None
    paths = [folder / PROBES / f"{stem}.csv" for stem in (kind, f"{kind}.command")]
    return next((path for path in paths if path.exists()), None)


def _parse_value(text: str) -> Any:
    constants = {"": None, "True": True, "False": False}
    if text in constants:
        return constants[text]
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text
