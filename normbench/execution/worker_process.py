"""Processes for work: forked from a server that has imported torch once.

The process that reads the command line never imports torch. It starts a fork server, which does,
and asks it for a child for each piece of work: 0.02 s a child instead of 15 s of imports. A child

    leads a session of its own, so that Ctrl-C at the terminal reaches the parent alone,
    writes what it prints to a log file,
    reports by a pipe,
    and kills itself when its parent is gone.

Every child imports this module first: multiprocessing pickles `_enter` by name. So it stays light.
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
from typing import Any, Literal, Protocol

from normbench.errors import BadInput, OutOfMemory, one_line

GRACE = 15.0  # seconds that an interrupted child has to write its state
_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Message:
    """What a child reports: how far it is, its result, or why there is none.

    `at` is a moment of the clock that all processes of a machine share, in seconds.
    """

    kind: Literal["progress", "result", "refused", "memory", "failed"]
    content: Any = None
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, negative for a signal, and the last thing that it said.

    `rank` is which of several processes of one piece of work it was; None: there was one.
    """

    code: int
    last: Message | None
    rank: int | None = None


class Child:
    """A running process and the pipe to it."""

    def __init__(self, process: ForkServerProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.last: Message | None = None

    @property
    def handles(self) -> list[Any]:
        """What becomes ready when there is something to read or the child is gone."""
        return [self.pipe, self.process.sentinel]

    def messages(self) -> Iterable[Message]:
        """What it has said since the last call."""
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                message: Message = self.pipe.recv()
                if message.kind != "progress":
                    self.last = message
                yield message

    def ended(self) -> Ended | None:
        """How it ended; None while it runs. Call after `messages`, which it outlives."""
        if self.process.is_alive():
            return None
        for _ in self.messages():  # the last words may have come after the last look
            pass
        self.process.join()
        self.pipe.close()
        return Ended(self.process.exitcode or 0, self.last)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        """The child and all that is in its session, such as workers of its own."""
        try:
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:  # it is gone, or so young that it leads no session yet
            with suppress(ProcessLookupError):
                os.kill(self.process.pid or 0, signal.SIGKILL)


def start(
    target: str,
    request: Any,
    *,
    log: Path | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> Child:
    """Run `target` ("module:function") on (request, tell) in a child.

    Args:
        target: imported inside the child.
        request: pickled and handed over.
        log: file that takes what the child prints; None throws it away.
        environment: variables of this child, beside those that its parent has now; None takes
            one away.
    """
    # One way: a child that waits for words of its parent could wait for ever.
    reader, writer = _CONTEXT.Pipe(duplex=False)
    # What a child inherits is the server's environment, which is that of the server's start.
    wanted = {**os.environ, **(environment or {})}
    variables = {name: value for name, value in wanted.items() if value is not None}
    arguments = (target, request, writer, log, variables)
    # Pickled by name, so the server needs no more than this module to start any work.
    process = _CONTEXT.Process(target=_enter, args=arguments)
    _fork(process)
    writer.close()
    return Child(process, reader)


def _fork(process: ForkServerProcess) -> None:
    """Have the server start `process`; a server that was killed just now may still look alive."""
    for _ in range(50):
        _ensure_server()
        try:
            return process.start()
        except ConnectionError:
            time.sleep(0.1)
    raise RuntimeError("the fork server does not answer")


class Waited(Protocol):
    """One child, or several that are one piece of work."""

    @property
    def handles(self) -> list[Any]:
        """What becomes ready when there is something to read or the child is gone."""

    def messages(self) -> Iterable[Message]:
        """What it has said since the last call."""

    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""

    def kill(self) -> None:
        """End it now."""


def wait(children: Iterable[Waited], seconds: float) -> None:
    """Until one of `children` has something to say or is gone, at most `seconds`."""
    # Runs that share a process share its pipe.
    handles = {handle for child in children for handle in child.handles}
    connection.wait(list(handles), timeout=seconds)


def finish(child: Waited) -> Ended:
    """How `child` ends, once it does; when the waiting is broken off, it is ended."""
    try:
        while (end := child.ended()) is None:
            wait([child], 1.0)
            for _ in child.messages():  # a full pipe would hold it
                pass
    except BaseException:
        child.kill()
        raise
    return end


def start_server(preload: Iterable[str]) -> None:
    """Start the fork server, if none runs; it imports `preload` in the background."""
    _CONTEXT.set_forkserver_preload(list(preload))
    _ensure_server()


def _ensure_server() -> None:
    """Start the fork server unless it runs; also when it has died since.

    Until Python 3.12 the server does not inherit sys.path and passes over what it cannot import, so
    the path goes along in the environment. It ignores Ctrl-C only once it has imported, so it is
    started with the signal ignored.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when torch is imported
    # glibc would give large tensors back to the system and take them anew, page by page, in every
    # step: a tenth of a training on a CPU. Read once, when a process starts.
    os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**62))
    # torch would otherwise create a CUDA context while counting devices, and no child could fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    # A signal that is ignored stays so in what is started: Ctrl-C must not reach the imports.
    # And a job of Slurm that is about to be taken away gets SIGUSR2, with all of its processes.
    handlers = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGUSR2)
    }
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def stop_server() -> None:
    """End the fork server now: left alone it would hold the terminal for a second or more."""
    server: Any = forkserver._forkserver  # the only way to its process id
    if server._forkserver_pid is not None:
        with suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGTERM)


def _enter(
    target: str, request: Any, pipe: Connection, log: Path | None, environment: dict[str, str]
) -> None:
    """The life of a child."""
    os.setsid()  # first: from here on a Ctrl-C at the terminal and killpg mean somebody else
    signal.signal(signal.SIGINT, _interrupt)  # the server ignores it, we do not
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ.clear()  # what was inherited is the server's, from the day of its start
    os.environ.update(environment)
    _redirect(log)
    say = _Speaker(pipe)
    try:
        module, _, function = target.partition(":")
        work = getattr(import_module(module), function)
        say(Message("result", work(request, lambda content: say(Message("progress", content)))))
    except KeyboardInterrupt:
        sys.exit(130)
    except BadInput as error:
        say(Message("refused", str(error)))
        sys.exit(2)
    except OutOfMemory as error:
        traceback.print_exc()
        say(Message("memory", str(error)))
        sys.exit(1)
    except BaseException as error:
        traceback.print_exc()
        say(Message("failed", one_line(error)))
        sys.exit(1)


_interrupts: list[int] = []


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _interrupts.append(number)
    raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether this child was asked to stop."""
    return bool(_interrupts)


class _Speaker:
    """Sends messages; a parent that is gone hears nothing, and that is no error of the child's."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def __call__(self, message: Message) -> None:
        with suppress(BrokenPipeError):
            self.pipe.send(message)


def _redirect(log: Path | None) -> None:
    # Appending: the file may be that of a run which another process trains at this moment.
    file = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])  # a pipe that closes with the parent, also after kill -9
    os.killpg(0, signal.SIGKILL)
