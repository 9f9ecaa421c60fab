"""The run's copy in Weights & Biases. It can be absent: nothing here is read back.

No training fails or waits for long because of W&B: each call has a time limit, and after the first
failure a run continues without W&B.

Private parts of wandb in use, each checked by tests/execution/test_private_names.py:

    _WandbSetup.ensure_service  starts the service process that all runs of a sweep share, from a
                                process without a run; public calls start one for each run
    wandb.env.SERVICE           name of the variable by which other processes find that service;
                                written out in normbench.config.wandb_options
"""

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import Any, Literal, NoReturn

import wandb

from normbench.config.cells import Cell
from normbench.config.wandb_options import OFFLINE, SERVICE, read_timeout
from normbench.errors import one_line
from normbench.records.json_fields import flatten

Mode = Literal["online", "offline", "disabled"]
PATIENCE = 10.0  # seconds that the service of W&B, a process on this machine, may take to answer
_open_runs: list[wandb.Run] = []


class Mirror:
    """The W&B run of one training.

    After its first failure nothing more is sent. `failure` is the reason, or why a run is offline
    that should be online; "" if there is none. `address` is that of the run on the server, or the
    folder that `wandb sync` takes, relative to the folder of all runs; "" without a run.

    Args:
        cell: to train.
        folder: of the run; takes the files of W&B.
        sweep: name of the group.
        run_id: id of a W&B run that this one continues.
    """

    def __init__(self, cell: Cell, folder: Path, sweep: str, run_id: str | None = None) -> None:
        self.failure = self.address = ""
        self._run: wandb.Run | None = None
        with self._attempt():
            self._run = self._start(cell, folder, sweep, run_id)
        with self._attempt():
            if self._run is not None:
                self.address = self._run.url or _offline_folder(self._run, folder)

    @property
    def id(self) -> str | None:
        """The id of the W&B run, by which a training that resumes continues it."""
        return None if self._run is None else self._run.id

    def restore(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Log earlier records of the curve again in an offline run, whose files are new."""
        if self._run is not None and self._run.offline:
            for record in records:
                self.log(record)

    def log(self, record: Mapping[str, Any]) -> None:
        """Log a record of the curve."""
        with self._attempt(), time_limit(PATIENCE):
            if self._run is not None:
                self._run.log(dict(record), step=int(record["step"]), commit=True)

    def finish(self, summary: Mapping[str, Any], code: int) -> None:
        """Close the W&B run; wandb's own atexit handler does not run in a forked process."""
        run = self._run
        if run is None:
            return
        uploading = 0.0 if run.offline else read_timeout("FINISH")
        with self._attempt(), time_limit(uploading + PATIENCE):
            run.summary.update(dict(summary))
            run.finish(exit_code=code)
            _open_runs.remove(run)
            with TemporaryFile(dir=run.dir) as probe:  # W&B does not report a full disk
                probe.write(bytes(2**16))
            if not _open_runs:
                wandb.teardown(exit_code=code)

    def _start(self, cell: Cell, folder: Path, sweep: str, run_id: str | None) -> wandb.Run | None:
        option = cell.logger.options.get("mode", "disabled")
        mode: Mode = self._resolve_mode(option)
        if mode == "disabled":
            return None
        arguments = _arguments(cell, folder, sweep, run_id)
        try:
            return _init(mode, arguments)
        except wandb.errors.Error as error:  # no server answers, or it refuses the key
            if mode == "offline":
                raise
            self._note(f"the server cannot be used, {OFFLINE}: {one_line(error)}")
            return _init("offline", arguments)

    def _resolve_mode(self, option: str) -> Mode:
        """Return what mode=auto means here: WANDB_MODE, or online for those who are logged in."""
        if option == "auto":
            option = os.environ.get("WANDB_MODE", "")
        if option == "disabled":
            return "disabled"
        if option in ("offline", "dryrun"):
            return "offline"
        if option:
            return "online"
        try:  # without verification, which asks the server for every run and waits if there is none
            with time_limit(PATIENCE):
                return "online" if wandb.login(prompt=False, verify=False) else "offline"
        except (wandb.errors.Error, TimeoutError) as error:
            self._note(f"the key cannot be used, {OFFLINE}: {one_line(error)}")
            return "offline"

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Give up the W&B run if the block fails."""
        try:
            yield
        # W&B, its service, its server and the disk may raise any exception.
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            self._note(one_line(error))
            if self._run in _open_runs:
                _open_runs.remove(self._run)
            self._run = None

    def _note(self, failure: str) -> None:
        print(f"wandb: {failure}", flush=True)
        self.failure = self.failure or failure


@contextmanager
def shared_service(failures: list[str]) -> Iterator[None]:
    """Start the service process of W&B for all processes that start in this context.

    A service that runs already is used and left running. A run that finds none starts its own,
    which takes a quarter of a second. `failures` gets a sentence if the service does not end well.
    """
    if SERVICE in os.environ or os.environ.get("WANDB_MODE") == "disabled":
        yield
        return
    with started_service(_connect, read_timeout("FINISH") + PATIENCE, failures):
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


def _connect() -> None:
    """Connect to the shared service, or start it; if that fails, `wandb.init` starts its own."""
    try:
        with time_limit(30 + PATIENCE):  # wandb waits 30 s for its service to start
            wandb.setup(wandb.Settings(silent=True)).ensure_service()
    except Exception as error:
        print(f"wandb: the shared service cannot be used: {one_line(error)}", flush=True)
        os.environ.pop(SERVICE, None)


def _arguments(cell: Cell, folder: Path, sweep: str, run_id: str | None) -> dict[str, Any]:
    """Return the arguments of `wandb.init`, without the mode."""
    options = cell.logger.options
    return {
        "project": options["project"],
        "entity": options["entity"],
        "group": sweep,
        "name": cell.title,
        "tags": [cell.norm.name, cell.model.name, cell.data.name, cell.protocol],
        "config": {
            "id": cell.id,
            "sweep": sweep,
            "options": cell.options,  # in one key: W&B cannot group by a key with a dot
            **flatten(cell.identity),
        },
        "dir": folder.resolve(),  # the shared service may run in another folder
        "id": run_id,
        "resume": "allow" if run_id else None,
        "settings": wandb.Settings(
            console="off",  # log.txt has the output
            disable_git=True,  # row.json has the commit
            x_save_requirements=False,  # row.json has the versions; listing 140 takes 0.15 s
            silent=True,
            reinit="create_new",  # stacked seeds have one run each
            init_timeout=read_timeout("INIT"),
            finish_timeout=read_timeout("FINISH"),
            finish_timeout_raises=True,
        ),
    }


def _init(mode: Mode, arguments: Mapping[str, Any]) -> wandb.Run:
    _connect()
    with time_limit(read_timeout("INIT") + PATIENCE):
        run = wandb.init(mode=mode, **arguments)
    _open_runs.append(run)
    return run


def _offline_folder(run: wandb.Run, folder: Path) -> str:
    """Return the folder that `wandb sync` takes, relative to the folder of all runs.

    It may be moved.
    """
    offline, root = Path(run.dir).resolve().parent, folder.parents[1].resolve()
    if not offline.is_relative_to(root):
        raise OSError(f"{folder} cannot be written by W&B, which would write to {offline}")
    return str(offline.relative_to(root))


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
