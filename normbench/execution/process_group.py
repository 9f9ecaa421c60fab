"""The processes of one run, a device each; to the sweep they are like one child.

Rank 0 holds the lock, keeps state, curve and mirror, and writes the row; the others compute. Each
knows its place by the environment that torchrun gives its processes, so that Lightning finds itself
among them and starts none of its own.

When one of them fails, the others notice a broken connection, or wait for ever. What is reported is
the failure that came first, and not theirs.
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
from normbench.execution.distributed_env import Place
from normbench.execution.worker_process import Child, Ended, Message

PATIENCE = 2.0  # seconds that the others have to report, once one has ended

#: What torchrun and Slurm may have told the process that starts runs, and is not about them.
_PLACES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS",
)  # fmt: skip

_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # or cuBLAS is not


class Ranks:
    """Processes that train one run together."""

    #: All that have not ended, for whoever must stop everything at once.
    living: ClassVar["WeakSet[Ranks]"] = WeakSet()

    def __init__(self, members: Sequence[Child]) -> None:
        self.living.add(self)
        self.members = list(members)
        self.ours: set[int] = set()  # ranks that we have killed ourselves, which says nothing
        self.over: dict[int, tuple[float, Ended]] = {}  # when it was seen, and how it ended

    @property
    def pid(self) -> int | None:
        """Process id of rank 0."""
        return self.members[0].process.pid

    @property
    def handles(self) -> list[Any]:
        """What becomes ready when there is something to read or a rank is gone."""
        living = (child for number, child in enumerate(self.members) if number not in self.over)
        return [handle for child in living for handle in child.handles]

    def messages(self) -> Iterable[Message]:
        """What rank 0 has said since the last call; of the others only the end counts."""
        for number, child in enumerate(self.members):
            for message in child.messages() if number not in self.over else ():
                if number == 0:
                    yield message

    def ended(self) -> Ended | None:
        """How the run ended, once all its processes have; None before."""
        for number, child in enumerate(self.members):
            if number not in self.over and (end := child.ended()) is not None:
                self.over[number] = time.monotonic(), end
        if not self.over:
            return None
        if len(self.over) < len(self.members):
            # Who has trained along is over sooner than rank 0, which still has a row to write.
            ends = [at for number, (at, end) in self.over.items() if not number or not _good(end)]
            if not ends or time.monotonic() - min(ends) < PATIENCE:
                return None
            self.kill()
            return self.ended()
        self.living.discard(self)
        return self._verdict()

    def _verdict(self) -> Ended:
        first = self.over[0][1]
        if _good(first):
            return first  # the row is there, whatever became of the others at the end
        number = min(self.over, key=self._when)
        end = self.over[number][1]
        return end if len(self.members) == 1 else Ended(end.code, end.last, number)

    def _when(self, number: int) -> float:
        """When a rank failed. Who was killed says nothing, so everybody else noticed it later."""
        seen, end = self.over[number]
        if number in self.ours or _good(end):
            return math.inf
        if end.last is not None and end.last.kind in ("failed", "memory", "refused"):
            return end.last.at
        return seen if end.last is not None or end.code == 130 else 0.0

    def signal(self, number: int) -> None:
        """To all of them."""
        for child in self.members:
            child.signal(number)

    def join(self, seconds: float) -> None:
        """Until all have ended, at most `seconds`."""
        deadline = time.monotonic() + seconds
        for child in self.members:
            child.process.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """All of them."""
        self.living.discard(self)
        for number, child in enumerate(self.members):
            if number not in self.over:
                self.ours.add(number)
                child.kill()
        for child in self.members:
            child.process.join()


class Seat:
    """One of several runs that the same process trains, as if it were alone.

    Args:
        shared: the process. It says pairs: the number of a run, and what there is to say of it.
        number: of this run.
        inboxes: of all runs what has been said and not been read.
    """

    def __init__(self, shared: Ranks, number: int, inboxes: Sequence[deque[Message]]) -> None:
        self.shared, self.number, self.inboxes = shared, number, inboxes

    @property
    def pid(self) -> int | None:
        return self.shared.pid

    @property
    def handles(self) -> list[Any]:
        return self.shared.handles

    def messages(self) -> Iterable[Message]:
        """What was said of this run since the last call."""
        for message in self.shared.messages():
            if message.kind == "progress":
                number, content = message.content
                self.inboxes[number].append(replace(message, content=content))
        own = self.inboxes[self.number]
        while own:
            yield own.popleft()

    def ended(self) -> Ended | None:
        """How this run ended, once all have."""
        end = self.shared.ended()
        if end is None or not _good(end):
            return end
        assert end.last is not None
        return replace(end, last=replace(end.last, content=end.last.content[self.number]))

    def signal(self, number: int) -> None:
        """To the process, once for all."""
        if self.number == 0:
            self.shared.signal(number)

    def join(self, seconds: float) -> None:
        self.shared.join(seconds)

    def kill(self) -> None:
        self.shared.kill()


def seats(shared: Ranks, number: int) -> list[Seat]:
    """Those of so many runs that one process trains."""
    inboxes: list[deque[Message]] = [deque() for _ in range(number)]
    return [Seat(shared, each, inboxes) for each in range(number)]


def _good(end: Ended) -> bool:
    return end.last is not None and end.last.kind == "result"


def start(
    target: str,
    request: Any,
    devices: int,
    *,
    log: Path,
    environment: Mapping[str, str | None] | None = None,
) -> Ranks:
    """Run `target` on (request, tell) in as many processes as there are devices.

    Args:
        target: "module:function", as of `normbench.execution.worker_process.start`.
        request: what each of them gets.
        devices: how many.
        log: file of rank 0; that of rank 1 is `log.1.txt` beside `log.txt`.
        environment: variables of all of them.
    """
    members = []
    try:
        for number, place in enumerate(_places(devices)):
            if number:
                log_of(log, number).unlink(missing_ok=True)
            members.append(_one(target, request, place, log, environment))
    except BaseException:
        for child in members:
            child.kill()
        raise
    return Ranks(members)


def join(
    target: str,
    request: Any,
    place: Place,
    *,
    log: Path,
    environment: Mapping[str, str | None] | None = None,
) -> Ranks:
    """Run `target` as the one rank that is this process's part of a run; see `start`."""
    global _JOINED
    _JOINED = True
    return Ranks([_one(target, request, place, log, environment)])


