"""Processes: wait for what they do, start them as a terminal does, and see that none is left."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from normbench import run_files
from normbench.execution import process_group
from normbench.execution.process_group import ProcessGroup
from normbench.execution.worker_process import Exit
from normbench.records.history import read_history


def processes(needle: str) -> list[int]:
    """Return ids of living processes with `needle` in their command line or working directory."""
    ids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command_line = (folder / "cmdline").read_bytes().decode(errors="replace")
                working_directory = str((folder / "cwd").readlink())
            except OSError:
                continue  # it has ended meanwhile
            if command_line and (needle in command_line or working_directory.startswith(needle)):
                ids.append(int(folder.name))
    return ids


def server_of(parent: int) -> int:
    """Return the process id of the fork server that the process `parent` has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(words[1]) == parent and b"forkserver" in (folder / "cmdline").read_bytes():
                return int(folder.name)
    raise LookupError(parent)


def services(folder: Path) -> list[int]:
    """Ids of the processes of W&B's service that a command in `folder` has started."""
    found = []
    for pid in processes(str(folder)):
        with suppress(OSError):  # it has ended meanwhile
            if b"wandb-core" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def wait_until_gone(folder: Path) -> None:
    """Wait until no process that was started in `folder` is left; W&B's take some seconds."""
    deadline = time.monotonic() + 30
    while left := processes(str(folder)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def run_when(ready: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """Call `then` from a thread as soon as `ready`; for a command that runs meanwhile."""

    def watch() -> None:
        deadline = time.monotonic() + 300
        while not ready():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def wait_for(ready: Callable[[], bool]) -> None:
    """Return as soon as `ready`, at most after a minute."""
    run_when(ready, lambda: None).join()


def is_training(folder: Path) -> bool:
    """Tell if the run in `folder` has begun and its curve has a record."""
    running = run_files.read_state(folder).get("phase") == "running"
    return running and (folder / "history.csv").exists() and any(read_history(folder))


def pid_of(folder: Path) -> int:
    """Return the process id of the run in `folder`."""
    return int(run_files.read_state(folder)["pid"])


def rank_of(log: Path) -> int:
    """Return the process id of the rank that writes `log`."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "fd/1").readlink() == log.resolve():
                return int(folder.name)
        except OSError:
            continue  # gone meanwhile, or somebody else's
    raise LookupError(log)


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command line in a process group of its own, as a terminal does."""
    with subprocess.Popen(
        [sys.executable, "-m", "normbench", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def finish(group: ProcessGroup) -> tuple[Exit, list[Any]]:
    """Wait for the end of a process group; return it and the contents of all messages."""
    contents: list[Any] = []
    while True:
        contents += [message.content for message in group.messages()]
        # Only a process that has closed its pipe is polled, because that drops what it still sends.
        ended = any(process.ended for process in group.processes)
        if ended and (end := group.poll()) is not None:
            return end, contents
        process_group.wait([group], 1)
