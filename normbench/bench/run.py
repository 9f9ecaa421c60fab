"""Compare the speed of plans or loaders of one run, timed in turn on the same cores."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from normbench.bench.measure import compare, measure_in_turn, save
from normbench.bench.options import Loader, Workers
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.config.plan import Plan, share_of_cores
from normbench.errors import BadInput
from normbench.execution import process_group, worker_process
from normbench.execution.sweep import PRELOAD

Measurement = Callable[[str, Path], float]  # images per second of a plan or loader


def bench_workers(options: Workers, words: Sequence[str]) -> None:
    """Time the training under each of plans=, in images per second."""
    _bench("plan", options.plans, options, words, _time_plans)


def bench_loader(options: Loader, words: Sequence[str]) -> None:
    """Time each of loaders=, in images per second that it makes ready."""
    _bench("loader", options.loaders, options, words, _time_loaders)


def _bench(
    what: str,
    names: Sequence[str],
    options: Workers | Loader,
    words: Sequence[str],
    prepare: Callable[[Cell, Sequence[str], int], Measurement],
) -> None:
    """Time the plans or loaders `names` in the cell of `words`.

    Raises:
        BadInput: a word cannot be used.
        RuntimeError: one of the processes failed.
    """
    cells, settings = compose([*words])
    if settings is None or len(cells) != 1:
        raise BadInput("one cell is timed; this is a grid")
    if not names:
        raise BadInput(f"{what}s=A,B,... names what is compared")
    once = prepare(cells[0], names, options.cores or share_of_cores(1))
    worker_process.start_server((*PRELOAD, "normbench.bench.run_process"))
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        log = Path(scratch) / "log.txt"
        entries = {name: partial(once, name, log) for name in names}
        timings = measure_in_turn(entries, options.rounds, warm_up=False)
    save(options.out, compare(timings, what, "images_per_second", cell=" ".join(words)))


def _time_plans(cell: Cell, words: Sequence[str], cores: int) -> Measurement:
    plans = {word: _parse_plan(word, cell) for word in words}
    print(f"{cell.title}: {cell.workers} workers of {cell.batch} images")

    def once(word: str, log: Path) -> float:
        plan = plans[word]
        share = max(1, cores // plan.devices)
        shared = cell.with_readers(share)
        shared = replace(shared, trainer=replace(shared.trainer, threads=share))
        return _request("normbench.bench.run_process:measure", (shared, plan), plan.devices, log)

    return once


def _time_loaders(cell: Cell, _words: Sequence[str], cores: int) -> Measurement:
    print(f"{cell.title}: {cell.global_batch} images a step")
    return lambda word, log: _request(
        "normbench.bench.run_process:feed", (cell.with_readers(cores), word), 1, log
    )


def _parse_plan(word: str, cell: Cell) -> Plan:
    try:
        devices, per_forward, accumulation = map(int, word.split("x"))
        plan = Plan(devices, per_forward, accumulation)
    except ValueError:
        raise BadInput(
            f"plans={word}: a plan is devices x per_forward x accumulation, as plans=1x8x1,8x1x1"
        ) from None
    if plan.workers != cell.workers:
        raise BadInput(f"plans={word}: it has {plan.workers} workers, the cell {cell.workers}")
    return plan


def _request(target: str, request: Any, devices: int, log: Path) -> float:
    end = process_group.wait_for_exit(process_group.start(target, request, devices, log=log))
    if not end.succeeded:
        raise (BadInput if end.kind == "refused" else RuntimeError)(end.reason)
    return float(end.result)
