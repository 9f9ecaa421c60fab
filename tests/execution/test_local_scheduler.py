"""The queue of runs on this machine: what follows when one ends. Nothing is trained."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from normbench import results, run_files
from normbench.config import plan
from normbench.config.cells import Settings
from normbench.execution import local_scheduler, process_group
from normbench.execution.distributed_env import DistributedEnv
from normbench.execution.job import Summary
from normbench.execution.local_scheduler import LocalScheduler, Running
from normbench.execution.scheduler import QueueEntry
from normbench.execution.sweep import make_job
from normbench.execution.worker_process import Exit, Message
from normbench.results import Row
from support.cells import cell

NO_MEMORY = Exit(1, Message("memory", "no room"))
FAILED = Exit(1, Message("failed", "no luck"))
RANK_0 = DistributedEnv({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"})


@dataclass
class Group:
    """A process group whose end and messages the test chooses."""

    end: Exit | None = None
    sent: Sequence[Message] = ()
    pid: int = 7
    killed: bool = False
    processes: list[Any] = field(default_factory=list)

    def poll(self) -> Exit | None:
        return self.end

    def messages(self) -> Sequence[Message]:
        return self.sent

    def kill(self) -> None:
        self.killed = True


def entry(settings: Settings, *words: str, seed: int = 0, **options: Any) -> QueueEntry:
    """Return a queued job of a cell of 32 workers on the CPU."""
    chosen = replace(cell("trainer=cpu", *words), seed=seed)
    return QueueEntry(make_job(chosen, settings), **options)


def trained_row(of: QueueEntry, **changes: Any) -> Row:
    fields: dict[str, Any] = {"status": "ok", "test_top1": 90.0, **changes}
    return Row(**{**of.cell.description("default"), **fields})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        str(tmp_path),
        reports=None,
        jobs=None,
        force=False,
        resume=True,
        stack_seeds=True,
        sweep="default",
    )


def scheduler(
    entries: Sequence[QueueEntry],
    settings: Settings,
    started: Sequence[QueueEntry] = (),
    **options: Any,
) -> LocalScheduler:
    """Return a scheduler of `entries` that has taken `started` from its queue."""
    made = LocalScheduler(entries, settings, Summary(), {}, **{"gpus": 0, "memory": 7, **options})
    for each in started:
        made.queue.remove(each)
        made.screen.add(each.cell.id, each.cell.title)
    return made


def test_the_first_group_of_a_stack_keeps_its_rows_if_a_later_one_has_no_memory(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    *first, last = entries = [entry(settings, seed=seed, stackable=True) for seed in range(3)]
    local = scheduler(entries, settings, started=entries)
    for each in first:
        results.write(each.job.folder, trained_row(each))
    local.update(running(local, Group(NO_MEMORY), *entries))
    assert [*local.queue] == [last]
    assert not last.stackable
    assert local.summary == Summary(trained=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"1/3 ok        {first[0].cell.title}")
    assert lines[3] == f"out of memory  {last.cell.title}: stacked with other seeds; trying alone"


def test_an_older_row_does_not_end_a_stack(settings: Settings) -> None:
    forced = replace(settings, force=True)
    oom, old = entry(settings, seed=0, stackable=True), entry(forced, seed=1, stackable=True)
    local = scheduler([oom, old], settings, started=[oom, old])
    results.write(oom.job.folder, trained_row(oom, status="oom"))
    results.write(old.job.folder, trained_row(old))
    for each in (oom, old):
        each.earlier_row = each.row_time  # as at the start of its process
    local.update(running(local, Group(NO_MEMORY), oom, old))
    assert [*local.queue] == [old, oom]
    assert local.summary == Summary()


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_is_killed_after_its_row_is_finished(force: bool, settings: Settings) -> None:
    only = entry(replace(settings, force=force))
    local = scheduler([only], settings, started=[only])
    results.write(only.job.folder, trained_row(only, finished="earlier"))
    only.earlier_row = only.row_time if force else None
    if force:
        results.write(only.job.folder, trained_row(only, finished="now"))
    local.update(running(local, Group(Exit(-9, None)), only))
    assert local.summary == Summary(trained=1)


def test_a_run_without_an_accuracy_ends_like_others(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only])
    results.write(only.job.folder, trained_row(only, status="diverged", test_top1=None))
    only.started = time.monotonic() - 100
    local.finish(only)
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith(f"1/1 diverged  {only.cell.title}")
    assert line.endswith("  100 s")
    assert local.screen.failed == 0


@pytest.mark.parametrize(
    ("words", "jobs", "gpus", "line"),
    [
        ([], None, 0, "4 runs at a time, threads=1, on 8 CPU cores"),
        ([], 3, 0, "3 runs at a time, threads=1, on 8 CPU cores"),
        (["trainer.threads=4"], None, 2, "2 runs at a time, threads=4, on 8 CPU cores"),
        (["trainer.threads=16"], None, 0, "1 run at a time, threads=16, on 0 CPU cores"),
        (
            ["trainer.devices=4"], None, 0,
            "2 runs at a time, up to 4 processes each, threads=1, on 8 CPU cores",
        ),
        (["trainer.accelerator=gpu"], None, 3, "3 runs at a time, threads=1, on 3 GPUs"),
        (
            ["trainer.accelerator=gpu", "trainer.devices=2"], None, 3,
            "1 run at a time, up to 2 processes each, threads=1, on 3 GPUs",
        ),
    ],
)  # fmt: skip
def test_slots_are_what_cores_or_gpus_allow(
    words: list[str], jobs: int | None, gpus: int, line: str, settings: Settings,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    entries = [entry(settings, *words, seed=seed) for seed in range(4)]
    local = scheduler(entries, replace(settings, jobs=jobs), gpus=gpus)
    assert capsys.readouterr().out == f"{line}\n"
    assert local.slots == int(line[0])
    assert local.gpus == [str(number) for number in range(gpus)]


def test_an_empty_queue_has_no_slots(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scheduler([], settings).slots == 0
    assert capsys.readouterr().out == ""


def test_gpus_that_are_visible_are_those_used(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-1")
    local = scheduler([entry(settings)], settings, gpus=2)
    assert local.gpus == ["3", "GPU-1"]
    assert local.least_used_gpus(1) == ["3"]
    local.running = [Running(Group(), [], ["3"])]  # type: ignore[arg-type]
    assert local.least_used_gpus(1) == ["GPU-1"]
    assert local.least_used_gpus(2) == ["GPU-1", "3"]


@pytest.mark.parametrize(
    ("free", "seeds", "others", "stacked"),
    [
        (1, 5, 0, 4),  # all of them
        (2, 5, 0, 2),  # 3 and 2
        (2, 4, 0, 1),
        (4, 5, 0, 1),
        (8, 5, 0, 0),
        (4, 5, 2, 2),  # two slots are for other cells
        (2, 5, 4, 4),
    ],
)
def test_as_many_seeds_are_stacked_as_leave_no_slot_empty(
    free: int, seeds: int, others: int, stacked: int, settings: Settings
) -> None:
    same = [entry(settings, seed=seed, stackable=True) for seed in range(seeds)]
    rest = [entry(settings, f"recipe.lr={1 + n}", stackable=True) for n in range(others)]
    local = scheduler([*same, *rest], settings)
    first = local.queue.popleft()
    assert local.take_seeds(first, free) == same[1 : 1 + stacked]
    assert [*local.queue] == [*same[1 + stacked :], *rest]


def test_seeds_that_cannot_be_stacked_stay_in_the_queue(settings: Settings) -> None:
    first, second, third = (entry(settings, seed=seed, stackable=seed != 1) for seed in range(3))
    local = scheduler([first, second, third], settings, started=[first])
    assert local.take_seeds(second, 1) == []
    local.fitting[first.memory_key] = 1
    assert local.take_seeds(first, 1) == []
    del local.fitting[first.memory_key]
    assert local.take_seeds(first, 1) == [third]


def test_without_memory_a_run_has_fewer_workers_in_each_pass(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    only = entry(settings, "batch=64")  # 2 workers: two plans
    fastest, smallest = only.plans
    only.job = replace(only.job, commit="abc")
    local = scheduler([only], settings, started=[only])
    local.handle_out_of_memory(only, NO_MEMORY, stacked=False)
    assert only.job.plan == smallest
    assert local.fitting == {only.memory_key: 1}
    assert [*local.queue] == [only]
    out = capsys.readouterr().out
    assert f"out of memory  {only.cell.title}: {fastest}; trying {smallest}\n" in out
    local.screen.add(only.cell.id, only.cell.title)
    local.queue.clear()
    local.handle_out_of_memory(only, NO_MEMORY, stacked=False)
    (row,) = results.read(local.root)
    assert (row.status, row.reason, row.device_memory) == ("oom", "no room", 7)
    assert (row.plan, row.threads, row.sweep) == (str(smallest), 1, "default")
    assert row.commit == "abc"
    assert local.fitting == {only.memory_key: 1}
    assert not local.queue
    assert "1/1 oom " in capsys.readouterr().out
    assert local.summary == Summary()


def test_ranks_of_a_launcher_keep_their_plan(settings: Settings) -> None:
    only = entry(settings, "batch=64")
    local = scheduler([only], settings, started=[only], env=RANK_0)
    local.handle_out_of_memory(only, NO_MEMORY, stacked=False)
    assert not local.queue
    assert local.summary.failed == [
        f"{only.cell.title}: {only.plans[0]} needs too much memory; trainer.per_forward=N needs "
        f"less ({only.job.log})"
    ]


def test_a_job_starts_with_the_plan_that_other_seeds_had_room_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    def start(*arguments: Any, **options: Any) -> Group:
        starts.append((arguments, options))
        return Group()

    monkeypatch.setattr(process_group, "start", start)
    words = ["batch=64", "trainer.accelerator=gpu"]
    first, second = (entry(settings, *words, seed=seed) for seed in range(2))
    local = scheduler([first, second], settings, started=[first], gpus=2)
    local.fitting[first.memory_key] = 1
    run_files.write_failure(second.job.folder, 1, "earlier", "log", 1.0)
    before = time.monotonic()
    local.fill_slots()
    assert second.attempt == 1
    assert before <= second.started <= time.monotonic()
    ((target, jobs, devices), options) = starts[0]
    assert target == local_scheduler.TRAIN
    assert [job.plan for job in jobs] == [second.plans[1]]
    assert devices == 1
    assert options == {
        "env": None, "log": second.job.log, "environment": {"CUDA_VISIBLE_DEVICES": "0"}
    }  # fmt: skip
    assert run_files.read_failures(second.job.folder) == []
    assert [each.entries for each in local.running] == [[second]]


def test_jobs_start_while_there_are_free_slots(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "start", lambda *_, **_more: Group())
    seeds = [entry(settings, seed=seed, stackable=True) for seed in range(4)]
    others = [entry(settings, f"recipe.lr={1 + number}") for number in range(2)]
    local = scheduler([*seeds, *others], replace(settings, jobs=3))
    local.fill_slots()
    # A slot for each other cell, so that all seeds share the third.
    assert [each.entries for each in local.running] == [seeds, others[:1], others[1:]]
    local = scheduler([*seeds, *others], replace(settings, jobs=2))
    local.fill_slots()
    assert [each.entries for each in local.running] == [seeds, others[:1]]
    local.fill_slots()
    assert len(local.running) == 2
    assert [*local.queue] == others[1:]


def test_a_job_for_the_cpu_starts_with_its_fastest_plan_and_no_gpu(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = []

    def start(*_: Any, environment: dict[str, str], **_more: Any) -> Group:
        environments.append(environment)
        return Group()

    monkeypatch.setattr(process_group, "start", start)
    only = entry(settings, "batch=64")
    scheduler([only], settings, gpus=2).fill_slots()
    assert only.attempt == 0
    assert environments == [{}]


def test_synchronized_statistics_have_one_plan(settings: Settings) -> None:
    one, both = (entry(settings, "batch=64", single_pass=single) for single in (True, False))
    assert len(both.plans) == 2
    assert one.plans == both.plans[:1]


@pytest.mark.parametrize("stacked", [1, 2, 3])
def test_stacks_without_memory_are_tried_as_single_runs(
    stacked: int, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [entry(settings, "batch=64", seed=seed, stackable=True) for seed in range(stacked)]
    local = scheduler(entries, settings, started=entries)
    local.update(running(local, Group(NO_MEMORY), *entries))
    assert {each.cell.seed for each in local.queue} == set(range(stacked))
    assert [each.attempt for each in entries] == [int(stacked == 1)] * stacked
    assert [each.stackable for each in entries] == [stacked == 1] * stacked
    alone = "stacked with other seeds; trying alone"
    assert capsys.readouterr().out.count(alone) == (stacked if stacked > 1 else 0)


def test_a_run_of_another_command_is_waited_for_or_reused(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only])
    local.screen.remove(only.cell.id)
    with run_files.lock(only.job.folder):
        assert not local.is_open(only)
        assert not local.is_open(only)
    with run_files.lock(local.root / "elsewhere" / only.cell.id):
        assert not local.is_open(only)
    assert [*local.queue] == [only, only, only]
    assert capsys.readouterr().out.count("another process is training it") == 1
    assert local.is_open(only)
    results.write(
        local.root / "elsewhere" / only.cell.id, trained_row(only, sweep="elsewhere", status="oom")
    )
    assert local.is_open(only)  # there may be more memory here
    results.write(local.root / "elsewhere" / only.cell.id, trained_row(only, sweep="elsewhere"))
    assert not local.is_open(only)
    assert local.summary == Summary(reused=1)
    assert f"1/1 finished by another command  {only.cell.title}" in capsys.readouterr().out
    local.settings = replace(settings, force=True)
    assert local.is_open(only)
    # On a node of a forced sweep, only what has finished since counts.
    local.settings = replace(settings, newer_than="2099")
    assert local.is_open(only)


def test_ranks_of_a_launcher_do_not_wait_for_another_command(settings: Settings) -> None:
    """The other ranks would wait in vain for a decision."""
    only = entry(settings)
    local = scheduler([only], settings, env=RANK_0)
    with run_files.lock(only.job.folder):
        assert not local.is_open(only)
    (failure,) = local.summary.failed
    assert failure.startswith(f"{only.cell.title}: another process is training it")


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("200000 100000\n", 2), ("150000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", 8),
        ("1600000 100000\n", 8), (None, 8),
    ],
)  # fmt: skip
def test_cores_are_those_that_a_container_may_use(
    content: str | None, cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(plan, "CPU_LIMIT", tmp_path / "cpu.max")
    if content is not None:
        (tmp_path / "cpu.max").write_text(content)
    assert plan.usable_cores() == cores


def shared(settings: Settings, *others: QueueEntry) -> QueueEntry:
    """Return a job whose computation is that of `others`."""
    first = entry(settings, "batch=4")
    first.job = replace(first.job, computation=first.cell.computation)
    first.sharing = [each.cell for each in others]
    return first


def test_cells_of_the_same_computation_get_a_copy(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [entry(settings, "batch=8"), entry(settings, "batch=16")]
    first = shared(settings, *others)
    local = scheduler([first], settings, started=[first])
    row = trained_row(first, computation=first.job.computation)
    results.write(first.job.folder, row)
    local.finish(first)
    copies = [row for row in results.read(local.root) if row.shared_with]
    assert {(each.id, each.shared_with) for each in copies} == {
        (each.cell.id, first.cell.id) for each in others
    }
    assert local.summary == Summary(shared=2)
    out = capsys.readouterr().out
    assert "\n1/1 ok " in out
    assert f"\nshared    {others[1].cell.title}: same computation as {row.id}\n" in out
    # The computation of a job that waits may have been trained in the meantime.
    late = replace(first, job=replace(others[0].job, computation=first.job.computation))
    late.job.folder.joinpath("row.json").unlink()
    assert not local.is_open(late)
    assert local.summary == Summary(shared=3)


def test_rows_of_other_commands_are_shared_and_counted(settings: Settings) -> None:
    others = [entry(settings, "batch=8"), entry(settings, "norm=gn")]
    first = shared(settings, others[0])
    local = scheduler([first, others[1]], settings)
    local.reuse(first, trained_row(first, computation=first.job.computation))
    results.write(
        local.root / "elsewhere" / others[1].cell.id, trained_row(others[1], sweep="elsewhere")
    )
    assert not local.is_open(others[1])
    assert local.summary == Summary(reused=2, shared=1)
    assert local.screen.failed == 0
    assert {row.id for row in results.read(local.root)} == {each.cell.id for each in others}


def test_a_cell_with_more_workers_may_have_room(settings: Settings) -> None:
    others = [entry(settings, "batch=2"), entry(settings, "batch=1")]
    first = shared(settings, *others)
    local = scheduler([first], settings, started=[first])
    results.write(first.job.folder, trained_row(first, status="oom", computation="key"))
    local.finish(first)
    (following,) = local.queue
    assert following.cell == others[0].cell
    assert following.job.folder == others[0].job.folder
    assert following.job.plan == others[0].plans[0]
    assert following.sharing == [others[1].cell]
    assert local.screen.time_left.waiting == 1


def test_cells_that_share_a_failed_computation_have_failed(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [entry(settings, "batch=8"), entry(settings, "batch=16")]
    first = shared(settings, *others)
    local = scheduler([first], settings, started=[first])
    local.fail(first, "no luck", first.job.log)
    assert local.summary.failed == [
        f"{first.cell.title}: no luck ({first.job.log})",
        *(f"{each.cell.title}: same computation as {first.cell.title}" for each in others),
    ]
    assert local.screen.failed == 1  # computation
    begun, *others_failed = [f"failed  {line}" for line in local.summary.failed]
    assert capsys.readouterr().out.splitlines()[1:] == [f"1/1 {begun}", *others_failed]


def running(local: LocalScheduler, group: Group, *entries: QueueEntry) -> Running:
    run: Any = Running(group, entries, [])  # type: ignore[arg-type]
    local.running.append(run)
    return run  # type: ignore[no-any-return]


def test_the_end_of_a_stack_is_that_of_each_job(settings: Settings) -> None:
    entries = [entry(settings, seed=seed) for seed in range(5)]
    *finished, busy, queued = entries
    local = scheduler(entries, settings, started=entries[:-1])
    end = Exit(0, Message("result", ["ok", "finished", "diverged", "busy"]))
    for each in finished:
        results.write(each.job.folder, trained_row(each))
    local.update(running(local, Group(end), *entries[:-1]))
    assert local.summary == Summary(trained=2)
    assert [*local.queue] == [queued, busy]
    assert local.running == []


def test_progress_is_that_of_the_job_in_the_stack(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry(settings, seed=seed) for seed in range(2)]
    local = scheduler(entries, settings, started=entries)
    updates = []
    monkeypatch.setattr(local.screen, "update", lambda key, **more: updates.append((key, more)))
    sent = [Message("progress", (1, {"done": 5})), Message("result", ["ok", "ok"])]
    local.update(running(local, Group(sent=sent), *entries))
    assert updates == [(entries[1].cell.id, {"done": 5})]
    assert len(local.running) == 1


def test_a_failure_is_in_the_state_of_the_run(settings: Settings) -> None:
    first, other = (entry(settings, seed=seed) for seed in range(2))
    local = scheduler([first, other], settings, started=[first, other])
    run_files.write_state(first.job.folder, "running", pid=7)
    run_files.write_state(other.job.folder, "running", pid=8)  # of another process
    local.update(running(local, Group(FAILED), first, other))
    assert run_files.read_state(first.job.folder)["phase"] == "failed"
    assert run_files.read_state(first.job.folder)["error"] == "no luck"
    assert run_files.read_state(other.job.folder)["phase"] == "running"
    assert local.summary.failed == [
        f"{each.cell.title}: no luck ({each.job.log})" for each in (first, other)
    ]


def test_a_failure_of_a_later_rank_names_its_log(settings: Settings) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only])
    local.update(running(local, Group(replace(FAILED, rank=2)), only))
    log = only.job.folder / "log.2.txt"
    assert local.summary.failed == [f"{only.cell.title}: rank 2: no luck ({log})"]


def test_an_earlier_failure_on_another_machine_is_the_reported_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_scheduler, "REMOTE_FAILURE", 0.0)
    for at, reason in ((-60, "their fault (there.txt)"), (60, "no luck (")):
        only = entry(settings)
        local = scheduler([only], settings, started=[only], env=RANK_0)
        end = Exit(1, Message("failed", "no luck"))
        run_files.write_failure(only.job.folder, 1, "their fault", "there.txt", time.time() + at)
        local.update(running(local, Group(end), only))
        assert local.summary.failed[0].startswith(f"{only.cell.title}: {reason}")


@dataclass
class Clock:
    """A clock that sleep moves; at `reached` it does `what`."""

    reached: float
    what: Callable[[], None]
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        if before < self.reached <= self.now:
            self.what()


@pytest.mark.parametrize(("after", "reason"), [(4.7, "their fault (there"), (6.0, "no luck (")])
def test_other_machines_have_five_seconds_to_report_a_failure(
    after: float, reason: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only], env=RANK_0)
    run = running(local, Group(Exit(1, Message("failed", "no luck"))), only)  # it failed now
    at = time.time() - 60
    report = partial(run_files.write_failure, only.job.folder, 1, "their fault", "there.txt", at)
    clock = Clock(after, report)
    monkeypatch.setattr(local_scheduler, "time", clock)
    local.update(run)
    assert local.summary.failed[0].startswith(f"{only.cell.title}: {reason}")
    assert clock.now == pytest.approx(min(after, 5.0), abs=0.2)


def test_a_rank_without_a_message_failed_when_its_end_was_noticed(settings: Settings) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only], env=RANK_0)
    run_files.write_failure(only.job.folder, 1, "their fault", "there.txt", time.time() + 60)
    local.update(running(local, Group(Exit(0, None)), only))
    assert "exited with code 0 and reported no result" in local.summary.failed[0]


def test_a_rank_that_was_killed_from_here_did_not_fail_first(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_scheduler, "REMOTE_FAILURE", 0.0)
    only = entry(settings)
    local = scheduler([only], settings, started=[only], env=RANK_0)
    group = Group()
    run_files.write_failure(only.job.folder, 1, "their fault", "there.txt", time.time() + 60)
    run = running(local, group, only)
    local.update(run)
    assert group.killed
    group.end = Exit(-9, None)
    local.update(run)
    assert local.summary.failed == [f"{only.cell.title}: their fault (there.txt)"]


def test_without_a_launcher_failures_of_other_machines_are_not_looked_for(
    settings: Settings,
) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only])
    group = Group()
    run_files.write_failure(only.job.folder, 1, "of an earlier run", "log", 1.0)
    local.update(running(local, group, only))
    assert not group.killed


def test_runs_that_are_stopped_were_interrupted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (entry(settings, seed=seed) for seed in range(2))
    local = scheduler([first, other], settings, started=[first, other], env=RANK_0)
    for each in (first, other):
        run_files.write_state(each.job.folder, "running", pid=7)
    run_files.write_failure(other.job.folder, 1, "their fault", "there.txt", time.time() - 60)
    stopped: list[Any] = []
    monkeypatch.setattr(process_group, "stop", stopped.extend)
    run = running(local, Group(), first, other)
    local.stop()
    assert stopped == [run.group]
    state = run_files.read_state(first.job.folder)
    assert (state["phase"], state["error"]) == ("interrupted", "")
    state = run_files.read_state(other.job.folder)
    assert (state["phase"], state["error"]) == ("failed", "their fault")
    assert local.summary.failed == [f"{other.cell.title}: their fault (there.txt)"]


@pytest.mark.parametrize("resume", [True, False])
def test_what_is_said_of_a_stopped_run_holds(
    resume: bool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command with force=true starts it over again."""
    only = entry(replace(settings, force=not resume))
    local = scheduler([only], settings, started=[only])
    run_files.write_state(only.job.folder, "running", pid=7, saved=40, steps=100)
    monkeypatch.setattr(process_group, "stop", lambda _: None)
    running(local, Group(), only)
    local.stop()
    (said,) = local.summary.stopped
    assert ("the same command resumes from step 40 of 100" in said) == resume
    otherwise = "starts it over; without force=true or resume=false it resumes from step 40"
    assert (otherwise in said) == (not resume)


