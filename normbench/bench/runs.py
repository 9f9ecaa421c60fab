"""Plans or loaders of one run against each other: the same work, timed in turn on the same cores.

    python -m normbench.bench plans=1x8x1,8x1x1 protocol=fixed_workers workers=8 norm=bn batch=4
    python -m normbench.bench loaders=usual,torch,memory data=cifar10 trainer.readers=2 batch=4

    plans=PLAN,...    devices x per_forward x accumulation; their product is the number of workers
    loaders=L,...     memory, torch and ffcv, nothing trained; usual is a DataLoader of torch as
                      tutorials have it, `batch` images at a time by trainer.readers processes; of
                      a few hundred images their start would be most of the time
    rounds=N          measurements of each, in turn (5)
    cores=N           CPU cores that all processes share (those of this machine)

All other words are those of `python -m normbench` for one cell; a short one will do, as with
recipe.images=6400. Printed are images per second, median [least, most], and the ratio of the
medians to the first one's. Nothing is written.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, get_args

from normbench import children, console, ranks
from normbench.cells import Cell, Loader
from normbench.compose import compose
from normbench.errors import BadInput, choose_from, counted
from normbench.place import share_of_cores
from normbench.plan import Plan
from normbench.pool import why
from normbench.sweep import HEAVY, LIGHT

OWN = {"plans": "", "loaders": "", "rounds": "5", "cores": ""}
Once = Callable[[str, Path], float]  # images per second of one of the words that are compared


def main(arguments: Sequence[str]) -> int:
    """Time them; 0, or 2 for words that cannot be used, 1 if one of them failed."""
    if {"-h", "--help"} & {*arguments} or not arguments:
        print(__doc__)
        return 0
    try:
        own = [word for word in arguments if "=" in word and word.partition("=")[0] in OWN]
        given = dict(word.split("=", 1) for word in own)
        cells, settings = compose([word for word in arguments if word not in own])
        if settings is None or len(cells) != 1:
            raise BadInput("one cell is timed; this is a grid")
        asked = OWN | given
        if bool(asked["plans"]) == bool(asked["loaders"]):
            raise BadInput("plans=... or loaders=...: one of them says what is compared")
        rounds = counted("rounds", asked["rounds"], 5)
        cores = counted("cores", asked["cores"] or str(share_of_cores(1)), 2)
        _compare(cells[0], asked["plans"], asked["loaders"], rounds, cores)
    except BadInput as error:
        print(f"normbench.bench: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"normbench.bench: {error}", file=sys.stderr)
        return 1
    return 0


def _compare(cell: Cell, plans: str, loaders: str, rounds: int, cores: int) -> None:
    words = (plans or loaders).split(",")
    once: Once
    if plans:
        laid = {word: _plan(word, cell) for word in words}
        about = f"{cell.workers} workers of {cell.batch} images"

        def once(word: str, log: Path) -> float:
            plan = laid[word]
            share = max(1, cores // plan.devices)
            own = cell.with_readers(share)
            own = replace(own, trainer=replace(own.trainer, threads=share))
            return _asked("normbench.timing:measure", (own, plan), plan.devices, log)

    else:
        for word in words:
            _require_loader(word)
        about = f"{cell.global_batch} images a step"

        def once(word: str, log: Path) -> float:
            return _asked("normbench.timing:feed", (cell.with_readers(cores), word), 1, log)

    print(f"{cell.title}: {about}")
    _report(words, _measured(words, once, rounds))


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


def _measured(words: Sequence[str], once: Once, rounds: int) -> dict[str, list[float]]:
    children.start_server((LIGHT, *HEAVY, "normbench.timing"))
    found: dict[str, list[float]] = {word: [] for word in words}
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        for _ in range(rounds):
            for word in words:  # in turn, so that a noisy moment meets all of them
                found[word].append(once(word, Path(scratch) / "log.txt"))
    return found


def _asked(target: str, request: Any, devices: int, log: Path) -> float:
    end = children.finish(ranks.start(target, request, devices, log=log))
    if end.last is None or end.last.kind != "result":
        refused = end.last is not None and end.last.kind == "refused"
        raise (BadInput if refused else RuntimeError)(why(end))
    return float(end.last.content)


def _report(words: Sequence[str], found: dict[str, list[float]]) -> None:
    first = median(found[words[0]])
    for word in words:
        speeds = found[word]
        spread = f"[{min(speeds):.0f}, {max(speeds):.0f}]"
        ratio = f"{median(speeds) / first:.2f}"
        print(f"{word:<10} {median(speeds):8.0f} images/s {spread:<16} {ratio} of the first")


if __name__ == "__main__":
    try:
        console.run(main)
    finally:
        children.stop_server()
