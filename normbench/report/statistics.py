"""Means over seeds and their confidence intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, stdev, variance

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """An estimate and its confidence interval; with one seed there is no interval.

    Args:
        value: the estimate.
        low: lower end of the interval.
        high: upper end of the interval.
        seeds: smallest number of seeds of its samples.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation (n - 1); of one value the latter is None."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def summary(values: Sequence[float], statistic: str) -> tuple[float, float | None]:
    """Return the mean or the median, and the sample standard deviation."""
    mean, std = mean_and_std(values)
    return (median(values) if statistic == "median" else mean), std


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float], confidence: float = CONFIDENCE
) -> tuple[float, float, float, int] | None:
    """Return mean, lower and upper end, and number of pairs of `first` minus `second` by seed.

    Student's t interval of paired differences; None with fewer than two common seeds.
    """
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    count = len(differences)
    if count < 2:
        return None
    half = _quantile((1 + confidence) / 2, count - 1) * stdev(differences) / count**0.5
    mean = fmean(differences)
    return mean, mean - half, mean + half, count


def welch_contrast(
    parts: Sequence[tuple[float, Sequence[float]]], confidence: float = CONFIDENCE
) -> Estimate:
    """Return a weighted sum of means of independent samples, with its Welch interval.

    With weights 1 and -1 this is Welch's interval of a difference (Welch 1947, Biometrika 34); the
    degrees of freedom are Satterthwaite's (1946, Biometrics Bulletin 2). Variances may differ.

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


def tukey_spread(samples: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Estimate:
    """Return the largest mean minus the smallest, with its Tukey-Kramer interval.

    The ends are the largest ends of the simultaneous intervals of all pairs (Tukey 1949, Kramer
    1956, Biometrics 12), which account for choosing the extremes: even for equal means the spread
    of estimates is positive. Variances are pooled.
    """
    means = [fmean(values) for values in samples]
    value = max(means) - min(means)
    seeds = min(map(len, samples))
    if seeds < 2:
        return Estimate(value, None, None, seeds)
    if not any(variance(values) for values in samples):
        return Estimate(value, value, value, seeds)
    from scipy.stats import tukey_hsd

    interval = tukey_hsd(*samples).confidence_interval(confidence)
    return Estimate(value, max(0.0, float(interval.low.max())), float(interval.high.max()), seeds)


def std_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the sample standard deviation of normal `values` with its chi-square interval."""
    if len(values) < 2:
        return Estimate(0.0, None, None, len(values))
    from scipy.stats import chi2

    value, freedom = stdev(values), len(values) - 1
    low, high = (
        value * (freedom / float(chi2.ppf(tail, freedom))) ** 0.5
        for tail in ((1 + confidence) / 2, (1 - confidence) / 2)
    )
    return Estimate(value, low, high, len(values))


def tukey_margins(
    samples: Sequence[Sequence[float]], confidence: float = CONFIDENCE
) -> list[float]:
    """Return for each sample the difference from the first mean that is significant.

    Tukey's honest significant difference (Tukey 1949, Kramer 1956) with pooled variance. It holds
    for all pairs at once, so the first sample may be chosen as the best one. Each sample has at
    least two values.
    """
    freedom = sum(len(values) - 1 for values in samples)
    pooled = sum((len(values) - 1) * variance(values) for values in samples) / freedom
    quantile = _studentized_range(confidence, len(samples), freedom)
    counts = [len(values) for values in samples]
    return [quantile * (pooled / 2 * (1 / counts[0] + 1 / count)) ** 0.5 for count in counts]


@cache
def _studentized_range(probability: float, samples: int, freedom: int) -> float:
    from scipy.stats import studentized_range  # slow: 0.1 s for each quantile

    return float(studentized_range.ppf(probability, samples, freedom))


def _quantile(probability: float, freedom: float) -> float:
    from scipy.special import stdtrit  # slow import: 0.2 s

    return float(stdtrit(freedom, probability))
