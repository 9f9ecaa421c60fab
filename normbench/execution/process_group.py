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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4
from weakref import WeakSet

from normbench.execution import worker_process
from normbench.execution.distributed_env import VARIABLES, DistributedEnv
from normbench.execution.worker_process import INTERRUPTED, Exit, Message, WorkerProcess

GRACE = 15.0  # seconds that interrupted processes have to write their states
PATIENCE = 2.0  # seconds in which the other ranks must report after one has ended

#: Variables for all worker processes. What torchrun and Slurm say is about the scheduler's process.
_ENVIRONMENT: dict[str, str | None] = {
    **dict.fromkeys((*VARIABLES, "NODE_RANK", "SLURM_NTASKS")),
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic
}


class ProcessGroup:
    """The ranks of one run on this machine."""

    #: All groups that have not ended, so that they can be stopped from anywhere in the process.
    active: ClassVar["WeakSet[ProcessGroup]"] = WeakSet()
    #: This process has started a rank of a group of torchrun or srun.
    rank_started: ClassVar[bool] = False

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self.active.add(self)
        self.processes = list(processes)
        self.killed: set[int] = set()  # ranks killed from here: their exit explains nothing
        self.exits: dict[int, tuple[float, Exit]] = {}  # by rank, with the time of noticing it

    @property
    def pid(self) -> int | None:
        """Process id of rank 0."""
        return self.processes[0].process.pid

    def messages(self) -> Iterable[Message]:
        """Yield the messages of rank 0 since the last call, and drop those of other ranks."""
        for rank, process in enumerate(self.processes):
            for message in process.messages() if rank not in self.exits else ():
                if rank == 0:
                    yield message

    def poll(self) -> Exit | None:
        """Return the end of the run once all its processes have ended; None before.

        Read `messages` first: this drops the rest.
        """
        for rank, process in enumerate(self.processes):
            if rank not in self.exits and (end := process.poll()) is not None:
                self.exits[rank] = time.monotonic(), end
        if not self.exits:
            return None
        if len(self.exits) < len(self.processes):
            # Ranks above 0 end sooner than rank 0, which still has to write the row.
            ends = [each for rank, each in self.exits.items() if not rank or not each[1].succeeded]
            # A rank that was asked to stop makes the others save, too.
            patience = GRACE if all(end.interrupted for _, end in ends) else PATIENCE
            if not ends or time.monotonic() - min(at for at, _ in ends) < patience:
                return None
            self.kill()
            return None
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
        if end.last is not None:
            return end.last.at
        return noticed if end.code == INTERRUPTED else 0.0

    def send_signal(self, number: int) -> None:
        """Send signal `number` to all ranks that run."""
        for rank, process in enumerate(self.processes):
            if rank not in self.exits:
                process.send_signal(number)

    def kill(self) -> None:
        """Kill all ranks."""
        self.active.discard(self)
        for rank, process in enumerate(self.processes):
            if rank not in self.exits:
                self.killed.add(rank)
                process.kill()
        for process in self.processes:
            process.wait(PATIENCE)  # longer only in the kernel, for a disk that does not answer


def start(
    target: str,
    argument: Any,
    devices: int = 1,
    *,
    env: DistributedEnv | None = None,
    log: Path | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> ProcessGroup:
    """Call `target` with (argument, report) in one worker process per device.

    Args:
        target: "module:function", see `normbench.execution.worker_process.start`.
        argument: sent to each of them.
        devices: number of processes.
        env: the rank to start, of a group that torchrun or srun started; None: all ranks.
        log: file for the output of rank 0; that of rank 1 is `log.1.txt` beside `log.txt`.
        environment: environment variables of all of them; None unsets one.
    """
    ProcessGroup.rank_started |= env is not None
    several = devices > 1 and env is None
    envs: Sequence[DistributedEnv | None] = _single_node_envs(devices) if several else [env]
    processes: list[WorkerProcess] = []
    try:
        for each in envs:
            rank, rank_variables = (0, {}) if each is None else (each.rank, each.variables)
            variables = {**_ENVIRONMENT, **rank_variables, **(environment or {})}
            file = log and log_of_rank(log, rank)
            if file and rank:
                file.unlink(missing_ok=True)
            worker_process.start(
                target, argument, log=file, environment=variables, register=processes.append
            )
    except BaseException:
        for process in processes:
            process.kill()
        raise
    return ProcessGroup(processes)


def log_of_rank(log: Path, rank: int) -> Path:
    """Return the log file of `rank`, given that of rank 0."""
    return log if not rank else log.with_name(f"{log.stem}.{rank}{log.suffix}")


def wait(groups: Iterable[ProcessGroup], seconds: float) -> None:
    """Wait until a process of `groups` has sent a message or ended, at most `seconds`."""
    running = [
        process
        for group in groups
        for rank, process in enumerate(group.processes)
        if rank not in group.exits
    ]
    connection.wait([each.pipe for each in running], timeout=seconds)


def wait_for_exit(group: ProcessGroup, *, saves: bool = False) -> Exit:
    """Wait for the end of `group`; if interrupted, kill it, or `stop` one that saves its state."""
    try:
        while (end := group.poll()) is None:
            wait([group], 1.0)
            for _ in group.messages():  # a full pipe would block it
                pass
    except BaseException:
        if saves:
            stop([group])
        group.kill()
        raise
    return end


def stop(groups: Iterable[ProcessGroup]) -> None:
    """Interrupt all groups, wait for at most `GRACE` seconds, and kill the rest."""
    groups = list(groups)
    for group in groups:  # all first, so that they write their states in parallel
        group.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE
    try:
        for process in [process for group in groups for process in group.processes]:
            process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also if the user interrupts the wait
        for group in groups:
            group.kill()


def _single_node_envs(devices: int) -> list[DistributedEnv]:
    """Return the environments of `devices` ranks on this machine."""
    with socket.socket() as free:  # the system chooses a free port
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": devices, "LOCAL_WORLD_SIZE": devices, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": uuid4().hex,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }  # fmt: skip
    envs = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(devices)]
    return [DistributedEnv({name: str(value) for name, value in env.items()}) for env in envs]
