"""Means over seeds and how sure they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, stdev, variance

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and the ends of its interval; without seeds enough there are none.

    Args:
        value: the estimate.
        low: lower end.
        high: upper end.
        seeds: the smallest number of seeds behind one of its parts.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1); of a single value there is no deviation."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def summary(values: Sequence[float], statistic: str) -> tuple[float, float | None]:
    """The mean or the median, and the sample standard deviation."""
    mean, std = mean_and_std(values)
    return (median(values) if statistic == "median" else mean), std


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float], confidence: float = CONFIDENCE
) -> tuple[float, float, float, int] | None:
    """`first` minus `second` over the seeds of both: mean, ends of its interval, number of pairs.

    Student's t interval of the paired differences; None with fewer than two pairs.
    """
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    count = len(differences)
    if count < 2:
        return None
    half = _quantile((1 + confidence) / 2, count - 1) * stdev(differences) / count**0.5
    mean = fmean(differences)
    return mean, mean - half, mean + half, count


def contrast(
    parts: Sequence[tuple[float, Sequence[float]]], confidence: float = CONFIDENCE
) -> Estimate:
    """The sum of weights times means of independent samples, with Welch's interval.

    Of two samples with the weights 1 and -1 it is Welch's of their difference (Welch 1947); the
    degrees of freedom are Satterthwaite's in general.

    Args:
        parts: (weight, values) of each sample.
        confidence: of the interval.
    """
    value = sum(weight * fmean(values) for weight, values in parts)
    seeds = min(len(values) for _, values in parts)
    if seeds < 2:
        return Estimate(value, None, None, seeds)
    squares = [
        (weight**2 * variance(values) / len(values), len(values)) for weight, values in parts
    ]
    total = sum(square for square, _ in squares)
    if total == 0:
        return Estimate(value, value, value, seeds)
    freedom = total**2 / sum(square**2 / (count - 1) for square, count in squares)
    half = _quantile((1 + confidence) / 2, freedom) * total**0.5
    return Estimate(value, value - half, value + half, seeds)


def spread(samples: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Estimate:
    """The largest mean of `samples` minus the smallest, with Tukey's interval.

    Its ends are the largest ones of the simultaneous intervals of all pairs (Tukey 1949, Kramer
    1956): a spread of noise alone is never 0, and these intervals know how many were compared.
    """
    means = [fmean(values) for values in samples]
    value = max(means) - min(means)
    seeds = min(map(len, samples))
    if seeds < 2:
        return Estimate(value, None, None, seeds)
    if not any(variance(values) for values in samples):
        return Estimate(value, value, value, seeds)
    from scipy.stats import tukey_hsd

    found = tukey_hsd(*samples).confidence_interval(confidence)
    return Estimate(value, max(0.0, float(found.low.max())), float(found.high.max()), seeds)


def deviation(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The sample standard deviation of normal `values`, with the interval from chi-square."""
    if len(values) < 2:
        return Estimate(0.0, None, None, len(values))
    from scipy.stats import chi2

    value, freedom = stdev(values), len(values) - 1
    low, high = (
        value * (freedom / float(chi2.ppf(tail, freedom))) ** 0.5
        for tail in ((1 + confidence) / 2, (1 - confidence) / 2)
    )
    return Estimate(value, low, high, len(values))


def least_significant(
    samples: Sequence[Sequence[float]], confidence: float = CONFIDENCE
) -> list[float]:
    """How far the mean of each sample must be from that of the first for them to differ.

    Tukey's honest significant difference (Tukey 1949, Kramer 1956), by the deviation of all samples
    pooled: it holds for all pairs together, and so for the best one, whichever that turns out to
    be. Each sample has two values or more.
    """
    freedom = sum(len(values) - 1 for values in samples)
    pooled = sum((len(values) - 1) * variance(values) for values in samples) / freedom
    quantile = _studentized_range(confidence, len(samples), freedom)
    counts = [len(values) for values in samples]
    return [quantile * (pooled / 2 * (1 / counts[0] + 1 / count)) ** 0.5 for count in counts]


@cache
def _studentized_range(probability: float, samples: int, freedom: int) -> float:
    from scipy.stats import studentized_range  # a tenth of a second for each quantile

    return float(studentized_range.ppf(probability, samples, freedom))


def _quantile(probability: float, freedom: float) -> float:
    from scipy.special import stdtrit  # 0.2 s that a table without pairs need not pay

    return float(stdtrit(freedom, probability))
