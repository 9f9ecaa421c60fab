"""Compare the speed of plans or loaders of one run, timed in turn on the same cores."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from normbench.bench.measure import compare, compose_cell, measure_in_turn, save
from normbench.bench.options import BenchLoaderOptions, BenchWorkersOptions
from normbench.config.cells import Cell
from normbench.config.plan import Plan, share_of_cores
from normbench.errors import BadInput, count
from normbench.execution import process_group, worker_process
from normbench.execution.sweep import PRELOAD

WorkerCall = tuple[str, Any, int]  # function of a worker process, its argument, number of processes


def bench_workers(options: BenchWorkersOptions, words: Sequence[str]) -> None:
    """Time the training under each of plans=, in images per second."""
    cell, cores = compose_cell(words), options.cores or share_of_cores(1)
    calls: dict[str, WorkerCall] = {}
    for word in options.plans:
        plan = _parse_plan(word, cell)
        # All plans use the same cores: with fewer processes, each has more threads.
        share = max(1, cores // plan.devices)
        shared = cell.with_readers(share)
        shared = replace(shared, trainer=replace(shared.trainer, threads=share))
        calls[word] = "normbench.bench.in_worker_process:measure", (shared, plan), plan.devices
    print(f"{cell.title}: {count(cell.workers, 'worker')} of {count(cell.batch, 'image')}")
    _bench("plan", calls, options, words)


def bench_loader(options: BenchLoaderOptions, words: Sequence[str]) -> None:
    """Time each of loaders=, in images per second that it makes ready."""
    cell = compose_cell(words).with_readers(options.cores or share_of_cores(1))
    print(f"{cell.title}: {count(cell.global_batch, 'image')} a step")
    feed = "normbench.bench.in_worker_process:feed"
    _bench("loader", {word: (feed, (cell, word), 1) for word in options.loaders}, options, words)


def _bench(
    what: str,
    calls: Mapping[str, WorkerCall],
    options: BenchWorkersOptions | BenchLoaderOptions,
    words: Sequence[str],
) -> None:
    """Time the calls in turn, each in processes of its own.

    Raises:
        BadInput: there is none, or one of the processes refused it.
        RuntimeError: one of the processes failed.
    """
    if not calls:
        raise BadInput(f"{what}s is missing: {what}s=A,B,... names what is compared")
    # The server has imported torch already when a call starts its processes.
    worker_process.start_server((*PRELOAD, "normbench.bench.in_worker_process"))
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        log = Path(scratch) / "log.txt"
        entries = {name: partial(_call, *each, log) for name, each in calls.items()}
        # Each call has processes of its own, so nothing stays warm.
        timings = measure_in_turn(entries, options.rounds, warm_up=False)
    save(options.out, compare(timings, what, "images_per_second", cell=" ".join(words)))


def _parse_plan(word: str, cell: Cell) -> Plan:
    try:
        devices, per_forward, accumulation = map(int, word.split("x"))
        plan = Plan(devices, per_forward, accumulation)
    except ValueError:
        raise BadInput(
            f"plans={word}: a plan is devices x per_forward x accumulation, as plans=1x8x1,8x1x1"
        ) from None
    if plan.workers != cell.workers:
        raise BadInput(
            f"plans={word}: it has {count(plan.workers, 'worker')}, the cell {cell.workers}"
        )
    return plan


def _call(target: str, request: Any, devices: int, log: Path) -> float:
    end = process_group.wait_for_exit(process_group.start(target, request, devices, log=log))
    if not end.succeeded:
        raise (BadInput if end.kind == "refused" else RuntimeError)(end.reason)
    return float(end.result)
