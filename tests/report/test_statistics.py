"""Means over seeds and their intervals, at the edges: one seed, equal seeds, few seeds."""

from collections.abc import Sequence

import pytest
from scipy import stats

from normbench.report.statistics import Effect, spread, std_interval, unstable, welch_contrast


def test_one_seed_has_a_value_and_no_interval() -> None:
    assert welch_contrast([(1.0, [80.0, 81.0]), (-1.0, [70.0])]) == Effect(10.5, None, None, 1)
    assert spread([[80.0, 81.0], [70.0]]) == Effect(10.5, None, None, 1)
    assert std_interval([80.0]) == Effect(0.0, None, None, 1)


def test_equal_seeds_have_an_interval_of_no_width() -> None:
    assert welch_contrast([(1.0, [80.0] * 3), (-1.0, [70.0] * 2)]) == Effect(10.0, 10.0, 10.0, 2)
    assert spread([[80.0] * 3, [70.0] * 2, [75.0] * 2]) == Effect(10.0, 10.0, 10.0, 2)


def test_seeds_are_those_of_the_smallest_sample() -> None:
    assert welch_contrast([(1.0, [80.0, 81.0, 82.0]), (-1.0, [70.0, 71.0])]).seeds == 2
    assert spread([[80.0, 81.0, 82.0], [70.0, 71.0]]).seeds == 2
    assert std_interval([80.0, 81.0, 82.0]).seeds == 3


def test_two_seeds_give_a_deviation_with_its_interval() -> None:
    estimate = std_interval([80.0, 82.0], 0.9)
    assert estimate.value == pytest.approx(2**0.5)
    ends = [(2 / stats.chi2.ppf(tail, 1)) ** 0.5 for tail in (0.95, 0.05)]
    assert (estimate.low, estimate.high) == pytest.approx(ends)
    assert estimate.seeds == 2


@pytest.mark.parametrize("confidence", [0.5, 0.99])
def test_the_interval_is_that_of_the_confidence_asked_for(confidence: float) -> None:
    first, second = [80.0, 80.2, 80.9], [70.0, 70.5, 73.0]
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval(confidence)
    estimate = welch_contrast([(1.0, first), (-1.0, second)], confidence)
    assert (estimate.low, estimate.high) == pytest.approx((welch.low, welch.high))
    estimate = spread([first, second], confidence)
    assert (estimate.low, estimate.high) == pytest.approx((welch.low, welch.high))


def test_several_samples_have_games_and_howells_intervals() -> None:
    """With SciPy's studentized range, at degrees of freedom that are rounded down to a half."""
    samples = [[80.0, 80.2, 80.9], [70.0, 70.5, 73.0, 71.0], [79.0, 79.5]]
    first, second = samples[0], samples[1]
    estimate = welch_contrast([(1.0, first), (-1.0, second)], among=len(samples))
    error, freedom = welch_error(first, second)
    assert 3.5 < freedom < 4
    quantile = stats.studentized_range.ppf(0.95, 3, 3.5) / 2**0.5
    half = quantile * error
    assert estimate.value == pytest.approx(80.36667 - 71.125)
    assert (estimate.low, estimate.high) == pytest.approx(
        (estimate.value - half, estimate.value + half)
    )


def test_degrees_of_freedom_of_equal_variances_are_not_rounded_down() -> None:
    """In floats they are 3.9999999999999996 here."""
    samples = [[60.8, 61.2, 61.6], [88.6, 89.0, 89.4], [5.0, 6.0, 7.0]]
    estimate = welch_contrast([(1.0, samples[0]), (-1.0, samples[1])], among=3)
    assert estimate.low is not None
    error, _ = welch_error(samples[0], samples[1])
    quantile = stats.studentized_range.ppf(0.95, 3, 4.0) / 2**0.5
    assert estimate.value - estimate.low == pytest.approx(quantile * error, rel=1e-6)


def welch_error(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of a difference and Satterthwaite's degrees of freedom."""
    a, b = (stats.sem(values) ** 2 for values in (first, second))
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    return (a + b) ** 0.5, freedom


def test_a_spread_is_bounded_above_by_every_pair_and_below_by_all_together() -> None:
    samples = [[1.0, 2.0, 3.5], [0.0, 0.5, 1.2, 0.7], [5.0, 5.5, 5.6]]
    estimate = spread(samples)
    pairs = [[(1.0, samples[2]), (-1.0, samples[k])] for k in (0, 1)]
    alone = [welch_contrast(pair) for pair in pairs]
    together = [welch_contrast(pair, among=3) for pair in pairs]
    assert estimate.value == pytest.approx(16.1 / 3 - 0.6)
    assert estimate.high == max(each.high for each in alone if each.high is not None)
    assert estimate.low == max(each.low for each in together if each.low is not None)
    assert estimate.high == alone[0].high  # of the pair that varies most, not of the extremes


@pytest.mark.parametrize(
    ("samples", "flags"),
    [
        ([[70.0, 80.0, 65.0], [75.0, 75.2, 75.1], [74.0, 74.2, 74.3]], [True, False, False]),
        ([[75.0, 75.5, 74.6], [75.0, 75.2, 75.1], [74.0, 74.2, 74.3]], [False, False, False]),
        ([[70.0, 80.0, 65.0], [75.0, 75.2, 75.1]], [True, False]),
        ([[70.0, 80.0, 65.0], [75.0], [74.0, 74.2, 74.3]], [True, False, False]),
        ([[70.0, 80.0, 65.0], [75.0, 75.0, 75.0]], [False, False]),
        ([[70.0]], [False]),
        ([], []),
    ],
)
def test_a_sample_that_varies_far_more_than_the_others_is_unstable(
    samples: Sequence[Sequence[float]], flags: Sequence[bool]
) -> None:
    assert unstable(samples) == flags
