"""Means over seeds, confidence intervals over seeds and test images, and how they are printed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
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
        return f"{signed(self.value, decimals)} {self.interval(decimals)}".rstrip()

    def interval(self, decimals: int) -> str:
        """Return the interval, "" if it is missing."""
        if self.low is None or self.high is None:
            return ""
        return f"[{signed(self.low, decimals)}, {signed(self.high, decimals)}]"


def signed(number: float, decimals: int) -> str:
    """Return a number with its sign, and the minus character of typography."""
    return f"{number:+.{decimals}f}".replace("-", MINUS).replace("inf", "∞")


def summary(values: Sequence[float], statistic: str = "mean") -> tuple[float, float | None]:
    """Return mean or median, and the sample standard deviation (n - 1), None of one value."""
    center = median(values) if statistic == "median" else fmean(values)
    return center, stdev(values) if len(values) > 1 else None


def welch_contrast(
    parts: Sequence[tuple[float, Sequence[float]]], confidence: float = CONFIDENCE, among: int = 2
) -> Effect:
    """Return a weighted sum of means of independent samples, with its Welch interval.

    `parts` are (weight, values) of each sample. With weights 1 and -1 this is Welch's interval of a
    difference (Welch 1947, Biometrika 34); the degrees of freedom are Satterthwaite's (1946,
    Biometrics Bulletin 2). Variances may differ.

    With `among` samples the intervals of all pairs of them hold together (Games and Howell 1976, J.
    Educational Statistics 1), so the two may be chosen by their means, as the best and another.
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
    half = _quantile(confidence, freedom, among) * total**0.5
    return Effect(value, value - half, value + half, seeds)


def largest_difference(values: Sequence[float], confidence: float) -> float:
    """Return how far two further values like these differ at most, with this confidence.

    Of independent normal values, t s sqrt(2) with the sample standard deviation s.
    """
    return _quantile(confidence, len(values) - 1, 2) * stdev(values) * 2**0.5


def add_test_images(
    effect: Effect,
    parts: Sequence[tuple[float, Sequence[int]]],
    images: int,
    confidence: float = CONFIDENCE,
    among: int = 2,
) -> Effect:
    """Widen Welch's interval over seeds to one over seeds and test images.

    The interval of `effect`, a weighted sum of accuracies in percent, tells what another training
    would give on the same test images; the result, what it would give on others of their kind, too.
    `parts` are (weight, hits of each seed) of its samples, where the bits of `hits` are the N
    common test `images`, as read by `normbench.results.find_test_hits`. Seeds and images are
    crossed random factors: image i is right (y = 1) or wrong (0) in seed s of sample a,

        y[a,s,i] = mean[a] + image[a,i] + seed[a,s] + rest[a,s,i]

    so that the variance of the effect, with weights w[a] and S[a] seeds, is the sum of

        seeds     sum over a of w[a]^2 (Var seed[a] + Var rest[a] / N) / S[a]
        images    Var(sum over a of w[a] image[a]) / N

    Welch's interval has estimated the first. The sample variance over i of the effect on image i,
    divided by N, estimates the second and the sum of w[a]^2 Var rest[a] / (S[a] N), which is
    subtracted: Var rest[a] is the residual mean square of the table of seeds and images (Searle,
    Casella and McCulloch 1992, Variance Components). The squares of both half widths are added
    (Zou and Donner 2008, Statistics in Medicine 27), so that the interval never becomes narrower.
    """
    assert effect.low is not None
    runs = [(weight / len(seeds), hits) for weight, seeds in parts for hits in seeds]
    value = sum(weight * hits.bit_count() for weight, hits in runs) / images
    squares = sum(a * b * (x & y).bit_count() for a, x in runs for b, y in runs) / images
    rest = sum(weight**2 * _residual(seeds, images) / len(seeds) for weight, seeds in parts)
    variance_of_images = max(0.0, (squares - value**2) / (images - 1) - rest / images)
    half = 100 * _quantile(confidence, images - 1, among) * math.sqrt(variance_of_images)
    half = math.hypot(effect.value - effect.low, half)
    return replace(effect, low=effect.value - half, high=effect.value + half)


