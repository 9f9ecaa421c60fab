"""The end of a process group, told from the ends of its ranks. No process is started."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench.execution import process_group
from normbench.execution.process_group import GRACE, PATIENCE, ProcessGroup, log_of_rank
from normbench.execution.worker_process import INTERRUPTED, Exit, Message
from support.clock import Clock

DONE = Exit(0, Message("result", "row"))


@dataclass
class Rank:
    """A rank whose end and messages the test chooses."""

    end: Exit | None = None
    sent: list[Message] = field(default_factory=list)
    killed: bool = False
    process: Any = field(default_factory=lambda: SimpleNamespace(pid=7))

    def poll(self) -> Exit | None:
        return Exit(-signal.SIGKILL, None) if self.killed else self.end

    def messages(self) -> list[Message]:
        return self.sent

    def kill(self) -> None:
        self.killed = True

    def wait(self, _seconds: float) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(50.0)
    monkeypatch.setattr(process_group, "time", clock)
    return clock


def group(*ranks: Rank) -> ProcessGroup:
    processes: Sequence[Any] = ranks
    return ProcessGroup(processes)


def failed(at: float, reason: str = "no luck") -> Exit:
    return Exit(1, Message("failed", reason, at))


KILLED = Exit(-signal.SIGKILL, None)
STOPPED = Exit(INTERRUPTED, None)


def test_a_process_alone_has_no_rank() -> None:
    end = failed(3.0)
    alone = group(Rank(end))
    assert alone in ProcessGroup.active
    assert alone.poll() == end
    assert alone not in ProcessGroup.active
    assert alone.pid == 7


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ((failed(5.0), failed(3.0, "the cause"), failed(4.0)), 1),
        ((failed(2.0), failed(3.0)), 0),
        ((failed(0.5), KILLED), 1),  # it could send no message
        ((failed(2.0), STOPPED), 0),  # noticed at 50 s
        ((STOPPED, failed(60.0)), 0),
        ((failed(2.0), DONE), 0),
        ((KILLED, DONE), 0),
    ],
)
def test_the_first_failure_is_the_end(ends: tuple[Exit, ...], first: int, clock: Clock) -> None:
    assert group(*map(Rank, ends)).poll() == replace(ends[first], rank=first)


def test_a_written_row_counts_however_others_ended(clock: Clock) -> None:
    assert group(Rank(DONE), Rank(KILLED)).poll() == DONE


@pytest.mark.parametrize("rank", [0, 1])
def test_others_may_report_for_a_while_and_are_then_killed(rank: int, clock: Clock) -> None:
    both = [Rank(), Rank()]
    both[rank].end = failed(2.0)
    ranks = group(*both)
    assert ranks.poll() is None
    clock.now += PATIENCE - 0.1
    assert ranks.poll() is None
    assert not both[1 - rank].killed
    clock.now += 0.1
    assert ranks.poll() is None
    assert both[1 - rank].killed
    assert ranks.poll() == replace(failed(2.0), rank=rank)
    assert not both[rank].killed
    assert ranks not in ProcessGroup.active


@pytest.mark.parametrize(
    ("end", "patience"),
    [
        (STOPPED, PATIENCE),
        # The others may have been asked to stop, too, and write a checkpoint.
        (Exit(INTERRUPTED, Message("interrupted", None, 2.0)), GRACE),
    ],
    ids=["no message", "interrupted"],
)
def test_a_rank_killed_from_here_did_not_fail_first(
    end: Exit, patience: float, clock: Clock
) -> None:
    first, second = Rank(end), Rank()  # without a message, like one that was killed
    ranks = group(first, second)
    assert ranks.poll() is None
    clock.now += patience - 0.1
    assert ranks.poll() is None
    assert not second.killed
    clock.now += 0.1
    assert ranks.poll() is None
    assert second.killed
    assert ranks.poll() == replace(end, rank=0)


def test_rank_0_may_write_its_row_after_others_have_ended(clock: Clock) -> None:
    first, second = Rank(), Rank(Exit(0, Message("result", "followed")))
    ranks = group(first, second)
    assert ranks.poll() is None
    clock.now += 10 * PATIENCE
    assert ranks.poll() is None
    first.end = DONE
    assert ranks.poll() == DONE


def test_nothing_has_ended(clock: Clock) -> None:
    ranks = group(Rank(), Rank())
    assert ranks.poll() is None
    clock.now += 10 * PATIENCE
    assert ranks.poll() is None
    assert ranks.exits == {}


def test_messages_are_those_of_rank_0_while_it_runs(clock: Clock) -> None:
    first, second = Message("progress", 1), Message("progress", 2)
    ranks = group(Rank(sent=[first]), Rank(sent=[second]))
    assert [*ranks.messages()] == [first]
    ranks.exits[0] = (0.0, DONE)
    assert [*ranks.messages()] == []


def test_each_rank_has_a_log() -> None:
    assert log_of_rank(Path("run/log.txt"), 0) == Path("run/log.txt")
    assert log_of_rank(Path("run/log.txt"), 2) == Path("run/log.2.txt")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (failed(1.0), "no luck"),
        (replace(failed(1.0), rank=2), "rank 2: no luck"),
        (KILLED, "killed by signal 9"),
        (replace(KILLED, rank=1), "rank 1: killed by signal 9"),
        (Exit(3, None), "exited with code 3 and reported no result"),
        (Exit(0, None, rank=0), "rank 0: exited with code 0 and reported no result"),
        (Exit(4, Message("result", None)), "exited with code 4 and reported no result"),
    ],
)
def test_an_end_gives_its_reason(end: Exit, reason: str) -> None:
    assert end.reason == reason


def test_an_end_gives_its_kind_and_result() -> None:
    assert (DONE.kind, DONE.succeeded, DONE.result) == ("result", True, "row")
    assert (failed(1.0).kind, failed(1.0).succeeded, failed(1.0).result) == ("failed", False, None)
    assert (KILLED.kind, KILLED.succeeded, KILLED.result) == ("", False, None)