@pytest.mark.parametrize("shown", [False, True], ids=["while_it_waits", "after"])
def test_a_failure_is_reported_once_although_a_signal_comes_while_it_is_recorded(
    shown: bool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 lost its connection, waits for the reason, and the launcher stops it meanwhile."""
    only = entry(settings)
    local = scheduler([only], settings, started=[only], env=RANK_0)
    run_files.write_state(only.job.folder, "running", pid=7)
    running(local, Group(Exit(1, Message("failed", "connection lost"))), only)

    write = partial(
        run_files.write_failure, only.job.folder, 1, "their fault", "there.txt", time.time() - 60
    )

    def receive_signal(*_: Any) -> None:
        write()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if shown:
            write()
            patch.setattr(local.screen, "note", receive_signal)
        else:
            patch.setattr(time, "sleep", receive_signal)
        local.update(*local.running)
    monkeypatch.setattr(process_group, "stop", list)
    local.stop()
    assert local.summary == Summary(failed=[f"{only.cell.title}: their fault (there.txt)"])
    assert run_files.read_state(only.job.folder)["error"] == "their fault"


@pytest.mark.parametrize("env", [None, RANK_0])
def test_a_stopped_run_has_not_failed_if_it_has_a_row_or_no_ranks_elsewhere(
    env: DistributedEnv | None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only], env=env)
    if env is not None:
        results.write(only.job.folder, trained_row(only))
    run_files.write_failure(only.job.folder, 1, "their fault", "there.txt", time.time() - 60)
    monkeypatch.setattr(process_group, "stop", list)
    running(local, Group(), only)
    local.stop()
    line = f"{only.cell.title}: the same command starts it over"
    assert local.summary == (Summary(stopped=[line]) if env is None else Summary(trained=1))


@pytest.mark.parametrize("env", [None, RANK_0])
def test_a_busy_run_is_put_back_unless_it_has_ranks_elsewhere(
    env: DistributedEnv | None, settings: Settings
) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only], env=env)
    local.put_back(only)
    assert [*local.queue] == ([only] if env is None else [])
    failure = f"{only.cell.title}: another process is training it ({only.job.log})"
    assert local.summary.failed == ([] if env is None else [failure])
