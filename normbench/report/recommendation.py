"""Recommendation: which normalizer for a given number of images per worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from normbench.config.files import CONF, names
from normbench.report.image_intervals import widen_over_images
from normbench.report.measured_times import MeasuredTime, read_times, time_of
from normbench.report.planned_seeds import UNPLANNED, confidence
from normbench.report.statistics import Effect, summary, unstable, welch_contrast
from normbench.report.table import WORDS, Entry, Table


@dataclass(frozen=True)
class Candidate:
    """A normalizer at one number of images per worker."""

    name: str  # with the options that differ from its yaml
    mean: float
    std: float | None  # None with one seed
    seeds: int
    distance: (
        Effect | None
    )  # from the best mean, if worse; None for the best or without an interval
    distance_images: Effect | None  # with its interval over seeds and images, where runs have hits
    planned: bool  # the interval has the planned number of seeds, and so its full level
    unstable: bool  # varies far more over seeds than the others
    memory: float | None  # peak, relative to the lowest
    time: MeasuredTime | None  # of a training step, where it was measured
    side: Literal["lower", "higher"] = "lower"  # where worse means lie: of errors they are higher

    @property
    def worse(self) -> bool:
        """True if it is significantly worse than the best."""
        return self.distance is not None and self.distance.low is not None and self.distance.low > 0


@dataclass(frozen=True)
class Recommendation:
    """Which normalizers for `batch` images per worker, in the setting of a table."""

    batch: int
    good: tuple[Candidate, ...]  # the best and those not significantly worse, best first
    unsure: tuple[Candidate, ...]  # not testable: they or the best have one seed, or equal ones
    worse: tuple[Candidate, ...]  # significantly worse than the best
    failed: Mapping[str, str]  # how many runs have no result and why, by normalizer
    untested: tuple[str, ...]  # normalizers of conf/norm/ without a run here
    lower_is_better: bool = False  # as of an error

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The normalizers with a result for every seed, by verdict."""
        return *self.good, *self.unsure, *self.worse

    @property
    def best_mean(self) -> str:
        """The best mean in words."""
        return "lowest mean" if self.lower_is_better else "highest mean"

    @property
    def tested(self) -> list[str]:
        """The normalizers that were trained at this batch, the best first."""
        return [*(each.name for each in self.candidates), *self.failed]

    @property
    def ranked(self) -> bool:
        """False if the normalizer with the best mean has one seed, which ranks nothing."""
        return not self.good or self.good[0].seeds > 1


def recommendations(table: Table) -> list[Recommendation]:
    """Return the recommendation for each column of a table of normalizers over images per worker.

    [] of another table, of a metric that is neither better nor worse, and of a single normalizer,
    which is compared with none.
    """
    if not table.spec.compares_norms:
        return []
    times = read_times(table.root)
    recommended = [
        _recommend(
            column.batch,
            {label[0]: line[index] for label, line in table.lines.items()},
            table.root,
            times,
            table.spec.metric.better == "lower",
        )
        for index, column in enumerate(table.columns)
        if column.batch is not None and any(line[index].values for line in table.lines.values())
    ]
    tested = {name for column in recommended for name in column.tested}
    return recommended if len(tested) > 1 else []


def _recommend(
    batch: int,
    entries: Mapping[str, Entry],
    root: Path | None,
    times: Mapping[tuple[str, int], MeasuredTime],
    lower_is_better: bool,
) -> Recommendation:
    sign = -1 if lower_is_better else 1
    tested = {run.norm for entry in entries.values() for run in entry.runs}
    failed = {
        name: ", ".join(f"{n} of {len(e.runs)} {word}" for word, n in e.failures.items())
        for name, e in entries.items()
        if e.failed
    }
    # The mean of the seeds that did not fail would flatter a normalizer that diverges.
    complete = {name: e for name, e in entries.items() if e.values and not e.failed}
    # One seed may be lucky: it is the best only where no other normalizer has several.
    several = any(len(entry.values) > 1 for entry in complete.values())

    def rank(name: str) -> tuple[bool, float, str]:
        values = complete[name].values.values()
        return several and len(values) == 1, -sign * fmean(values), name

    ranked = sorted(complete, key=rank)
    best_first = [complete[name] for name in ranked]
    samples = [[*entry.values.values()] for entry in best_first]
    levels = [confidence([best_first[0], entry]) for entry in best_first]
    differences = distances(samples, levels, sign)
    over_images = [
        distance
        and widen_over_images(
            distance, [(1.0, best_first[0]), (-1.0, entry)], root, level, _compared(samples)
        )
        for distance, entry, level in zip(differences, best_first, levels, strict=True)
    ]
    candidates = [
        Candidate(
            name, *summary(values), len(values), distance, images, level != UNPLANNED, varies,
            memory, time_of(complete[name].runs, batch, times),
            "higher" if lower_is_better else "lower",
        )
        for name, values, distance, images, level, varies, memory in zip(
            ranked, samples, differences, over_images, levels, unstable(samples),
            _memories(best_first), strict=True,
        )
    ]  # fmt: skip
    best, others = candidates[:1], candidates[1:]
    return Recommendation(
        batch,
        (*best, *(each for each in others if each.distance and not each.worse)),
        tuple(each for each in others if each.distance is None),
        tuple(each for each in others if each.worse),
        failed,
        tuple(name for name in names(CONF / "norm") if name not in tested),
        lower_is_better,
    )


def distances(
    ranked: Sequence[Sequence[float]], levels: Sequence[float], sign: int = 1
) -> list[Effect | None]:
    """Return for each sample how much worse than that of the first, the best, its mean is.

    None for the best, and without an interval: of one value, or of values that are all equal.

    Args:
        ranked: samples, the best first.
        levels: confidence of each interval.
        sign: 1 if higher means are better, -1 if lower ones are.
    """
    several = _compared(ranked)
    differences: list[Effect | None] = []
    for values, level in zip(ranked[1:], levels[1:], strict=True):
        effect = welch_contrast([(sign, ranked[0]), (-sign, values)], level, several)
        differences.append(None if effect.low == effect.high else effect)
    return [None, *differences] if ranked else []


def _compared(samples: Sequence[Sequence[float]]) -> int:
    """Return the number of samples among which the best is chosen, for the intervals."""
    # A single value has no variance and takes no part in the comparison.
    return max(2, sum(len(values) > 1 for values in samples))


def _memories(entries: Sequence[Entry]) -> list[float | None]:
    """Return the peak memory of each on the most common device, relative to the lowest.

    Stacked seeds are left out: their memory is that of several networks. On a CPU, peak memory is
    that of the whole process with its libraries, and no comparison.
    """
    single = [[run for run in entry.runs if run.stacked_seeds == 1] for entry in entries]
    devices = [run.devices for runs in single for run in runs if run.devices]
    common = max(set(devices), key=devices.count, default="cpu")
    if "cpu" in common:
        return [None] * len(entries)
    peaks = [
        [run.peak_memory for run in runs if run.devices == common and run.status not in WORDS]
        for runs in single
    ]
    medians = [median(known) if (known := list(filter(None, each))) else None for each in peaks]
    least = min(filter(None, medians), default=None)
    return [each / least if each and least else None for each in medians]
