"""The process group of one run: a worker process for each device, and what happens if one fails.

Rank 0 holds the lock, writes state, curve and W&B run, and writes the row; the others only compute.
Each gets the environment variables of torchrun, so that Lightning takes them for the ranks of one
training and starts no process itself.

When a rank fails, the others lose their connection to it or wait for ever. The group reports the
failure that came first.
"""

import math
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4
from weakref import WeakSet

from normbench.execution import worker_process
from normbench.execution.distributed_env import DistributedEnv
from normbench.execution.worker_process import INTERRUPTED, Exit, Message, WorkerProcess

PATIENCE = 2.0  # seconds in which the other ranks must report after one has ended

#: Variables of torchrun and Slurm that describe the scheduler's process, not its worker processes.
_LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS",
)  # fmt: skip

_DETERMINISTIC_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


class ProcessGroup:
    """The ranks of one run on this machine."""

    #: All groups that have not ended, so that they can be stopped from anywhere in the process.
    active: ClassVar["WeakSet[ProcessGroup]"] = WeakSet()

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self.active.add(self)
        self.processes = list(processes)
        self.killed: set[int] = set()  # ranks killed from here: their exit explains nothing
        self.exits: dict[int, tuple[float, Exit]] = {}  # by rank, with the time of noticing it

    @property
    def pid(self) -> int | None:
        """Process id of rank 0."""
        return self.processes[0].process.pid

    @property
    def handles(self) -> list[Any]:
        """Handles for `multiprocessing.connection.wait`."""
        running = (each for rank, each in enumerate(self.processes) if rank not in self.exits)
        return [handle for process in running for handle in process.handles]

    def messages(self) -> Iterable[Message]:
        """Yield the messages of rank 0 since the last call, and drop those of other ranks."""
        for rank, process in enumerate(self.processes):
            for message in process.messages() if rank not in self.exits else ():
                if rank == 0:
                    yield message

    def poll(self) -> Exit | None:
        """Return the end of the run once all its processes have ended; None before."""
        for rank, process in enumerate(self.processes):
            if rank not in self.exits and (end := process.poll()) is not None:
                self.exits[rank] = time.monotonic(), end
        if not self.exits:
            return None
        if len(self.exits) < len(self.processes):
            # Ranks above 0 end sooner than rank 0, which still has to write the row.
            ends = [at for rank, (at, end) in self.exits.items() if not rank or not end.succeeded]
            if not ends or time.monotonic() - min(ends) < PATIENCE:
                return None
            self.kill()
            return self.poll()
        self.active.discard(self)
        return self._first_failure()

    def _first_failure(self) -> Exit:
        rank_0 = self.exits[0][1]
        if rank_0.succeeded:
            return rank_0  # the row is written, however the others ended
        rank = min(self.exits, key=self._failure_time)
        end = self.exits[rank][1]
        return end if len(self.processes) == 1 else replace(end, rank=rank)

    def _failure_time(self, rank: int) -> float:
        """Return a sort key for the failure of `rank`, in seconds.

        A killed rank sends no message, so it sorts first; later reports are consequences.
        """
        noticed, end = self.exits[rank]
        if rank in self.killed or end.succeeded:
            return math.inf
        if end.last is not None and end.last.kind in ("failed", "memory", "refused"):
            return end.last.at
        return noticed if end.last is not None or end.code == INTERRUPTED else 0.0

    def send_signal(self, number: int) -> None:
        """Send signal `number` to all ranks."""
        for process in self.processes:
            process.send_signal(number)

    def join(self, seconds: float) -> None:
        """Wait until all ranks have ended, at most `seconds`."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.process.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """Kill all ranks."""
        self.active.discard(self)
        for rank, process in enumerate(self.processes):
            if rank not in self.exits:
                self.killed.add(rank)
                process.kill()
        for process in self.processes:
            process.process.join()


class StackedRun:
    """One of several runs in the same process group, with the interface of a `ProcessGroup`.

    Args:
        group: trains all of them. Its messages are pairs (index of a run, content).
        index: of this run.
        inboxes: by run, the messages that were received and not yet read.
    """

    def __init__(self, group: ProcessGroup, index: int, inboxes: Sequence[deque[Message]]) -> None:
        self.group, self.index, self.inboxes = group, index, inboxes

    @property
    def pid(self) -> int | None:
        return self.group.pid

    @property
    def handles(self) -> list[Any]:
        return self.group.handles

    def messages(self) -> Iterable[Message]:
        """Yield the messages about this run since the last call."""
        for message in self.group.messages():
            if message.kind == "progress":
                index, content = message.content
                self.inboxes[index].append(replace(message, content=content))
        inbox = self.inboxes[self.index]
        while inbox:
            yield inbox.popleft()

    def poll(self) -> Exit | None:
        """Return the end of this run once all have ended; None before."""
        end = self.group.poll()
        if end is None or end.last is None or not end.succeeded:
            return end
        return replace(end, last=replace(end.last, content=end.last.content[self.index]))

    def send_signal(self, number: int) -> None:
        """Send signal `number` to the group, once for all of its runs."""
        if self.index == 0:
            self.group.send_signal(number)

    def join(self, seconds: float) -> None:
        self.group.join(seconds)

    def kill(self) -> None:
        self.group.kill()


def stacked_runs(group: ProcessGroup, count: int) -> list[StackedRun]:
    """Return the `count` runs that `group` trains together."""
    inboxes: list[deque[Message]] = [deque() for _ in range(count)]
    return [StackedRun(group, index, inboxes) for index in range(count)]


def start(
    target: str,
    argument: Any,
    devices: int,
    *,
    log: Path,
    environment: Mapping[str, str | None] | None = None,
) -> ProcessGroup:
    """Call `target` with (argument, report) in one worker process per device.

    Args:
        target: "module:function", see `normbench.execution.worker_process.start`.
        argument: sent to each of them.
        devices: number of processes.
        log: file for the output of rank 0; that of rank 1 is `log.1.txt` beside `log.txt`.
        environment: environment variables of all of them.
    """
    processes = []
    try:
        for rank, env in enumerate(_single_node_envs(devices)):
            if rank:
                log_of_rank(log, rank).unlink(missing_ok=True)
            processes.append(_start_process(target, argument, env, log, environment))
    except BaseException:
        for process in processes:
            process.kill()
        raise
    return ProcessGroup(processes)


def start_rank(
    target: str,
    argument: Any,
    env: DistributedEnv,
    *,
    log: Path,
    environment: Mapping[str, str | None] | None = None,
) -> ProcessGroup:
    """Call `target` in one worker process, a rank of a group that torchrun or srun started."""
    global _RANK_STARTED
    _RANK_STARTED = True
    return ProcessGroup([_start_process(target, argument, env, log, environment)])


def _start_process(
    target: str,
    argument: Any,
    env: DistributedEnv | None,
    log: Path,
    environment: Mapping[str, str | None] | None,
) -> WorkerProcess:
    rank, rank_variables = (0, {}) if env is None else (env.rank, env.variables)
    defaults = {**dict.fromkeys(_LAUNCHER_VARIABLES), **_DETERMINISTIC_CUBLAS}
    variables = {**defaults, **rank_variables, **(environment or {})}
    return worker_process.start(target, argument, log=log_of_rank(log, rank), environment=variables)


_RANK_STARTED = False


def rank_was_started() -> bool:
    """Return whether this process has called `start_rank`."""
    return _RANK_STARTED


def log_of_rank(log: Path, rank: int) -> Path:
    """Return the log file of `rank`, given that of rank 0."""
    return log if not rank else log.with_name(f"{log.stem}.{rank}{log.suffix}")


def stop(groups: Iterable[ProcessGroup | StackedRun], number: int = signal.SIGINT) -> None:
    """Send signal `number` to all groups, wait for at most `GRACE` seconds, and kill the rest."""
    groups = list(groups)
    for group in groups:  # all first, so that they write their states in parallel
        group.send_signal(number)
    deadline = time.monotonic() + worker_process.GRACE
    try:
        for group in groups:
            group.join(max(0.0, deadline - time.monotonic()))
    finally:  # also if the user interrupts the wait
        for group in groups:
            group.kill()


def _single_node_envs(devices: int) -> list[DistributedEnv | None]:
    """Return the environments of `devices` ranks on this machine; a single one needs none."""
    if devices == 1:
        return [None]
    with socket.socket() as free:  # the system chooses a free port
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_id = uuid4().hex
    return [
        DistributedEnv(
            rank=rank, world_size=devices, local_rank=rank, local_world_size=devices,
            node_rank=0, num_nodes=1, master_address="127.0.0.1", master_port=str(port),
            run_id=run_id, uses_agent_store=False,
        )
        for rank in range(devices)
    ]  # fmt: skip
