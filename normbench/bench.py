"""Plans of one run against each other: the same training, timed in turn on the same cores.

    python -m normbench.bench plans=1x8x1,8x1x1 protocol=fixed_workers workers=8 norm=bn batch=4

    plans=PLAN,...    devices x per_forward x accumulation; their product is the number of workers
    rounds=N          trainings of each plan, in turn (5)
    cores=N           CPU cores that all processes of a plan share (those of this machine)

All other words are those of `python -m normbench` for one cell; a short one will do, as with
recipe.images=6400. Printed are images per second, median [least, most], and the ratio of the
medians to the first plan's. Nothing is written.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from normbench import children, ranks
from normbench.cells import Cell
from normbench.compose import compose
from normbench.errors import BadInput
from normbench.plan import Plan
from normbench.pool import why
from normbench.sweep import HEAVY, LIGHT

OWN = {"plans": "", "rounds": "5", "cores": ""}


def main(arguments: Sequence[str]) -> int:
    """Time the plans; 0, or 2 for words that cannot be used, 1 if a training failed."""
    if {"-h", "--help"} & {*arguments} or not arguments:
        print(__doc__)
        return 0
    try:
        given = dict(word.split("=", 1) for word in arguments if word.partition("=")[0] in OWN)
        cells, settings = compose([w for w in arguments if w.partition("=")[0] not in OWN])
        if settings is None or len(cells) != 1:
            raise BadInput("one cell is timed under several plans; this is a grid")
        asked = OWN | given
        plans = [_plan(word, cells[0]) for word in asked["plans"].split(",")]
        rounds = _whole("rounds", asked["rounds"])
        cores = _whole("cores", asked["cores"] or str(len(os.sched_getaffinity(0))))
        _report(cells[0], plans, _measured(cells[0], plans, rounds, cores))
    except BadInput as error:
        print(f"normbench.bench: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"normbench.bench: {error}", file=sys.stderr)
        return 1
    return 0


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


def _whole(name: str, word: str) -> int:
    if not word.isdigit() or not int(word):
        raise BadInput(f"{name}={word}: it is a whole number above 0")
    return int(word)


def _measured(
    cell: Cell, plans: Sequence[Plan], rounds: int, cores: int
) -> dict[Plan, list[float]]:
    children.start_server((LIGHT, *HEAVY, "normbench.timing"))
    found: dict[Plan, list[float]] = {plan: [] for plan in plans}
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        for _ in range(rounds):
            for plan in plans:  # in turn, so that a noisy moment meets all of them
                threads = max(1, cores // plan.devices)
                own = replace(cell, trainer=replace(cell.trainer, threads=threads))
                found[plan].append(_once(own, plan, Path(scratch) / "log.txt"))
    return found


def _once(cell: Cell, plan: Plan, log: Path) -> float:
    running = ranks.start("normbench.timing:measure", (cell, plan), plan.devices, log=log)
    end = children.finish(running)
    if end.last is None or end.last.kind != "result":
        raise RuntimeError(f"{plan}: {why(end)}")
    return float(end.last.content)


def _report(cell: Cell, plans: Sequence[Plan], found: dict[Plan, list[float]]) -> None:
    print(f"{cell.title}: {cell.workers} workers of {cell.batch} images")
    first = median(found[plans[0]])
    for plan in plans:
        speeds, words = found[plan], f"{plan.devices}x{plan.per_forward}x{plan.accumulation}"
        spread = f"[{min(speeds):.0f}, {max(speeds):.0f}]"
        ratio = f"{median(speeds) / first:.2f}"
        print(f"{words:<10} {median(speeds):8.0f} images/s {spread:<16} {ratio} of the first")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        children.stop_server()
