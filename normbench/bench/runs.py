"""Plans or loaders of one run against each other, timed in turn on the same cores."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from normbench.bench.measured import in_turn, leave, taken
from normbench.config.cells import Cell, Loader
from normbench.config.compose import compose
from normbench.config.plan import Plan, share_of_cores
from normbench.errors import BadInput, choose_from, counted
from normbench.execution import process_group, worker_process
from normbench.execution.sweep import PRELOAD

Once = Callable[[str, Path], float]  # images per second of one of the words that are compared


def compare(what: str, arguments: Sequence[str]) -> None:
    """Time the words of `what`, plans or loaders, in the cell that the other words describe.

    Raises:
        BadInput: a word cannot be used.
        RuntimeError: one of the processes failed.
    """
    own, rest = taken(arguments, {what: "", "rounds": "7", "cores": "", "out": ""})
    cells, settings = compose(rest)
    if settings is None or len(cells) != 1:
        raise BadInput("one cell is timed; this is a grid")
    if not own[what]:
        raise BadInput(f"{what}=A,B,... says what is compared")
    rounds = counted("rounds", own["rounds"], 7)
    cores = counted("cores", own["cores"] or str(share_of_cores(1)), 2)
    words = own[what].split(",")
    once = (
        _of_plans(cells[0], words, cores)
        if what == "plans"
        else _of_loaders(cells[0], words, cores)
    )
    worker_process.start_server((*PRELOAD, "normbench.bench.timing"))
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        log = Path(scratch) / "log.txt"
        entries = {word: partial(once, word, log) for word in words}
        found = in_turn(entries, rounds, warm_up=False)
    base = found[words[0]].median
    leave(
        own["out"],
        [
            {
                "cell": " ".join(rest), what.removesuffix("s"): word, **speed.over(base),
                "images_per_second": speed.median,
            }
            for word, speed in found.items()
        ],
    )  # fmt: skip


def _of_plans(cell: Cell, words: Sequence[str], cores: int) -> Once:
    laid = {word: _plan(word, cell) for word in words}
    print(f"{cell.title}: {cell.workers} workers of {cell.batch} images")

    def once(word: str, log: Path) -> float:
        plan = laid[word]
        share = max(1, cores // plan.devices)
        own = cell.with_readers(share)
        own = replace(own, trainer=replace(own.trainer, threads=share))
        return _asked("normbench.bench.timing:measure", (own, plan), plan.devices, log)

    return once


def _of_loaders(cell: Cell, words: Sequence[str], cores: int) -> Once:
    for word in words:
        _require_loader(word)
    print(f"{cell.title}: {cell.global_batch} images a step")

    def once(word: str, log: Path) -> float:
        return _asked("normbench.bench.timing:feed", (cell.with_readers(cores), word), 1, log)

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
        raise BadInput(
            f"plans={word}: it lays {plan.workers} workers, and there are {cell.workers}"
        )
    return plan


def _asked(target: str, request: Any, devices: int, log: Path) -> float:
    end = worker_process.wait_for_exit(process_group.start(target, request, devices, log=log))
    if not end.succeeded:
        raise (BadInput if end.refused else RuntimeError)(end.reason)
    return float(end.result)
