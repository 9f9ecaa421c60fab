"""Recommendation: which normalizer for a given number of images per worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from normbench.config.files import CONF, names
from normbench.report.image_intervals import (
    OVER_IMAGES,
    OVER_SEEDS,
    explain_missing_hits,
    widen_over_images,
)
from normbench.report.markdown import escape_markdown
from normbench.report.planned_seeds import UNPLANNED, confidence
from normbench.report.statistics import MINUS, Effect, summary, unstable, welch_contrast
from normbench.report.table import WORDS, Entry, Table

METHOD = (
    "For each number of images per worker: the normalizer with the best mean, and how much lower "
    "the others are, with intervals that hold for all pairs together with 95 % (Games and Howell "
    "1976; variances may differ, and the best may be chosen by the same seeds). The interval "
    f'is {OVER_SEEDS}. The one after the word "images" is {OVER_IMAGES}. They are of 99.9 % '
    "where the number of seeds is not that of the sweep's file or command. A normalizer is "
    'significantly worse if its whole interval lies above 0. "Not significantly worse" does not '
    'mean "as good": the upper end says how much worse it may be. A normalizer is unstable if its '
    "variance over seeds is significantly above that of the others (F test, 1 %, "
    "Bonferroni-corrected). Memory is the peak memory of the GPU, relative to the lowest of the "
    "compared normalizers. Time is not compared, because runs that train beside others slow each "
    "other down; `python -m normbench.probe speed norm=bn,gn` measures it."
)


@dataclass(frozen=True)
class Candidate:
    """A normalizer at one number of images per worker."""

    name: str  # with the options that differ from its yaml
    mean: float
    std: float | None  # None with one seed
    seeds: int
    lower: Effect | None  # how much lower than the best; None for the best or without an interval
    lower_images: Effect | None  # with its interval over seeds and images, where runs have hits
    planned: bool  # the interval has the planned number of seeds, and so its full level
    unstable: bool  # varies far more over seeds than the others
    memory: float | None  # peak, relative to the lowest

    def mean_text(self, decimals: int) -> str:
        """Return the mean and the standard deviation: "89.2 ± 1.4"."""
        deviation = "" if self.std is None else f" ± {self.std:.{decimals}f}"
        return f"{self.mean:.{decimals}f}{deviation}"

    @property
    def worse(self) -> bool:
        """True if it is significantly worse than the best."""
        return self.lower is not None and self.lower.low is not None and self.lower.low > 0


@dataclass(frozen=True)
class Advice:
    """Recommendation for `batch` images per worker in the setting of a table."""

    batch: int
    good: tuple[Candidate, ...]  # the best and those not significantly worse, best first
    unsure: tuple[Candidate, ...]  # not testable: they or the best have one seed, or equal ones
    worse: tuple[Candidate, ...]  # significantly worse than the best
    failed: tuple[str, ...]  # with runs that diverged, ran out of memory or are impossible
    untested: tuple[str, ...]  # normalizers of conf/norm/ without a run here

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The normalizers with a result for every seed, by verdict."""
        return *self.good, *self.unsure, *self.worse

    @property
    def tested(self) -> list[str]:
        """The normalizers that were trained at this batch, the best first."""
        compared = [each.name for each in self.candidates]
        return compared + [text.rpartition(" (")[0] for text in self.failed]

    @property
    def ranked(self) -> bool:
        """False if the normalizer with the best mean has one seed, which ranks nothing."""
        return not self.good or self.good[0].seeds > 1


def advice(table: Table) -> list[Advice]:
    """Return the advice for each column of a table of normalizers over images per worker."""
    if not table.spec.axes or table.spec.axes[0] != "norm":
        return []
    return [
        _advice(
            column.batch, {label[0]: line[index] for label, line in table.lines.items()}, table.root
        )
        for index, column in enumerate(table.columns)
        if column.batch is not None and any(line[index].values for line in table.lines.values())
    ]


def comparisons(table: Table) -> list[Advice]:
    """Return the advice of a table; none if it has a single normalizer."""
    advised = advice(table)
    return advised if len({name for column in advised for name in column.tested}) > 1 else []


def _advice(batch: int, entries: Mapping[str, Entry], root: Path | None) -> Advice:
    tested = {name.split(" ")[0] for name, entry in entries.items() if entry.runs}
    failed = [f"{name} ({_failure_text(e)})" for name, e in entries.items() if e.failed]
    # The mean of the seeds that did not fail would flatter a normalizer that diverges.
    complete = {name: e for name, e in entries.items() if e.values and not e.failed}
    ranked = sorted(complete, key=lambda name: (-fmean(complete[name].values.values()), name))
    best_first = [complete[name] for name in ranked]
    samples = [[*entry.values.values()] for entry in best_first]
    levels = [confidence([best_first[0], entry]) for entry in best_first]
    differences = below_best(samples, levels)
    over_images = [
        lower
        and widen_over_images(
            lower, [(1.0, best_first[0]), (-1.0, entry)], root, level, _compared(samples)
        )
        for lower, entry, level in zip(differences, best_first, levels, strict=True)
    ]
    candidates = [
        Candidate(
            name, *summary(values), len(values), lower, images, level != UNPLANNED, varies, memory
        )
        for name, values, lower, images, level, varies, memory in zip(
            ranked, samples, differences, over_images, levels, unstable(samples),
            _memories(best_first), strict=True,
        )
    ]  # fmt: skip
    best, others = candidates[:1], candidates[1:]
    return Advice(
        batch,
        (*best, *(each for each in others if each.lower and not each.worse)),
        tuple(each for each in others if each.lower is None),
        tuple(each for each in others if each.worse),
        tuple(failed),
        tuple(name for name in names(CONF / "norm") if name not in tested),
    )


