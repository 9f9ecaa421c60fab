"""Requests to stop a training, as signals to its process. Standard library only."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Seconds in which the same signal again is the same request: timeout(1) sends each twice.
SAME_REQUEST = 0.5

#: Ctrl-C, which multiprocessing's fork server ignores only after its imports, and the signals that
#: Slurm sends to all processes of a job that it is about to preempt.
IGNORED_BY_SERVER = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 (not an error: the training can go on later)
    """The training was asked to stop and has written a checkpoint."""


class Requests:
    """Requests to stop a process, as signals.

    A different signal is no repetition: Slurm sends SIGUSR1 before the end of a job and SIGTERM
    then, and torchrun sends SIGINT and SIGTERM.
    """

    def __init__(self) -> None:
        self.first: dict[int, float] = {}  # by signal, the time at which it came first

    def add(self, number: int) -> tuple[bool, bool]:
        """Add a signal; return whether it is the first one, and whether it repeats a request."""
        now, is_first = time.monotonic(), not self.first
        return is_first, now - self.first.setdefault(number, now) > SAME_REQUEST


class StopSignals(Requests):
    """SIGINT and SIGTERM: they end this process at once, or a training after its current step.

    Repeating the signal ends a training at once. No signal is received before `listen`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listens = self.defers = False

    @property
    def received(self) -> bool:
        """This process was asked to stop."""
        return bool(self.first)

    def listen(self) -> None:
        """Receive signals in this process, not in those that it forks."""
        if not self.listens:
            os.register_at_fork(after_in_child=_restore_defaults)
        self.listens = True
        self.renew()

    def renew(self) -> None:
        """Receive signals again after another handler of SIGTERM was installed, as Lightning's."""
        if self.listens:
            for number in _NUMBERS:
                signal.signal(number, self._receive)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the first signal in this block only set `received`."""
        self.defers = True
        try:
            yield
        finally:
            self.defers = False

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        is_first, is_repeated = self.add(number)
        if is_repeated or (is_first and not self.defers):
            raise KeyboardInterrupt


def _restore_defaults() -> None:
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_DFL)
