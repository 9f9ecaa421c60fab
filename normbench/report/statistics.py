"""Means over seeds, their confidence intervals, and how both are printed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, stdev, variance

CONFIDENCE = 0.95
MINUS = "−"


@dataclass(frozen=True)
class Effect:
    """An estimated effect and its confidence interval, which is missing with one seed."""

    value: float
    low: float | None
    high: float | None
    seeds: int  # of the smallest sample

    def text(self, decimals: int) -> str:
        """Return the value and its interval: "+1.2 [+0.8, +1.6]"."""
        value = signed(self.value, decimals)
        if self.low is None or self.high is None:
            return value
        return f"{value} [{signed(self.low, decimals)}, {signed(self.high, decimals)}]"


def signed(number: float, decimals: int) -> str:
    """Return a number with its sign, and the minus character of typography."""
    return f"{number:+.{decimals}f}".replace("-", MINUS)


def summary(values: Sequence[float], statistic: str = "mean") -> tuple[float, float | None]:
    """Return mean or median, and the sample standard deviation (n - 1), None of one value."""
    center = median(values) if statistic == "median" else fmean(values)
    return center, stdev(values) if len(values) > 1 else None


def welch_contrast(
    parts: Sequence[tuple[float, Sequence[float]]], confidence: float = CONFIDENCE
) -> Effect:
    """Return a weighted sum of means of independent samples, with its Welch interval.

    `parts` are (weight, values) of each sample. With weights 1 and -1 this is Welch's interval of a
    difference (Welch 1947, Biometrika 34); the degrees of freedom are Satterthwaite's (1946,
    Biometrics Bulletin 2). Variances may differ.
    """
    value = sum(weight * fmean(values) for weight, values in parts)
    seeds = min(len(values) for _, values in parts)
    if seeds < 2:
        return Effect(value, None, None, seeds)
    squares = [
        (weight**2 * variance(values) / len(values), len(values)) for weight, values in parts
    ]
    total = sum(square for square, _ in squares)
    if total == 0:  # equal numbers in every sample: no degrees of freedom to compute
        return Effect(value, value, value, seeds)
    freedom = total**2 / sum(square**2 / (count - 1) for square, count in squares)
    from scipy.special import stdtrit  # slow import: 0.2 s

    half = float(stdtrit(freedom, (1 + confidence) / 2)) * total**0.5
    return Effect(value, value - half, value + half, seeds)


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Effect | None:
    """Return the mean of `first` minus `second`, paired by seed, with Student's t interval.

    None with fewer than two common seeds.
    """
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    # Of one sample, Welch's interval is Student's.
    return welch_contrast([(1.0, differences)]) if len(differences) > 1 else None


def tukey_spread(samples: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Effect:
    """Return the largest mean minus the smallest, with its Tukey-Kramer interval.

    The ends are the largest ends of the simultaneous intervals of all pairs, which account for
    choosing the extremes: even for equal means the spread of estimates is positive.
    """
    means = [fmean(values) for values in samples]
    value = max(means) - min(means)
    seeds = min(map(len, samples))
    if seeds < 2:
        return Effect(value, None, None, seeds)
    if not any(variance(values) for values in samples):
        return Effect(value, value, value, seeds)
    pairs = [
        (means[first] - mean, margin)
        for first in range(len(samples))
        for mean, margin in zip(means, tukey_margins(samples, confidence, first), strict=True)
    ]
    low = max(difference - margin for difference, margin in pairs)
    high = max(difference + margin for difference, margin in pairs)
    # A spread cannot be negative.
    return Effect(value, max(0.0, low), high, seeds)


def tukey_margins(
    samples: Sequence[Sequence[float]], confidence: float = CONFIDENCE, first: int = 0
) -> list[float]:
    """Return for each sample the difference from the mean of the `first` that is significant.

    Tukey's honest significant difference (Tukey 1949, Kramer 1956, Biometrics 12), with pooled
    variance. It holds for all pairs at once, so the first sample may be chosen as the best one.
    Each sample has at least two values.
    """
    counts = [len(values) for values in samples]
    freedom = sum(counts) - len(counts)
    pooled = sum((len(values) - 1) * variance(values) for values in samples) / freedom
    quantile = _studentized_range(confidence, len(samples), freedom)
    return [quantile * (pooled / 2 * (1 / counts[first] + 1 / count)) ** 0.5 for count in counts]


def std_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Effect:
    """Return the sample standard deviation of normal `values` with its chi-square interval."""
    if len(values) < 2:
        return Effect(0.0, None, None, len(values))
    from scipy.stats import chi2

    value, freedom = stdev(values), len(values) - 1
    low, high = (
        value * (freedom / float(chi2.ppf(tail, freedom))) ** 0.5
        for tail in ((1 + confidence) / 2, (1 - confidence) / 2)
    )
    return Effect(value, low, high, len(values))


@cache
def _studentized_range(probability: float, samples: int, freedom: int) -> float:
    from scipy.stats import studentized_range  # slow: 0.1 s for each quantile

    return float(studentized_range.ppf(probability, samples, freedom))
