"""The user's question, answered for the rows at hand: which normalizer with so few images?

For each number of images per worker: the normalizers that are not significantly worse than the
best, what they cost in time and memory, and what was not tested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from normbench.config.files import CONF, names
from normbench.report.statistics import least_significant, mean_and_std
from normbench.report.table import WORDS, Cell, Table
from normbench.report.table_spec import Label

RULES = (
    "For the runs at hand and each number of images per worker: the best mean, and the normalizers "
    "that are not significantly worse (Tukey's honest significant difference, 5 % for all pairs). "
    "With few seeds that can be many: not significantly worse is not as good. Times are of a "
    "training image as it was measured, and memory is the peak of a GPU, both over the least among "
    "them."
)


@dataclass(frozen=True)
class Candidate:
    """A normalizer with so many images per worker.

    Args:
        name: with the options that differ from its yaml.
        mean: of its test accuracy (%).
        std: the sample standard deviation; None of a single seed.
        seeds: behind the mean.
        worse: than the best, significantly (Tukey's honest significant difference); None where one
            of the two has a single seed.
        time: of a training image, over that of the fastest one compared.
        memory: at its peak, over the least.
    """

    name: str
    mean: float
    std: float | None
    seeds: int
    worse: bool | None
    time: float | None
    memory: float | None


@dataclass(frozen=True)
class Advice:
    """What was found with `batch` images per worker in the setting of a table.

    Args:
        batch: images per worker.
        good: the best, and those not significantly worse, best first.
        unsure: one seed, or the best has but one: nothing can be said.
        worse: significantly worse than the best.
        lost: diverged, too large for the memory or impossible in this network.
        untested: normalizers of conf/norm/ without a run here.
    """

    batch: int
    good: tuple[Candidate, ...]
    unsure: tuple[Candidate, ...]
    worse: tuple[Candidate, ...]
    lost: tuple[str, ...]
    untested: tuple[str, ...]


def advice(table: Table) -> list[Advice]:
    """One for each column of a table of normalizers over images per worker."""
    if table.spec.rows != "norm":
        return []
    found = []
    for index, column in enumerate(table.columns):
        cells = {label: cells[index] for label, cells in table.lines.items()}
        if column.batch is not None and any(cell.values for cell in cells.values()):
            found.append(_advice(column.batch, cells))
    return found


def _advice(batch: int, cells: dict[Label, Cell]) -> Advice:
    lost = [
        f"{label[0]} ({_fates(cell)})" for label, cell in cells.items() if cell.lost and label[0]
    ]
    whole = {label[0]: cell for label, cell in cells.items() if cell.values and not cell.lost}
    tested = {label[0].split(" ")[0] for label, cell in cells.items() if cell.runs}
    untested = tuple(name for name in names(CONF / "norm") if name not in tested)
    ranked = sorted(whole, key=lambda name: (-fmean(whole[name].values.values()), name))
    if not ranked:
        return Advice(batch, (), (), (), tuple(lost), untested)
    worse = _worse_than_best([list(whole[name].values.values()) for name in ranked])
    costs = _costs([whole[name] for name in ranked])
    candidates = [
        Candidate(name, *mean_and_std([*cell.values.values()]), len(cell.values), own, time, memory)
        for name, cell, own, (time, memory) in zip(
            ranked, (whole[name] for name in ranked), worse, costs, strict=True
        )
    ]
    best, others = candidates[0], candidates[1:]
    return Advice(
        batch,
        (best, *(each for each in others if each.worse is False)),
        tuple(each for each in others if each.worse is None),
        tuple(each for each in others if each.worse),
        tuple(lost),
        untested,
    )


def _worse_than_best(ranked: Sequence[Sequence[float]]) -> list[bool | None]:
    """Whether each is significantly worse than the first, which is the best."""
    able = [values for values in ranked if len(values) > 1]
    if len(ranked[0]) < 2 or len(able) < 2:
        return [False, *(None for _ in ranked[1:])]
    best = fmean(ranked[0])
    margins = iter(least_significant(able))
    return [best - fmean(values) > next(margins) if len(values) > 1 else None for values in ranked]


def _costs(cells: Sequence[Cell]) -> list[tuple[float | None, float | None]]:
    """Time and memory of each, over the least; only runs of the commonest device are compared.

    Of seeds that were trained together neither is that of a single run.
    """
    single = [run for cell in cells for run in cell.runs if run.stacked_seeds == 1]
    devices = [run.devices for run in single if run.devices]
    common = max(set(devices), key=devices.count, default="")
    seconds, memories = [], []
    for cell in cells:
        alike = [run for run in cell.runs if run.devices == common and run.stacked_seeds == 1]
        own = [run for run in alike if run.status not in WORDS]
        speeds = [run.images_per_second for run in own if run.images_per_second]
        # Of a CPU it is that of the process, libraries and all.
        peaks = [run.peak_memory for run in own if run.peak_memory and "cpu" not in common]
        # Medians: one run beside a busy neighbour says nothing about a normalizer.
        seconds.append(1 / median(speeds) if speeds else None)
        memories.append(median(peaks) if peaks else None)
    return list(zip(_over_least(seconds), _over_least(memories), strict=True))


def _over_least(values: Sequence[float | None]) -> list[float | None]:
    least = min((value for value in values if value is not None), default=None)
    return [None if value is None or least is None else value / least for value in values]


def _fates(cell: Cell) -> str:
    return ", ".join(f"{count} of {len(cell.runs)} {word}" for word, count in cell.fates.items())


def sentences(table: Table) -> list[str]:
    """The advice for each number of images per worker, and what was not tested."""
    found = advice(table)
    untested = [f"Not tested: {', '.join(found[-1].untested) or 'none'}."] if found else []
    return [*(sentence(table, each) for each in found), *untested]


def sentence(table: Table, found: Advice) -> str:
    """The advice for one number of images per worker in words."""
    decimals = table.spec.decimals
    text = f"With {found.batch} images per worker"
    if found.good:
        best, *others = (_described(each, decimals) for each in found.good)
        text += f" the best is {best}."
        if others:
            text += f" Not significantly worse: {'; '.join(others)}."
    else:
        text += " no normalizer has a number for every seed."
    if found.worse:
        worse = "; ".join(f"{each.name} {each.mean:.{decimals}f}" for each in found.worse)
        text += f" Significantly worse: {worse}."
    if found.unsure:
        unsure = "; ".join(f"{each.name} {each.mean:.{decimals}f}" for each in found.unsure)
        text += f" Nothing can be said with one seed: {unsure}."
    if found.lost:
        text += f" Without a number: {'; '.join(found.lost)}."
    return text


def _described(each: Candidate, decimals: int) -> str:
    costs = []
    if each.time is not None:
        costs.append(f"{each.time:.2f}x time")
    if each.memory is not None:
        costs.append(f"{each.memory:.2f}x memory")
    cost = f", {', '.join(costs)}" if costs else ""
    deviation = "" if each.std is None else f" ± {each.std:.{decimals}f}"
    return f"{each.name} ({each.mean:.{decimals}f}{deviation}, n = {each.seeds}{cost})"
