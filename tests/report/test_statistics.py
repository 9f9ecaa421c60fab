"""Means over seeds and their intervals, at the edges: one seed, equal seeds, few seeds."""

import pytest
from scipy import stats

from normbench.report.statistics import Effect, std_interval, tukey_spread, welch_contrast


def test_one_seed_has_a_value_and_no_interval() -> None:
    assert welch_contrast([(1.0, [80.0, 81.0]), (-1.0, [70.0])]) == Effect(10.5, None, None, 1)
    assert tukey_spread([[80.0, 81.0], [70.0]]) == Effect(10.5, None, None, 1)
    assert std_interval([80.0]) == Effect(0.0, None, None, 1)


def test_equal_seeds_have_an_interval_of_no_width() -> None:
    assert welch_contrast([(1.0, [80.0] * 3), (-1.0, [70.0] * 2)]) == Effect(10.0, 10.0, 10.0, 2)
    assert tukey_spread([[80.0] * 3, [70.0] * 2, [75.0] * 2]) == Effect(10.0, 10.0, 10.0, 2)


def test_seeds_are_those_of_the_smallest_sample() -> None:
    assert welch_contrast([(1.0, [80.0, 81.0, 82.0]), (-1.0, [70.0, 71.0])]).seeds == 2
    assert tukey_spread([[80.0, 81.0, 82.0], [70.0, 71.0]]).seeds == 2
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
    tukey = stats.tukey_hsd(first, second).confidence_interval(confidence)
    estimate = tukey_spread([first, second], confidence)
    assert (estimate.low, estimate.high) == pytest.approx((tukey.low.max(), tukey.high.max()))
