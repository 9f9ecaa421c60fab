"""Error rates and power of verdicts where the truth is known; docs/statistics.md has them all."""

import math
from itertools import chain

import pytest

from normbench.report import statistics
from support.slow import slow_except
from support.verdict_rates import (
    AFTER,
    BEFORE,
    PAGE,
    SEQUENTIAL,
    measure,
    measure_sequential,
    read,
    sample_variance,
    table,
)
from support.verdict_scenarios import (
    EFFECTS,
    FALSE,
    WRONG,
    Scenario,
    claim_scenarios,
    recommendation_scenarios,
)

CASES = {
    f"{each.subject}, {each.rate}, n = {seeds}{', one noisy' if noisy else ''}": (each, seeds)
    for seeds, effect in EFFECTS.items()
    for noisy in (False, True)
    for each in chain(claim_scenarios(effect, noisy), recommendation_scenarios(effect, noisy))
}
ERRORS = [name for name, (each, _) in CASES.items() if each.rate in (FALSE, WRONG)]
#: Three claims and a recommendation whose errors earlier methods did not keep.
EVERYDAY = [
    "higher in every of 6, false confirmations, n = 3",
    "rises over 6, false confirmations, n = 3",
    "spread of 6, false refutations, n = 3, one noisy",
    "recommendation of 10, false confirmations, n = 3, one noisy",
]


@pytest.fixture(autouse=True)
def _in_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time would go into the exact fractions of the standard library."""
    monkeypatch.setattr(statistics, "variance", sample_variance)


def most(scenario: Scenario, repetitions: int) -> float:
    """Return the nominal error in %, and three standard errors of the simulation above it.

    That of a claim about one side is 2.5 %; a spread of 0 and a recommendation can err on both. A
    tenth is granted to the approximation of Welch's degrees of freedom.
    """
    both = scenario.subject.startswith("recommendation") or (
        scenario.subject.startswith("spread") and scenario.counted == "refuted"
    )
    nominal = 5.5 if both else 3.3 if max(scenario.deviations) > 1 else 2.75
    return nominal + 3 * math.sqrt(nominal * (100 - nominal) / repetitions)


@pytest.mark.parametrize("name", slow_except(ERRORS, EVERYDAY))
def test_a_verdict_errs_as_rarely_as_it_says(name: str) -> None:
    scenario, seeds = CASES[name]
    assert measure(scenario, seeds, 400) <= most(scenario, 400)


@pytest.mark.parametrize(
    ("name", "power"),
    [
        ("higher in every of 6, power to confirm, n = 3", 80),  # 7 with Bonferroni's correction
        ("spread of 6, power to refute, n = 3, one noisy", 80),  # 23 with one variance for all
        ("recommendation of 5, power to confirm, n = 3, one noisy", 35),  # 4 with one for all
        ("recommendation of 10, power to confirm, n = 3, one noisy", 20),  # 5
    ],
)
def test_what_is_true_is_found(name: str, power: float) -> None:
    """A noisy entry does not hide what the quiet ones show."""
    assert measure(*CASES[name], 150) >= power


LOOKS = [name for name in ERRORS if CASES[name][0].subject in SEQUENTIAL]


@pytest.mark.parametrize("name", slow_except(LOOKS, ["higher, false confirmations, n = 3"]))
def test_adding_seeds_until_it_is_decided_hardly_errs_more(name: str) -> None:
    """It would be 8 % for `higher`, if every look had the full level."""
    scenario, planned = CASES[name]
    errors = measure_sequential(scenario, planned, 200)
    assert errors <= 1.2 * most(scenario, 200)


def test_the_page_has_the_rates_that_were_simulated_last() -> None:
    assert table(read(BEFORE), read(AFTER)) in PAGE.read_text()
