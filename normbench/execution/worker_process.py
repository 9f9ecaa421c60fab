"""Worker processes, forked from a server that has imported torch once.

The process that reads the command line never imports torch. It starts a fork server, which does,
and asks it for a worker process for each job: 0.02 s each instead of 15 s of imports. A worker
process

    leads its own session, so that Ctrl-C at the terminal reaches only the parent,
    writes its output to a log file,
    reports to the parent through a pipe,
    and kills itself when its parent is gone.

Every worker process imports this module first, because multiprocessing pickles `_main` by name. So
this module imports nothing heavy.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from normbench.errors import BadInput, OutOfMemory, one_line

INTERRUPTED = 130  # exit code of a worker process that was asked to stop

_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Message:
    """A report of a worker process: its progress, its result, or the reason why it has none.

    `at` is in seconds of the monotonic clock, which all processes of a machine share.
    """

    kind: Literal["progress", "result", "refused", "memory", "failed"]
    content: Any = None
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Exit:
    """The end of a worker process.

    Args:
        code: its exit code, negative for a signal.
        last: its last message that was not about progress.
        rank: its rank in a process group of several; None: it was alone.
    """

    code: int
    last: Message | None
    rank: int | None = None

    @property
    def kind(self) -> str:
        """Kind of its last message: "refused" after `BadInput`, "memory" after `OutOfMemory`."""
        return self.last.kind if self.last is not None else ""

    @property
    def succeeded(self) -> bool:
        """It reported a result."""
        return self.kind == "result"

    @property
    def result(self) -> Any:
        """The value that the target returned; None if it returned none."""
        return self.last.content if self.last is not None and self.succeeded else None

    @property
    def reason(self) -> str:
        """One line: why there is no result."""
        prefix = "" if self.rank is None else f"rank {self.rank}: "
        if self.last is not None and not self.succeeded:
            return f"{prefix}{self.last.content}"
        if self.code < 0:
            return f"{prefix}killed by signal {-self.code}"
        return f"{prefix}exited with code {self.code} and reported no result"

    @property
    def timestamp(self) -> float:
        """Seconds since 1970, comparable between machines: the last message, or now without one."""
        age = time.monotonic() - self.last.at if self.last is not None else 0.0
        return time.time() - age


class WorkerProcess:
    """A running worker process and the pipe from it."""

    def __init__(self, process: ForkServerProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.last: Message | None = None

    def messages(self) -> Iterable[Message]:
        """Yield the messages since the last call."""
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                message: Message = self.pipe.recv()
                if message.kind != "progress":
                    self.last = message
                yield message

    def poll(self) -> Exit | None:
        """Return the end of it; None while it runs. Read `messages` first: this drops the rest."""
        if self.process.is_alive():
            return None
        for _ in self.messages():  # one may have arrived after the last call
            pass
        self.process.join()
        self.pipe.close()
        return Exit(self.process.exitcode or 0, self.last)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        """Kill it and all processes of its session, such as data loaders."""
        try:
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:  # gone, or too young to lead a session
            self.send_signal(signal.SIGKILL)


def start(
    target: str, argument: Any, *, log: Path | None, environment: Mapping[str, str | None]
) -> WorkerProcess:
    """Call `target` with (argument, report) in a new worker process.

    Args:
        target: "module:function", imported inside the worker process. `report` is a function that
            sends its argument to the parent as a progress message.
        argument: pickled and sent to the worker process.
        log: file for its output; None discards the output.
        environment: environment variables in addition to those of the parent; None unsets one.
    """
    # One direction only: a worker process that read from its parent could wait for ever.
    reader, writer = _CONTEXT.Pipe(duplex=False)
    # A forked process would inherit the environment that the server had at its start.
    updated = {**os.environ, **environment}
    variables = {name: value for name, value in updated.items() if value is not None}
    process = _CONTEXT.Process(target=_main, args=(target, argument, writer, log, variables))
    _fork(process)
    writer.close()
    return WorkerProcess(process, reader)


def _fork(process: ForkServerProcess) -> None:
    """Start `process`; retry, because a server that was just killed may still look alive."""
    for _ in range(50):
        _ensure_server()
        try:
            return process.start()
        except ConnectionError:
            time.sleep(0.1)
    raise RuntimeError("the fork server does not answer")


def start_server(preload: Iterable[str]) -> None:
    """Start the fork server unless it runs; it imports the modules `preload` in the background."""
    _CONTEXT.set_forkserver_preload(["normbench.execution.end_with_parent", *preload])
    _ensure_server()


def _ensure_server() -> None:
    """Start the fork server unless it runs, also if an earlier one has died."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it once, at import
    # Otherwise glibc returns large tensors to the system and maps them again in every step, which
    # costs a tenth of a training on a CPU. Read once, when a process starts.
    os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**62))
    # Otherwise torch creates a CUDA context to count devices, and CUDA does not survive a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # The server inherits what is ignored here. It ignores SIGINT itself, but only after its
    # imports; Slurm sends SIGUSR2 to all processes of a job that it is about to preempt.
    ignored = (signal.SIGINT, signal.SIGUSR2)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    # Before Python 3.12 the server does not get sys.path, and skips imports that fail.
    import_path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        del os.environ["PYTHONPATH"]
        if import_path is not None:
            os.environ["PYTHONPATH"] = import_path


def _main(
    target: str, argument: Any, pipe: Connection, log: Path | None, environment: dict[str, str]
) -> None:
    """Run a worker process from its start to its exit code."""
    os.setsid()  # first: now Ctrl-C at the terminal does not reach it, and killpg only reaches it
    signal.signal(signal.SIGINT, _interrupt)  # the server ignores the signal
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ.clear()  # the inherited variables are those of the server's start
    os.environ.update(environment)
    _redirect_output(log)

    def send(*message: Any) -> None:
        with suppress(BrokenPipeError):  # the parent is gone
            pipe.send(Message(*message))

    try:
        module, _, function = target.partition(":")
        work = getattr(import_module(module), function)
        send("result", work(argument, lambda content: send("progress", content)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BadInput as error:
        send("refused", str(error))
        sys.exit(2)
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, OutOfMemory):
            send("memory", str(error))
        else:
            send("failed", one_line(error))
        sys.exit(1)


_interrupts: list[int] = []


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _interrupts.append(number)
    raise KeyboardInterrupt


def was_interrupted() -> bool:
    """Return whether this worker process was asked to stop."""
    return bool(_interrupts)


def _redirect_output(log: Path | None) -> None:
    # Append: another process may be training this run and writing to the same file.
    file = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])  # a pipe that closes when the parent ends, even by SIGKILL
    os.killpg(0, signal.SIGKILL)
