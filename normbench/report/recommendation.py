"""Recommendation: which normalizer for a given number of images per worker, and at what cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from normbench.config.files import CONF, names
from normbench.report.markdown import escape_markdown
from normbench.report.statistics import summary, tukey_margins
from normbench.report.table import WORDS, Entry, Table

METHOD = (
    "For each number of images per worker: the normalizer with the best mean, and those not "
    "significantly worse (Tukey's honest significant difference, 5 % for all pairs). \"Not "
    'significantly worse" does not mean "as good": with few seeds it includes many normalizers. '
    "Time is measured per training image, memory is the peak memory of the GPU, both relative to "
    "the lowest of the compared normalizers."
)


@dataclass(frozen=True)
class Candidate:
    """A normalizer at one number of images per worker."""

    name: str  # with the options that differ from its yaml
    mean: float
    std: float | None  # None with one seed
    seeds: int
    worse: bool | None  # significantly worse than the best; None if either has one seed
    time: float | None  # per training image, relative to the fastest
    memory: float | None  # peak, relative to the lowest


@dataclass(frozen=True)
class Advice:
    """Recommendation for `batch` images per worker in the setting of a table."""

    batch: int
    good: tuple[Candidate, ...]  # the best and those not significantly worse, best first
    unsure: tuple[Candidate, ...]  # not testable: they or the best have one seed
    worse: tuple[Candidate, ...]  # significantly worse than the best
    failed: tuple[str, ...]  # with runs that diverged, ran out of memory or are impossible
    untested: tuple[str, ...]  # normalizers of conf/norm/ without a run here


def advice(table: Table) -> list[Advice]:
    """Return the advice for each column of a table of normalizers over images per worker."""
    if not table.spec.axes or table.spec.axes[0] != "norm":
        return []
    return [
        _advice(column.batch, {label[0]: line[index] for label, line in table.lines.items()})
        for index, column in enumerate(table.columns)
        if column.batch is not None and any(line[index].values for line in table.lines.values())
    ]


def _advice(batch: int, entries: Mapping[str, Entry]) -> Advice:
    tested = {name.split(" ")[0] for name, entry in entries.items() if entry.runs}
    failed = [f"{name} ({_failure_text(e)})" for name, e in entries.items() if e.failed]
    # The mean of the seeds that did not fail would flatter a normalizer that diverges.
    complete = {name: e for name, e in entries.items() if e.values and not e.failed}
    ranked = sorted(complete, key=lambda name: (-fmean(complete[name].values.values()), name))
    samples = [[*complete[name].values.values()] for name in ranked]
    candidates = [
        Candidate(name, *summary(values), len(values), worse, *cost)
        for name, values, worse, cost in zip(
            ranked, samples, _worse_than_best(samples), _costs([complete[name] for name in ranked]),
            strict=True,
        )
    ]  # fmt: skip
    return Advice(
        batch,
        tuple(each for each in candidates if each.worse is False),
        tuple(each for each in candidates if each.worse is None),
        tuple(each for each in candidates if each.worse),
        tuple(failed),
        tuple(name for name in names(CONF / "norm") if name not in tested),
    )


def _worse_than_best(ranked: Sequence[Sequence[float]]) -> list[bool | None]:
    """Return for each sample whether it is significantly worse than the first, the best.

    None if that or the best has a single value.
    """
    if not ranked:
        return []
    # A single value has no variance and takes no part in the test.
    several = [values for values in ranked if len(values) > 1]
    if len(several) < 2 or len(ranked[0]) < 2:
        return [False, *(None for _ in ranked[1:])]
    best = fmean(ranked[0])
    margins = iter(tukey_margins(several))
    return [best - fmean(values) > next(margins) if len(values) > 1 else None for values in ranked]


def _costs(entries: Sequence[Entry]) -> list[tuple[float | None, float | None]]:
    """Return relative time and memory of each, on the most common device.

    Stacked seeds are left out: their time and memory are those of several networks.
    """
    single = [[run for run in entry.runs if run.stacked_seeds == 1] for entry in entries]
    devices = [run.devices for runs in single for run in runs if run.devices]
    common = max(set(devices), key=devices.count, default="")
    seconds, memories = [], []
    for runs in single:
        comparable = [run for run in runs if run.devices == common and run.status not in WORDS]
        speeds = [run.images_per_second for run in comparable if run.images_per_second]
        # On a CPU, peak memory is that of the whole process with its libraries.
        peaks = [run.peak_memory for run in comparable if run.peak_memory and "cpu" not in common]
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
    return [*lines, f"Not tested: {', '.join(nowhere) or 'none'}."]


def sentence(table: Table, advised: Advice, missing: Sequence[str] = ()) -> str:
    """Return the advice for one number of images per worker in words.

    `missing` are normalizers that were tested with other numbers of images alone.
    """
    decimals = table.spec.decimals
    text = f"With {advised.batch} images per worker"
    if advised.good:
        best, *others = (_describe(each, decimals) for each in advised.good)
        text += f" the best is {best}."
        if others:
            text += f" Not significantly worse: {'; '.join(others)}."
    else:
        text += " no normalizer has a result for every seed."
    lists = {
        "Significantly worse": [f"{each.name} {each.mean:.{decimals}f}" for each in advised.worse],
        "Not testable with one seed": [
            f"{each.name} {each.mean:.{decimals}f}" for each in advised.unsure
        ],
        "Without a result": advised.failed,
        "Not tested here": missing,
    }
    return text + "".join(f" {what}: {'; '.join(each)}." for what, each in lists.items() if each)


def _describe(candidate: Candidate, decimals: int) -> str:
    deviation = "" if candidate.std is None else f" ± {candidate.std:.{decimals}f}"
    costs = [
        f", {value:.2f}x {what}"
        for what, value in (("time", candidate.time), ("memory", candidate.memory))
        if value is not None
    ]
    number = f"{candidate.mean:.{decimals}f}{deviation}, n = {candidate.seeds}"
    return f"{candidate.name} ({number}{''.join(costs)})"
