"""Files in the folder of a run, its state and its lock; how files are read and written.

A run owns `<runs>/<sweep>/<run id>/`:

    row.json       the result (`normbench.results`); the run is finished once it exists
    state.json     phase of an unfinished run: queued, running, failed or interrupted
    lock           held by the process that trains the run
    failed.N.json  why rank N failed, if it ran on another machine
    log.txt        start and end of the run, warnings and tracebacks between them
    probes/        what probes measured in its network (`normbench.records.probes`)

Beside the runs of a sweep, `order.txt` lists their ids in the order of the command lines.
"""

import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, get_args

from normbench.errors import BadInput, DamagedFile

Phase = Literal["queued", "running", "failed", "interrupted"]

ORDER = "order.txt"  # in the folder of a sweep
_LONGEST = 200  # bytes of a name, which gets an ending; file systems allow 255
LARGEST = 1 << 30  # bytes of a file that is read as a whole


class RunLocked(Exception):  # noqa: N818 (not an error: another process does the work)
    """Another process trains this run."""


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` at the end of the block.

    Readers see the old content or the new one, also after kill -9 or a power cut. If the block
    fails, the old content stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # One temporary name per process: two sweeps may finish the same run at the same moment.
    temporary = path.with_name(f".{path.name}.{os.getpid()}@{_host()}")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _flush(path.parent)


def _flush(path: Path) -> None:
    """Wait until a file, or the names of the files in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Name of a temporary file: that of the file, the process, and its host, which old versions lack.
_TEMPORARY = re.compile(
    r"\..+\.(?:json|csv|bin|pt|md|tex|svg|png|pdf|html|gz)\.(?P<process>[1-9][0-9]*)(?:@(?P<host>.+))?"
)
_DAY = 24 * 60 * 60.0  # no file is written for so long


def _host() -> str:
    """Return the name of this machine, short enough for a part of a file's name."""
    return os.uname().nodename[:32]


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files of `replace_atomically` whose processes have ended.

    Whether a process of another host has ended cannot be seen; its file is removed after a day.
    """
    for path in folder.glob(".*"):
        if not (name := _TEMPORARY.fullmatch(path.name)):
            continue
        with suppress(OSError):
            runs = Path("/proc", name["process"]).exists() or name["host"] not in (None, _host())
            if not runs or time.time() - path.lstat().st_mtime > _DAY:
                path.unlink()


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


def describe_write_error(name: str | Path, path: Path, error: OSError) -> str:
    """Return that `name` cannot be written, and why; `path` is where it is.

    Its owner is named if that is another user. For a missing file, the owner is that of the nearest
    folder above it.
    """
    reason = error.strerror or type(error).__name__
    existing = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = f"{existing} is no folder"
    with suppress(OSError, KeyError):  # it is not accessible, or its user has no name
        if existing.stat().st_uid != os.geteuid():
            reason += f"; {existing} belongs to {existing.owner()}"
    return f"{name} cannot be written ({reason})"


def require_folder(root: Path) -> None:
    """Refuse a root of runs that is no folder.

    Raises:
        BadInput: it is none.
    """
    if not root.is_dir():
        raise BadInput(f"runs={root} is no folder; `python -m normbench` trains into runs/")


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
        raise BadInput(f"{describe_write_error(name, folder, error)}; {remedy}") from None
    return folder


def write_state(folder: Path, phase: Phase, error: str = "", **more: Any) -> None:
    """Replace the state of an unfinished run; its row, if there is one, stays."""
    write_json(folder / "state.json", {"phase": phase, "error": error, **more})


def update_state(folder: Path, **changes: Any) -> None:
    """Change some entries of the state of an unfinished run."""
    write_json(folder / "state.json", {**read_state(folder), **changes})


def record_order(folder: Path, ids: Iterable[str]) -> None:
    """Add runs to the list in the folder of their sweep, which keeps the order of its grids.

    Raises:
        DamagedFile: the list is no file.
        OSError: it cannot be written.
    """
    listed = {*read_order(folder)}
    if lines := [f"{run}\n" for run in ids if run not in listed]:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ORDER).open("a") as file:
            file.write("".join(lines))


def read_order(folder: Path) -> list[str]:
    """Return the ids of the runs of a sweep in the order in which commands listed them.

    Raises:
        DamagedFile: the list is no file.
    """
    try:
        return read_file(folder / ORDER).decode(errors="replace").split()
    except FileNotFoundError:
        return []


def is_file_name(text: str) -> bool:
    """Return True if `text` can name a file within a folder: no path, and no hidden file.

    Names of sweeps, runs, probes, tables and figures are names of files or folders.
    """
    return 0 < len(text.encode(errors="replace")) <= _LONGEST and not re.search(r"^\.|[/\0]", text)


def require_file_name(option: str, name: str) -> str:
    """Return `name`, which the user gave as `option`.

    Raises:
        BadInput: it could name a file outside of the folder that it belongs to.
    """
    if not is_file_name(name):
        raise BadInput(
            f"{option}={name}: it becomes part of file names, so it must not contain / or "
            f"begin with a dot, and has at most {_LONGEST} bytes"
        )
    return name


def describe_resumption(state: Mapping[str, Any]) -> str:
    """Return from which step a run with this `state` resumes; "" without a checkpoint."""
    saved, steps = state.get("saved"), state.get("steps")
    of = f" of {steps}" if isinstance(steps, int) else ""
    return f"resumes from step {saved}{of}" if saved and isinstance(saved, int) else ""


def read_state(folder: Path) -> dict[str, Any]:
    """Return the content of state.json; {} if it is missing or damaged."""
    try:
        state = read_json(folder / "state.json")
    except (FileNotFoundError, DamagedFile):  # a training resumes without it
        return {}
    return state if state.get("phase") in get_args(Phase) else {}


def read_file(path: Path | str) -> bytes:
    """Return the content of a regular file.

    Raises:
        FileNotFoundError: there is none.
        DamagedFile: it cannot be read, or is a folder, a pipe or a device.
    """
    try:
        descriptor = _open_at_once(path, os.O_RDONLY)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedFile(f"{path} is no regular file")
            if status.st_size > LARGEST:
                raise DamagedFile(f"{path} has {status.st_size / 1e9:.0f} GB; it may have 1 GB")
            # Not by a file object, which takes longer to make than a row takes to read.
            return os.read(descriptor, status.st_size)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from None


def _open_at_once(path: Path | str, flags: int) -> int:
    """Open a file without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def read_json(path: Path | str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        FileNotFoundError: there is no file.
        DamagedFile: the file holds something else.
    """
    content = read_file(path)
    try:
        value = parse_json(content)
    except ValueError as error:
        raise DamagedFile(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} holds no JSON object")
    return value


def parse_json(content: bytes) -> Any:
    """Return a JSON value.

    Raises:
        ValueError: it is none, or one that could not be written again.
    """
    try:
        value = _DECODER.decode(content.decode())
        if b"\\ud" in content or b"\\uD" in content:
            # Half of a pair of surrogates is a text in JSON, and none in UTF-8.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def open_locked(path: Path, *, wait: bool = False) -> IO[bytes]:
    """Open `path`, created if it is missing, and lock it until it is closed.

    The kernel releases the lock when the process ends, however it ends. With `wait` this process
    waits until no other one holds it.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not truncated: the holder of the lock may be writing it.
    descriptor = _open_at_once(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    file = os.fdopen(descriptor, "ab")
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
        # Read-only: the folder may belong to another user.
        with os.fdopen(_open_at_once(folder / "lock", os.O_RDONLY), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:  # there is none, or something that no process can hold
        return False


def write_failure(folder: Path, rank: int, reason: str, log: str, at: float) -> None:
    """Record the failure of a rank at second `at` since 1970; rank 0 may be on another machine."""
    write_json(folder / f"failed.{rank}.json", {"reason": reason, "log": log, "at": at})


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded failures of ranks, the earliest first."""
    failures = []
    for path in folder.glob("failed.*.json"):
        with suppress(FileNotFoundError, DamagedFile):
            failures.append(read_json(path))
    complete = [each for each in failures if isinstance(each.get("at"), float)]
    return sorted(complete, key=lambda failure: failure["at"])


def clear_failures(folder: Path) -> None:
    """Remove recorded failures before a run starts again."""
    for path in folder.glob("failed.*.json"):
        if not path.is_dir():  # nor is it read
            path.unlink(missing_ok=True)
