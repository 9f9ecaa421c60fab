"""Start multiprocessing's fork server, in whatever state signals, limits and folders are."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from tempfile import gettempdir
from types import FrameType

from normbench.errors import BadInput, one_line
from normbench.training.stop_signals import IGNORED_BY_SERVER

LEAST_FILES = 64  # open files, about, of a command that trains one run
FILES = 1024  # open files to which a smaller limit is raised, if that is allowed


class ServerUnavailable(BadInput):
    """No worker process can be started."""


def ensure_running() -> None:
    """Start the fork server unless it runs, also if an earlier one has died."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it once, at import
    # Otherwise glibc returns large tensors to the system and maps them again in every step, which
    # costs a tenth of a training on a CPU. Read once, when a process starts.
    os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**62))
    # Otherwise torch creates a CUDA context to count devices, and CUDA does not survive a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Before Python 3.12 the server does not get sys.path, and skips imports that fail.
    import_path = os.environ.get("PYTHONPATH")
    with _deferred_signals():
        try:
            os.environ["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
            resource_tracker.ensure_running()  # the first time it changes the mask of signals
            # The server inherits the mask until it ignores these signals.
            signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_BY_SERVER)
            forkserver.ensure_running()
        except OSError as error:  # AF_UNIX path too long, for example
            raise ServerUnavailable(
                f"the fork server cannot be started ({one_line(error)}); its socket is in the "
                f"folder TMPDIR={gettempdir()}, and a short path such as TMPDIR=/tmp works"
            ) from None
        finally:
            os.environ.pop("PYTHONPATH", None)
            if import_path is not None:
                os.environ["PYTHONPATH"] = import_path


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Let the signals that the fork server ignores reach this process at the end of the block.

    Blocking them is not enough: another thread, such as that of progress bars, receives them.
    """
    received: dict[int, None] = {}

    def receive(number: int, _frame: FrameType | None) -> None:
        received[number] = None

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    handlers = {number: signal.signal(number, receive) for number in IGNORED_BY_SERVER}
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in received:
            signal.raise_signal(each)


def require_files() -> None:
    """Raise a small limit of open files, or refuse it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = hard if hard != resource.RLIM_INFINITY else FILES
    if soft < FILES and soft != resource.RLIM_INFINITY:
        soft = min(FILES, allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        raise ServerUnavailable(
            f"only {soft} files may be open at a time (ulimit -n), and a run needs {LEAST_FILES}"
        )
