"""The service of W&B, a process on this machine that writes and uploads, and limits of its time.

Private parts of wandb in use, each checked by tests/execution/test_private_names.py:

    _WandbSetup.ensure_service  starts the service process that all runs of a sweep share, from a
                                process without a run; public calls start one for each run
    wandb.env.SERVICE           name of the variable by which other processes find that service;
                                written out in normbench.config.wandb_options
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import wandb

from normbench.config.wandb_options import SERVICE, read_timeout
from normbench.errors import one_line

PATIENCE = 10.0  # seconds that the service may take to answer


@contextmanager
def shared_service(failures: list[str]) -> Iterator[None]:
    """Start the service process of W&B for all processes that start in this context.

    A service that runs already is used and left running. A run that finds none starts its own,
    which takes a quarter of a second. `failures` gets a sentence if the service does not end well.
    """
    if SERVICE in os.environ or os.environ.get("WANDB_MODE") == "disabled":
        yield
        return
    with started_service(connect, read_timeout("FINISH") + PATIENCE, failures):
        yield


@contextmanager
def started_service(
    start: Callable[[], object], seconds: float, failures: list[str]
) -> Iterator[None]:
    """Call `start`, which may start the service of W&B, and end that service after the block.

    If it has not ended after `seconds` it is killed, as otherwise it holds the output of this
    process open, and `failures` gets a sentence unless it has one.
    """
    earlier, service = _child_processes(), set[int]()
    try:
        try:
            start()
        finally:
            service = _child_processes() - earlier
        yield
    finally:
        try:
            with time_limit(seconds):
                wandb.teardown()
        except BaseException as error:
            if not isinstance(error, Exception | SystemExit):
                raise
            if not failures:  # the rows are written, whatever W&B does
                failures.append(f"the service of W&B did not end: {one_line(error)}")
        finally:
            # W&B does not end a service whose start it gave up.
            for pid in service & _child_processes():
                os.kill(pid, signal.SIGKILL)


def _child_processes() -> set[int]:
    """Return the ids of the child processes of this process."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for children in tasks for pid in children.read_text().split()}


def connect() -> None:
    """Connect to the shared service, or start it; if that fails, `wandb.init` starts its own."""
    try:
        with time_limit(30 + PATIENCE):  # wandb waits 30 s for its service to start
            wandb.setup(wandb.Settings(silent=True)).ensure_service()
    except Exception as error:
        print(f"wandb: the shared service cannot be used: {one_line(error)}", flush=True)
        os.environ.pop(SERVICE, None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the block after `seconds`; only for the main thread.

    W&B's own time limits are enforced by its service, so they do not help if the service hangs.
    """

    def expire(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"no answer within {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, expire)
    started = time.monotonic()
    # Again after every second: W&B may catch the first one and wait again.
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer:  # somebody else's limit, such as that of a test
            signal.setitimer(signal.ITIMER_REAL, max(0.001, outer - (time.monotonic() - started)))