def below_best(ranked: Sequence[Sequence[float]], levels: Sequence[float]) -> list[Effect | None]:
    """Return for each sample how much lower than the first, the best, its mean is.

    None for the best, and without an interval: of one value, or of values that are all equal.
    """
    several = _compared(ranked)
    differences: list[Effect | None] = []
    for values, level in zip(ranked[1:], levels[1:], strict=True):
        lower = welch_contrast([(1.0, ranked[0]), (-1.0, values)], level, several)
        differences.append(None if lower.low == lower.high else lower)
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


def _failure_text(entry: Entry) -> str:
    return ", ".join(
        f"{count} of {len(entry.runs)} {word}" for word, count in entry.failures.items()
    )


def markdown(tables: Sequence[Table]) -> str:
    """Return the recommendation for the setting of each of `tables`."""
    parts = ["# Which normalizer\n"]
    for table in tables:
        if advised := sentences(table):
            parts.append(f"**{escape_markdown(table.setting_text)}**\n")
            parts += [*(f"- {escape_markdown(each)}" for each in advised), ""]
    return "\n".join([*parts, METHOD]) + "\n"


def sentences(table: Table) -> list[str]:
    """Return the advice for each number of images per worker, and what was not tested."""
    columns = advice(table)
    if not columns:
        return []
    nowhere = [name for name in columns[0].untested if all(name in c.untested for c in columns)]
    lines = []
    for column in columns:
        missing = [name for name in column.untested if name not in nowhere]
        lines.append(sentence(table, column, missing))
    lines.append(f"Not tested: {', '.join(nowhere) or 'none'}.")
    if table.spec.metric.by_image and (missing_hits := explain_missing_hits(table)):
        lines.append(missing_hits)
    return lines


def sentence(table: Table, advised: Advice, missing: Sequence[str] = ()) -> str:
    """Return the advice for one number of images per worker in words.

    `missing` are normalizers that were tested with other numbers of images alone.
    """
    decimals = table.spec.decimals
    text = f"With {advised.batch} images per worker"
    if advised.good:
        best, *others = advised.good
        text += f" the best is {_describe(best, decimals)}."
        if others:
            listed = (
                f"{_describe(each, decimals)}: {lower_text(each, decimals)}" for each in others
            )
            text += f" Not significantly worse: {'; '.join(listed)}."
    else:
        text += " no normalizer has a result for every seed."
    compared = (*advised.good, *advised.worse)
    lists = {
        "Significantly worse": [
            f"{each.name} {each.mean:.{decimals}f}: {lower_text(each, decimals)}"
            for each in advised.worse
        ],
        "Not testable with one seed or equal results": [
            f"{each.name} {each.mean:.{decimals}f}" for each in advised.unsure
        ],
        "99.9 % intervals, because the number of seeds is not the planned one": [
            each.name for each in compared if each.lower and not each.planned
        ],
        "Unstable": [
            f"{each.name} (standard deviation {each.std:.{decimals}f})"
            for each in compared
            if each.unstable
        ],
        "Without a result": advised.failed,
        "Not tested here": missing,
    }
    return text + "".join(f" {what}: {'; '.join(each)}." for what, each in lists.items() if each)


def lower_text(candidate: Candidate, decimals: int) -> str:
    """Return how much lower than the best it is: "3.4 lower [1.1, 5.7], images [0.2, 6.6]"."""
    assert candidate.lower is not None
    text = f"{_number(candidate.lower.value, decimals)} lower"
    text += f" {_interval(candidate.lower, decimals)}"
    if candidate.lower_images is not None:
        text += f", images {_interval(candidate.lower_images, decimals)}"
    return text


def _interval(effect: Effect, decimals: int) -> str:
    assert effect.low is not None
    assert effect.high is not None
    return f"[{_number(effect.low, decimals)}, {_number(effect.high, decimals)}]"


def _number(value: float, decimals: int) -> str:
    """Return a number without a sign if it is positive."""
    return f"{value:.{decimals}f}".replace("-", MINUS)


def _describe(candidate: Candidate, decimals: int) -> str:
    memory = "" if candidate.memory is None else f", {candidate.memory:.2f}x memory"
    number = f"{candidate.mean_text(decimals)}, n = {candidate.seeds}"
    return f"{candidate.name} ({number}{memory})"
