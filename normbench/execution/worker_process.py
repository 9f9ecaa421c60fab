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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

from normbench.errors import BadInput, OutOfMemory, left_out, one_line
from normbench.execution import fork_server
from normbench.execution.fork_server import ServerUnavailable
from normbench.run_files import describe_write_error
from normbench.training.stop_signals import StopSignals

INTERRUPTED = 130  # exit code of a worker process that was asked to stop
UNKNOWN = 255  # exit code that multiprocessing gives a process whose fork server was killed
MOST_DEATHS = 3  # of fork servers while one process starts; each imports torch for ten seconds
CODE_PATIENCE = 5.0  # seconds in which the fork server must tell the exit code of a process

_CONTEXT = multiprocessing.get_context("forkserver")

#: Signals to this process, if it is a worker process.
stop_signals = StopSignals()


@dataclass(frozen=True)
class Message:
    """A report of a worker process: its progress, its result, or the reason why it has none.

    `at` is in seconds of the monotonic clock, which all processes of a machine share.
    """

    kind: Literal["progress", "result", "refused", "memory", "failed", "interrupted"]
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
    def interrupted(self) -> bool:
        """It was asked to stop."""
        return self.kind == "interrupted"

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
        if self.code == UNKNOWN:
            return f"{prefix}ended without a result; its exit code was lost with the fork server"
        return f"{prefix}exited with code {self.code} and reported no result"

    @property
    def timestamp(self) -> float:
        """Seconds since 1970, comparable between machines: the last message, or now without one."""
        age = time.monotonic() - self.last.at if self.last is not None else 0.0
        return time.time() - age


class WorkerProcess:
    """A running worker process and the pipe from it.

    It has ended once its end of the pipe is closed. Its `multiprocessing` object alone does not
    know: the fork server reports the exit to it, so it takes the end of that server for the exit.
    """

    def __init__(self, process: ForkServerProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.ended = False
        self.last: Message | None = None

    def messages(self) -> Iterable[Message]:
        """Yield the messages since the last call."""
        try:
            while not self.ended and self.pipe.poll():
                message: Message = self.pipe.recv()
                if message.kind != "progress":
                    self.last = message
                yield message
        except (EOFError, OSError):  # OSError: killed in the middle of a message
            self.ended = True

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of it, at most `seconds`, and drop its messages; return if it ended."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.ended:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not connection.wait([self.pipe], left):
                return False
            for _ in self.messages():
                pass
        return True

    def poll(self) -> Exit | None:
        """Return the end of it; None while it runs. Read `messages` first: this drops the rest."""
        if not self.wait(0):
            return None
        self.process.join(CODE_PATIENCE)
        self.pipe.close()
        code = self.process.exitcode
        return Exit(UNKNOWN if code is None else code, self.last)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        """Kill it and all processes of its session, such as data loaders."""
        if self.process.pid is None:  # interrupted before it was started
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # gone, or too young to lead a session
            self.send_signal(signal.SIGKILL)


def start(
    target: str,
    argument: Any,
    *,
    log: Path | None,
    environment: Mapping[str, str | None],
    register: Callable[[WorkerProcess], None],
) -> None:
    """Call `target` with (argument, report) in a new worker process.

    Args:
        target: "module:function", imported inside the worker process. `report` is a function that
            sends its argument to the parent as a progress message.
        argument: pickled and sent to the worker process.
        log: file for its output; None discards the output.
        environment: environment variables in addition to those of the parent; None unsets one.
        register: receives the worker process before it starts, so that one whose start is
            interrupted can be killed.
    """
    # One direction only: a worker process that read from its parent could wait for ever.
    reader, writer = _CONTEXT.Pipe(duplex=False)
    # A forked process would inherit the environment that the server had at its start.
    updated = {**os.environ, **environment}
    variables = {name: value for name, value in updated.items() if value is not None}
    process = _CONTEXT.Process(target=_main, args=(target, argument, writer, log, variables))
    register(WorkerProcess(process, reader))
    _fork(process)
    writer.close()


def _fork(process: ForkServerProcess) -> None:
    """Start `process`, with another server if one dies meanwhile.

    Raises:
        ServerUnavailable: no server lives long enough.
    """
    deaths = 0
    for _ in range(50):
        fork_server.ensure_running()
        try:
            return process.start()
        except ConnectionError:  # it was killed just now, and may still look alive
            time.sleep(0.1)
        except EOFError:  # it has not answered with the id of the process, which ends by itself
            deaths += 1
            if deaths == MOST_DEATHS:
                break
    raise ServerUnavailable(
        "the fork server, which starts the processes of runs, ended each time it was started"
    )


def start_server(preload: Iterable[str]) -> None:
    """Start the fork server unless it runs; it imports the modules `preload` in the background.

    Raises:
        ServerUnavailable: it cannot be started; the message has a remedy.
    """
    fork_server.require_files()
    _CONTEXT.set_forkserver_preload(["normbench.execution.end_with_parent", *preload])
    fork_server.ensure_running()


def _main(
    target: str, argument: Any, pipe: Connection, log: Path | None, environment: dict[str, str]
) -> None:
    """Run a worker process from its start to its exit code."""
    os.setsid()  # first: now Ctrl-C at the terminal does not reach it, and killpg only reaches it
    stop_signals.listen()  # the server ignores SIGINT
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # The end of this process must close the pipe, although its data loaders may live longer.
    os.register_at_fork(after_in_child=pipe.close)
    os.environ.clear()  # the inherited variables are those of the server's start
    os.environ.update(environment)

    def send(*message: Any) -> None:
        with suppress(BrokenPipeError):  # the parent is gone
            pipe.send(Message(*message))

    try:
        _redirect_output(log)
        module, _, function = target.partition(":")
        work = getattr(import_module(module), function)
        with _printing_left_out():
            result = work(argument, lambda content: send("progress", content))
        send("result", result)
    except KeyboardInterrupt:
        send("interrupted", "interrupted")
        sys.exit(INTERRUPTED)
    except BadInput as error:
        send("refused", str(error))
        sys.exit(2)
    except BaseException as error:
        with suppress(OSError):  # the disk of the log may be full
            traceback.print_exc()
        if isinstance(error, OutOfMemory):
            send("memory", str(error))
        else:
            send("failed", one_line(error))
        sys.exit(1)


@contextmanager
def _printing_left_out() -> Iterator[None]:
    """Print a line in the log for each damaged file that was left out."""
    with left_out() as sentences:
        try:
            yield
        finally:
            print(*(f"left out: {sentence}\n" for sentence in sentences), sep="", end="")


def _redirect_output(log: Path | None) -> None:
    """Let this process write its output to `log`, or nowhere.

    Raises:
        BadInput: the log cannot be written; its owner is named.
    """
    try:
        # Append: another process may be training this run and writing to the same file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        file = os.open(log or os.devnull, flags, 0o666)
    except OSError as error:
        if log is None:
            raise
        _redirect_output(None)
        raise BadInput(describe_write_error(log, log, error)) from None
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    for stream in (sys.stdout, sys.stderr):  # names of a user's may have letters that it lacks
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])  # a pipe that closes when the parent ends, even by SIGKILL
    os.killpg(0, signal.SIGKILL)
