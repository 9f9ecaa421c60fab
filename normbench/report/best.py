"""The best numbers of a column: ours and the paper's apart, with all that may be as good."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from normbench.report.planned_seeds import confidence
from normbench.report.recommendation import distances
from normbench.report.statistics import CONFIDENCE
from normbench.report.table import Entry, Table
from normbench.report.table_spec import Label

Place = tuple[Label, int]  # row and column


def best_of_ours(table: Table) -> set[Place]:
    """Return the best of our numbers in each column, and those not distinguishable from it."""
    # The mean of the seeds that did not fail would flatter a normalizer that diverges.
    return _best(table, lambda entry: bool(entry.values) and not entry.failed, _best_samples)


def best_published(table: Table) -> set[Place]:
    """Return the best of the paper's numbers in each column, and those not distinguishable from it.

    Without the paper's deviations and number of runs, only equal numbers are not distinguishable.
    """
    seeds = table.spec.seeds if isinstance(table.spec.seeds, int) else 1
    return _best(
        table,
        lambda entry: entry.published is not None and entry.published.value is not None,
        lambda entries: _best_printed(entries, seeds),
    )


def _best(
    table: Table,
    has_number: Callable[[Entry], bool],
    choose: Callable[[Sequence[Entry]], list[bool]],
) -> set[Place]:
    """Return the places of the chosen entries; only entries of one metric are compared."""
    places: set[Place] = set()
    for index, _ in enumerate(table.columns):
        column = [
            (label, entries[index])
            for label, entries in table.lines.items()
            if has_number(entries[index])
            and entries[index].metric.better
            and not table.is_difference(label, index)
        ]
        column.sort(key=lambda place: place[1].metric.label)
        for _, group in groupby(column, key=lambda place: place[1].metric.label):
            labels, compared = zip(*group, strict=True)
            if len(compared) > 1:
                chosen = zip(labels, choose(compared), strict=True)
                places |= {(label, index) for label, good in chosen if good}
    return places


def _best_samples(entries: Sequence[Entry]) -> list[bool]:
    samples = [[_SIGN[e.metric.better] * value for value in e.values.values()] for e in entries]
    top = max(range(len(entries)), key=lambda place: fmean(samples[place]))
    levels = {place: confidence([entries[top], e]) for place, e in enumerate(entries)}
    single_seeds = entries[0].metric.learned and len(samples[top]) == 1
    return _not_below(samples, levels, single_seeds=single_seeds)


def _best_printed(entries: Sequence[Entry], seeds: int) -> list[bool]:
    samples = []
    for entry in entries:
        assert entry.published is not None
        assert entry.published.value is not None
        value = _SIGN[entry.metric.better] * entry.published.value
        samples.append(_sample(value, entry.published.error, seeds))
    return _not_below(samples, dict.fromkeys(range(len(entries)), CONFIDENCE))


def _not_below(
    samples: Sequence[Sequence[float]], levels: Mapping[int, float], *, single_seeds: bool = False
) -> list[bool]:
    """Return for each sample whether its mean is the best or not significantly below it.

    Of `single_seeds`, which vary with the seed, none is the best.
    """
    ranked = sorted(range(len(samples)), key=lambda place: -fmean(samples[place]))
    lower = distances([samples[place] for place in ranked], [levels[place] for place in ranked])
    if single_seeds and all(effect is None for effect in lower):
        return [False] * len(samples)  # nothing can be told apart
    top = fmean(samples[ranked[0]])
    good = {}
    for place, effect in zip(ranked, lower, strict=True):
        equal = abs(top - fmean(samples[place])) < 1e-9
        good[place] = equal or (effect is not None and effect.low is not None and effect.low <= 0)
    return [good[place] for place in range(len(samples))]


def _sample(mean: float, deviation: float | None, seeds: int) -> list[float]:
    """Return numbers with this mean and sample standard deviation, to be treated as ours are."""
    if not deviation or seeds < 2:
        return [mean]
    outer = deviation * ((seeds - 1) / 2) ** 0.5
    return [mean - outer, mean + outer, *[mean] * (seeds - 2)]


_SIGN = {"higher": 1, "lower": -1}