def _one(
    target: str,
    request: Any,
    place: Place | None,
    log: Path,
    environment: Mapping[str, str | None] | None,
) -> Child:
    """The process at `place`; None: it trains alone."""
    own = {} if place is None else place.environment
    shared = {**dict.fromkeys(_PLACES), **_DETERMINISTIC}
    variables = {**shared, **own, **(environment or {})}
    file = log_of(log, 0 if place is None else place.rank)
    return worker_process.start(target, request, log=file, environment=variables)


_JOINED = False


def joined() -> bool:
    """Whether this process has ever started its rank of a run."""
    return _JOINED


def log_of(log: Path, number: int) -> Path:
    """The file that takes what rank `number` prints."""
    return log if not number else log.with_name(f"{log.stem}.{number}{log.suffix}")


def stop(running: Iterable[Ranks | Seat], number: int = signal.SIGINT) -> None:
    """Ask all to stop, wait for a while, kill the rest."""
    running = list(running)
    for each in running:  # all first, so that they write their states beside each other
        each.signal(number)
    deadline = time.monotonic() + worker_process.GRACE
    try:
        for each in running:
            each.join(max(0.0, deadline - time.monotonic()))
    finally:  # also when the user loses patience and interrupts the waiting
        for each in running:
            each.kill()


def _places(devices: int) -> list[Place | None]:
    """Those of as many processes on this machine; one alone needs none."""
    if devices == 1:
        return [None]
    with socket.socket() as probe:  # a port that nobody uses now
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = uuid4().hex
    return [
        Place(
            rank=number, world=devices, local=number, locals=devices, node=0, nodes=1,
            address="127.0.0.1", port=str(port), name=name, by_agent=False,
        )
        for number in range(devices)
    ]  # fmt: skip