def _residual(seeds: Sequence[int], images: int) -> float:
    """Return the mean square of a table of seeds and images without the effects of both."""
    counts = [hits.bit_count() for hits in seeds]
    total = sum(counts)
    # Sums of squares; that of images has each pair of seeds by its common hits.
    of_seeds = sum(count**2 for count in counts) / images
    of_images = sum((first & second).bit_count() for first in seeds for second in seeds)
    square = total - of_seeds - of_images / len(seeds) + total**2 / (len(seeds) * images)
    return square / ((len(seeds) - 1) * (images - 1))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the p value of McNemar's exact test (1947, Psychometrika 12): both err equally often.

    Of the images that one of two runs alone classifies correctly, each is as likely to be that of
    the first as of the second, so their numbers are binomial with probability 1/2.
    """
    images = only_first + only_second
    term = tail = 1  # binomial coefficients, summed from 0 to the smaller number
    for number in range(min(only_first, only_second)):
        term = term * (images - number) // (number + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << images))


def bonferroni(comparisons: int, confidence: float) -> float:
    """Return the confidence of each of several intervals that hold together with `confidence`.

    Bonferroni's correction (Dunn 1961).
    """
    return 1 - (1 - confidence) / comparisons


def _quantile(confidence: float, freedom: float, among: int) -> float:
    """Return Student's quantile of a pair, or of the widest pair among several samples."""
    if among > 2:
        # Rounding down lowers the error of 10 samples of 3 from 5.5 to 4.5 %, and saves time. Of
        # equal variances the degrees of freedom are whole but for the rounding of floats.
        rounded = int(2 * freedom + 1e-6) / 2
        return _studentized_range(confidence, among, rounded) / 2**0.5
    from scipy.special import stdtrit  # slow import: 0.2 s

    return float(stdtrit(freedom, (1 + confidence) / 2))


@cache
def _studentized_range(probability: float, samples: int, freedom: float) -> float:
    from scipy.stats import studentized_range  # slow: 0.1 s for each quantile

    return float(studentized_range.ppf(probability, samples, freedom))


def spread(samples: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Effect:
    """Return the largest mean minus the smallest, with an interval for unequal variances.

    The spread is below a bound if every pair differs by less, so the upper end is the largest of
    the pairs' Welch intervals, each at the full level (an intersection-union test, Berger 1982). It
    is above if some pair differs by more, so the lower end comes from the intervals that hold for
    all pairs together: even of equal means the extremes differ.
    """
    means = [fmean(values) for values in samples]
    value = max(means) - min(means)
    seeds = min(map(len, samples))
    if seeds < 2:
        return Effect(value, None, None, seeds)
    pairs = [((1.0, first), (-1.0, second)) for first, second in combinations(samples, 2)]
    differences = [(welch_contrast(pair, confidence), pair) for pair in pairs]
    low = 0.0
    for difference, pair in sorted(differences, key=lambda each: _nearest(each[0]), reverse=True):
        # An interval for all pairs is wider, so it ends nearer to 0; its quantile takes 0.1 s.
        if _nearest(difference) <= low:
            break
        low = max(low, _nearest(welch_contrast(pair, confidence, len(samples))))
    high = max(_farthest(difference) for difference, _ in differences)
    return Effect(value, low, high, seeds)


def _nearest(difference: Effect) -> float:
    """Return the least distance from 0 in an interval."""
    assert difference.low is not None
    assert difference.high is not None
    return max(0.0, difference.low, -difference.high)


def _farthest(difference: Effect) -> float:
    """Return the largest distance from 0 in an interval."""
    assert difference.low is not None
    assert difference.high is not None
    return max(difference.high, -difference.low)


def unstable(samples: Sequence[Sequence[float]], level: float = 0.01) -> list[bool]:
    """Return for each sample whether it varies far more than the others.

    An F test of its variance against the pooled one of the others, Bonferroni-corrected for the
    number of samples. A sample of one value neither varies nor counts.
    """
    from scipy.special import fdtrc

    freedoms = [len(values) - 1 for values in samples]
    squares = [variance(v) * (len(v) - 1) if len(v) > 1 else 0.0 for v in samples]
    flags = []
    for square, freedom in zip(squares, freedoms, strict=True):
        others, rest = sum(squares) - square, sum(freedoms) - freedom
        # Others that do not vary at all are rounded numbers of a small test set.
        testable = freedom > 0 and rest > 0 and others > 0
        flags.append(
            testable
            and fdtrc(freedom, rest, square / freedom / (others / rest)) < level / len(samples)
        )
    return flags


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
