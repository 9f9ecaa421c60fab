"""Chance that seeds confirm a claim whose means are known; the judge itself is the reference."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from scipy.stats import chi2

from normbench.config.files import CLAIMS, TABLES, load, names
from normbench.report import statistics
from normbench.report.claims import Claim, claim_comparisons, claims
from normbench.report.pivot import tables
from normbench.report.planned_seeds import UNPLANNED
from normbench.report.power import (
    Samples,
    chance_to_confirm,
    confirms,
    printed_means,
    seeds_to_confirm,
    smallest_difference,
)
from normbench.report.table_spec import Position, TableSpec, spec
from normbench.report.verdicts import judge
from support.claims import SPEC, TABLE, claim
from support.rows import run
from support.slow import slow_except
from support.verdict_rates import AFTER, SWEEPS, read, sample_variance
from support.verdict_scenarios import EVERY_NETWORK, POWER, Values, judge_values

BN: Position = (("BN",), ("4",))
GN: Position = (("GN",), ("4",))
SPECS = {name: spec(name, load(TABLES / f"{name}.yaml")) for name in names(TABLES)}

ABOVE = claim(higher=[["GN", 4], ["BN", 4]])


@cache
def paper_claims() -> dict[str, tuple[Claim, TableSpec]]:
    """Return the claims of the papers of which the first table prints all numbers."""
    parsed = [
        each
        for file in names(CLAIMS)
        for each in claims(file, load(CLAIMS / f"{file}.yaml"), SPECS)
    ]
    firsts = {each.name: (each, SPECS[each.tables[0]]) for each in parsed}
    return {
        name: (each, known)
        for name, (each, known) in firsts.items()
        if entries(each, known) <= printed_means(each, known).keys()
        and known.name != "four_things_fig3"  # its gains are the best of several, as below
    }


def entries(claim: Claim, known: TableSpec) -> set[Position]:
    return {pick for each in claim_comparisons(claim, known) for pick in each}


# The judge


#: One of each kind of claim, and a mean over columns.
EVERYDAY = [
    "gn_pn_above_gn", "gn_pn_matches_bn", "pn_nothing_for_bn", "regularization_for_gn_pn",
    "gn_uniform", "sn_rises", "initializations_alike", "regularization_hardly_helps_bn",
]  # fmt: skip


@pytest.mark.parametrize("name", slow_except([*paper_claims()], EVERYDAY))
def test_a_claim_is_confirmed_where_the_judge_confirms_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "variance", sample_variance)  # 30 times as fast
    claim, known = paper_claims()[name]
    means = printed_means(claim, known)
    picks = sorted(entries(claim, known))
    rng = np.random.default_rng(0)
    judged, confirmed = [], []
    for deviation in np.geomspace(0.001, 10, 20):  # confirmed at the one end, not at the other
        spreads = deviation * rng.uniform(0.5, 2, (len(picks), 1))
        values = np.array([[means[pick]] for pick in picks]) + spreads * rng.normal(
            size=(len(picks), 5)
        )
        judged.append(judge_values(claim, known, picks, values, SWEEPS[5]) == "confirmed")
        confirmed += confirms(claim, known, samples(picks, values)).tolist()
    assert confirmed == judged
    assert {*judged} == {True, False}


def samples(picks: Sequence[Position], values: Values) -> Samples:
    """Return mean and variance of `values` (entry, seed), as one repetition."""
    lines = [*zip(picks, values, strict=True)]
    return Samples(
        {pick: line.mean(keepdims=True) for pick, line in lines},
        {pick: line.var(ddof=1, keepdims=True) for pick, line in lines},
        values.shape[1],
    )


@pytest.mark.parametrize("best", [74.0, 75.0, 76.0, 77.0, 79.0])
def test_the_best_of_several_needs_a_wider_interval(best: float) -> None:
    rows = {"A": {"norm": "bn"}, "B": {"norm": "gn"}, "C": {"norm": "ln"}}
    known = spec(
        "made", TABLE | {"rows": {**rows, "gain": {"minus": [["A", "B"], "C"]}}, "published": {}}
    )
    judged = claim(known, higher=[["gain", 4]])
    values = {
        "bn": [best, best + 1, best - 0.4],
        "gn": [60.0, 60.1, 60.2],
        "ln": [73.0, 72.1, 73.2],
    }
    runs = [run(n, 4, seed, v) for n, each in values.items() for seed, v in enumerate(each)]
    (table,) = tables([known], runs, None)
    gains = np.array([[a - c for a, c in zip(values["bn"], values["ln"], strict=True)]])
    (confirmed,) = confirms(judged, known, samples([(("gain",), ("4",))], gains))
    assert confirmed == (judge(judged, table).outcome == "confirmed")


# Chances


@pytest.mark.parametrize("name", EVERY_NETWORK)
def test_chances_are_those_of_the_simulated_judge(name: str) -> None:
    each, known = paper_claims()[name]
    printed = SPECS[EVERY_NETWORK[name]].published
    spreads = {pick: max(0.03, number.error or 0.0) for pick, number in printed.items()}
    simulated = float(read(AFTER)[f"{name}, true as printed", POWER, "once", 3, "equal"])
    chance = chance_to_confirm(each, known, printed_means(each, known), spreads, 3)
    assert chance is not None
    assert abs(100 * chance - simulated) < 4  # three standard errors of two simulations


@pytest.mark.parametrize("seeds", [3, 5, 10, 40])
@pytest.mark.parametrize("bound", [1.2, 2.0])
def test_the_chance_of_a_deviation_is_that_of_chi_square(bound: float, seeds: int) -> None:
    about = claim(deviation=[["GN", 64]], bound=bound)
    pick = (("GN",), ("64",))
    exact = chi2.cdf(bound**2 * chi2.ppf(0.025, seeds - 1), seeds - 1)
    chance = chance_to_confirm(about, SPEC, {pick: 74.1}, {pick: 1.0}, seeds)
    assert chance == pytest.approx(exact, abs=0.035)


@pytest.mark.parametrize("seeds", [2, 3, 10])
@pytest.mark.parametrize("spread", [0.1, 2.0])
def test_the_smallest_difference_is_shown_in_four_of_five_cases(seeds: int, spread: float) -> None:
    spreads = {GN: 0.3, BN: spread}
    difference = smallest_difference(ABOVE, SPEC, spreads, seeds)
    assert difference is not None
    chance = chance_to_confirm(ABOVE, SPEC, {GN: difference, BN: 0.0}, spreads, seeds)
    assert chance == pytest.approx(0.8, abs=0.001)


def test_the_smallest_difference_is_that_of_the_column_that_varies_most() -> None:
    about = claim(higher=[["GN", "*"], ["BN", "*"]])
    spreads = {**dict.fromkeys(entries(about, SPEC), 0.1), BN: 2.0}
    of_one = smallest_difference(ABOVE, SPEC, spreads, 5)
    assert smallest_difference(about, SPEC, spreads, 5) == of_one


def test_seeds_that_were_not_planned_show_less() -> None:
    means, spreads = {GN: 1.0, BN: 0.0}, {GN: 0.3, BN: 0.3}
    planned = chance_to_confirm(ABOVE, SPEC, means, spreads, 5)
    unplanned = chance_to_confirm(ABOVE, SPEC, means, spreads, 5, UNPLANNED)
    assert planned is not None
    assert unplanned is not None
    assert unplanned < planned - 0.2
    narrow, wide = (smallest_difference(ABOVE, SPEC, spreads, 5, c) for c in (0.95, UNPLANNED))
    assert narrow is not None
    assert wide is not None
    assert wide > 1.5 * narrow


@pytest.mark.parametrize("gap", [0.2, 0.5, 1.0])
def test_fewest_seeds_reach_the_power(gap: float) -> None:
    means, spreads = {GN: gap, BN: 0.0}, {GN: 0.3, BN: 0.3}
    seeds = seeds_to_confirm(ABOVE, SPEC, means, spreads)
    assert seeds is not None
    enough, fewer = (chance_to_confirm(ABOVE, SPEC, means, spreads, n) for n in (seeds, seeds - 1))
    assert enough is not None
    assert fewer is not None
    assert fewer < 0.8 <= enough


def test_two_seeds_suffice_for_a_huge_difference_and_no_number_for_none() -> None:
    spreads = {GN: 0.3, BN: 0.3}
    assert seeds_to_confirm(ABOVE, SPEC, {GN: 1000.0, BN: 0.0}, spreads) == 2
    assert seeds_to_confirm(ABOVE, SPEC, {GN: 0.01, BN: 0.0}, spreads) is None


def test_one_seed_confirms_nothing() -> None:
    spreads = {GN: 0.3, BN: 0.3}
    assert chance_to_confirm(ABOVE, SPEC, {GN: 9.0, BN: 0.0}, spreads, 1) == 0
    assert smallest_difference(ABOVE, SPEC, spreads, 1) is None


def test_comparisons_without_a_printed_number_are_left_out() -> None:
    about = claim(higher=[["GN", "*"], ["BN", "*"]])
    spreads = dict.fromkeys(entries(about, SPEC), 0.3)
    one = chance_to_confirm(about, SPEC, {GN: 0.5, BN: 0.0}, spreads, 3)
    alone = chance_to_confirm(ABOVE, SPEC, {GN: 0.5, BN: 0.0}, spreads, 3)
    assert one == alone
    assert chance_to_confirm(about, SPEC, {}, spreads, 3) is None
    assert chance_to_confirm(about, SPEC, {GN: 0.5, BN: 0.0}, {GN: 0.3}, 3) is None


def test_a_paper_prints_the_metric_of_its_table_alone() -> None:
    pair = [["GN", 4], ["BN", 4]]
    assert printed_means(claim(higher=pair), SPEC) == {GN: 74.0, BN: 70.0}
    assert printed_means(claim(higher=pair, metric="train_top1"), SPEC) == {}
