"""Plans or loaders of one run against each other, timed in turn on the same cores."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from normbench.bench.measure import compare, measure_in_turn, parse_options, save
from normbench.config.cells import Cell, Loader
from normbench.config.compose import compose
from normbench.config.plan import Plan, share_of_cores
from normbench.errors import BadInput, choose_from, counted
from normbench.execution import process_group, worker_process
from normbench.execution.sweep import PRELOAD

Measurement = Callable[[str, Path], float]  # images per second of a plan or loader


def bench_workers(words: Sequence[str]) -> None:
    """Time the training under each of plans=, in images per second."""
    _bench("plans", words)


def bench_loader(words: Sequence[str]) -> None:
    """Time each of loaders=, in images per second that it makes ready."""
    _bench("loaders", words)


def _bench(what: str, arguments: Sequence[str]) -> None:
    """Time the plans or loaders that the option `what` lists, in the cell of the other words.

    Raises:
        BadInput: a word cannot be used.
        RuntimeError: one of the processes failed.
    """
    options, rest = parse_options(arguments, {what: "", "rounds": "7", "cores": "", "out": ""})
    cells, settings = compose(rest)
    if settings is None or len(cells) != 1:
        raise BadInput("one cell is timed; this is a grid")
    if not options[what]:
        raise BadInput(f"{what}=A,B,... names what is compared")
    rounds = counted("rounds", options["rounds"], 7)
    cores = counted("cores", options["cores"] or str(share_of_cores(1)), 2)
    words = options[what].split(",")
    once = (
        _time_plans(cells[0], words, cores)
        if what == "plans"
        else _time_loaders(cells[0], words, cores)
    )
    worker_process.start_server((*PRELOAD, "normbench.bench.run_process"))
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        log = Path(scratch) / "log.txt"
        entries = {word: partial(once, word, log) for word in words}
        timings = measure_in_turn(entries, rounds, warm_up=False)
    lines = compare(timings, what.removesuffix("s"), "images_per_second", cell=" ".join(rest))
    save(options["out"], lines)


def _time_plans(cell: Cell, words: Sequence[str], cores: int) -> Measurement:
    plans = {word: _plan(word, cell) for word in words}
    print(f"{cell.title}: {cell.workers} workers of {cell.batch} images")

    def once(word: str, log: Path) -> float:
        plan = plans[word]
        share = max(1, cores // plan.devices)
        shared = cell.with_readers(share)
        shared = replace(shared, trainer=replace(shared.trainer, threads=share))
        return _request("normbench.bench.run_process:measure", (shared, plan), plan.devices, log)

    return once


def _time_loaders(cell: Cell, words: Sequence[str], cores: int) -> Measurement:
    for word in words:
        _require_loader(word)
    print(f"{cell.title}: {cell.global_batch} images a step")

    def once(word: str, log: Path) -> float:
        return _request(
            "normbench.bench.run_process:feed", (cell.with_readers(cores), word), 1, log
        )

    return once


def _require_loader(word: str) -> None:
    known = ("usual", *(loader for loader in get_args(Loader) if loader != "auto"))
    if word not in known:
        raise BadInput(f"loaders={word} is unknown; {choose_from(word, known)}")


def _plan(word: str, cell: Cell) -> Plan:
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
    end = worker_process.wait_for_exit(process_group.start(target, request, devices, log=log))
    if not end.succeeded:
        raise (BadInput if end.refused else RuntimeError)(end.reason)
    return float(end.result)
