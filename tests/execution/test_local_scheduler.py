"""The queue of runs on this machine: what follows when one ends. Nothing is trained."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normbench import results
from normbench.config.cells import Settings
from normbench.execution.job import Summary
from normbench.execution.local_scheduler import LocalScheduler
from normbench.execution.scheduler import QueueEntry
from normbench.execution.sweep import make_job
from normbench.execution.worker_process import Exit, Message
from normbench.results import Row
from support.cells import cell

NO_MEMORY = Exit(1, Message("memory", "no room"))


def entry(settings: Settings, *words: str, seed: int = 0, **options: Any) -> QueueEntry:
    """Return a queued job of a cell of 32 workers on the CPU."""
    chosen = replace(cell("trainer=cpu", *words), seed=seed)
    return QueueEntry(make_job(chosen, settings), **options)


def trained_row(of: QueueEntry, **changes: Any) -> Row:
    fields: dict[str, Any] = {"status": "ok", "test_top1": 90.0, **changes}
    return Row(**of.cell.description("default"), **fields)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        str(tmp_path), jobs=None, force=False, resume=True, stack_seeds=True, sweep="default"
    )


def scheduler(
    entries: Sequence[QueueEntry], settings: Settings, started: Sequence[QueueEntry] = ()
) -> LocalScheduler:
    """Return a scheduler of `entries` that has taken `started` from its queue."""
    made = LocalScheduler(entries, settings, Summary(), gpus=0, memory=7)
    for each in started:
        made.queue.remove(each)
        made.screen.add(each.cell.id, each.cell.title)
    return made


def test_the_first_group_of_a_stack_keeps_its_rows_if_a_later_one_has_no_memory(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (entry(settings, seed=seed, stackable=True) for seed in (0, 1))
    local = scheduler([first, second], settings, started=[first, second])
    results.write(first.job.folder, trained_row(first))
    for each in (first, second):
        local.handle_out_of_memory(each, NO_MEMORY, stacked=True)
    assert [*local.queue] == [second]
    assert not second.stackable
    assert local.summary == Summary(trained=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"1/2 ok        {first.cell.title}")
    assert lines[2] == f"out of memory  {second.cell.title}: stacked with other seeds; trying alone"


def test_an_older_row_does_not_end_a_stack(settings: Settings) -> None:
    forced = replace(settings, force=True)
    oom, old = entry(settings, seed=0, stackable=True), entry(forced, seed=1, stackable=True)
    local = scheduler([oom, old], settings, started=[oom, old])
    results.write(oom.job.folder, trained_row(oom, status="oom"))
    results.write(old.job.folder, trained_row(old))
    for each in (oom, old):
        local.handle_out_of_memory(each, NO_MEMORY, stacked=True)
    assert [*local.queue] == [old, oom]
    assert local.summary == Summary()


def test_a_run_without_an_accuracy_ends_like_others(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    only = entry(settings)
    local = scheduler([only], settings, started=[only])
    results.write(only.job.folder, trained_row(only, test_top1=None))
    local.finish(only)
    assert capsys.readouterr().out.splitlines()[1].startswith(f"1/1 ok        {only.cell.title}")
