"""Recommendation: which normalizer for a given number of images per worker, and at what cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from normbench.config.files import CONF, names
from normbench.report.statistics import mean_and_std, tukey_margins
from normbench.report.table import WORDS, Entry, Table
from normbench.report.table_spec import Label

METHOD = (
    "For each number of images per worker: the normalizer with the best mean, and those not "
    "significantly worse (Tukey's honest significant difference, 5 % for all pairs). \"Not "
    'significantly worse" does not mean "as good": with few seeds it includes many normalizers. '
    "Time is measured per training image, memory is the peak memory of the GPU, both relative to "
    "the lowest of the compared normalizers."
)


@dataclass(frozen=True)
class Candidate:
    """A normalizer at one number of images per worker.

    Args:
        name: with the options that differ from its yaml.
        mean: test accuracy in percent.
        std: sample standard deviation; None with one seed.
        seeds: number of seeds.
        worse: significantly worse than the best; None if either has one seed.
        time: per training image, relative to the fastest.
        memory: peak, relative to the lowest.
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
    """Recommendation for `batch` images per worker in the setting of a table.

    Args:
        batch: images per worker.
        good: the best and those not significantly worse, best first.
        unsure: not testable, because they or the best have one seed.
        worse: significantly worse than the best.
        lost: with runs that diverged, ran out of memory or are impossible.
        untested: normalizers of conf/norm/ without a run here.
    """

    batch: int
    good: tuple[Candidate, ...]
    unsure: tuple[Candidate, ...]
    worse: tuple[Candidate, ...]
    failed: tuple[str, ...]
    untested: tuple[str, ...]


def advice(table: Table) -> list[Advice]:
    """Return the advice for each column of a table of normalizers over images per worker."""
    if table.spec.rows != "norm":
        return []
    found = []
    for index, column in enumerate(table.columns):
        entries = {label: entries[index] for label, entries in table.lines.items()}
        if column.batch is not None and any(entry.values for entry in entries.values()):
            found.append(_advice(column.batch, entries))
    return found


def _advice(batch: int, entries: dict[Label, Entry]) -> Advice:
    failed = [
        f"{label[0]} ({_failure_text(entry)})"
        for label, entry in entries.items()
        if entry.failed and label[0]
    ]
    whole = {
        label[0]: entry for label, entry in entries.items() if entry.values and not entry.failed
    }
    tested = {label[0].split(" ")[0] for label, entry in entries.items() if entry.runs}
    untested = tuple(name for name in names(CONF / "norm") if name not in tested)
    ranked = sorted(whole, key=lambda name: (-fmean(whole[name].values.values()), name))
    if not ranked:
        return Advice(batch, (), (), (), tuple(failed), untested)
    worse = _worse_than_best([list(whole[name].values.values()) for name in ranked])
    costs = _costs([whole[name] for name in ranked])
    candidates = [
        Candidate(
            name, *mean_and_std([*entry.values.values()]), len(entry.values), own, time, memory
        )
        for name, entry, own, (time, memory) in zip(
            ranked, (whole[name] for name in ranked), worse, costs, strict=True
        )
    ]
    best, others = candidates[0], candidates[1:]
    return Advice(
        batch,
        (best, *(each for each in others if each.worse is False)),
        tuple(each for each in others if each.worse is None),
        tuple(each for each in others if each.worse),
        tuple(failed),
        untested,
    )


def _worse_than_best(ranked: Sequence[Sequence[float]]) -> list[bool | None]:
    """Return whether each sample is significantly worse than the first, which is the best."""
    able = [values for values in ranked if len(values) > 1]
    if len(ranked[0]) < 2 or len(able) < 2:
        return [False, *(None for _ in ranked[1:])]
    best = fmean(ranked[0])
    margins = iter(tukey_margins(able))
    return [best - fmean(values) > next(margins) if len(values) > 1 else None for values in ranked]


def _costs(entries: Sequence[Entry]) -> list[tuple[float | None, float | None]]:
    """Return relative time and memory of each, on the most common device.

    Stacked seeds are left out: their time and memory are those of several networks.
    """
    single = [run for entry in entries for run in entry.runs if run.stacked_seeds == 1]
    devices = [run.devices for run in single if run.devices]
    common = max(set(devices), key=devices.count, default="")
    seconds, memories = [], []
    for entry in entries:
        alike = [run for run in entry.runs if run.devices == common and run.stacked_seeds == 1]
        own = [run for run in alike if run.status not in WORDS]
        speeds = [run.images_per_second for run in own if run.images_per_second]
        # On a CPU, peak memory is that of the whole process with its libraries.
        peaks = [run.peak_memory for run in own if run.peak_memory and "cpu" not in common]
        # Medians: a run beside other work must not count against its normalizer.
        seconds.append(1 / median(speeds) if speeds else None)
        memories.append(median(peaks) if peaks else None)
    return list(zip(_over_least(seconds), _over_least(memories), strict=True))


def _over_least(values: Sequence[float | None]) -> list[float | None]:
    least = min((value for value in values if value is not None), default=None)
    return [None if value is None or least is None else value / least for value in values]


def _failure_text(entry: Entry) -> str:
    return ", ".join(
        f"{count} of {len(entry.runs)} {word}" for word, count in entry.failures.items()
    )


def sentences(table: Table) -> list[str]:
    """Return the advice for each number of images per worker, and what was not tested."""
    found = advice(table)
    untested = [f"Not tested: {', '.join(found[-1].untested) or 'none'}."] if found else []
    return [*(sentence(table, each) for each in found), *untested]


def sentence(table: Table, found: Advice) -> str:
    """Return the advice for one number of images per worker in words."""
    decimals = table.spec.decimals
    text = f"With {found.batch} images per worker"
    if found.good:
        best, *others = (_described(each, decimals) for each in found.good)
        text += f" the best is {best}."
        if others:
            text += f" Not significantly worse: {'; '.join(others)}."
    else:
        text += " no normalizer has a result for every seed."
    if found.worse:
        worse = "; ".join(f"{each.name} {each.mean:.{decimals}f}" for each in found.worse)
        text += f" Significantly worse: {worse}."
    if found.unsure:
        unsure = "; ".join(f"{each.name} {each.mean:.{decimals}f}" for each in found.unsure)
        text += f" Not testable with one seed: {unsure}."
    if found.failed:
        text += f" Without a result: {'; '.join(found.failed)}."
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
