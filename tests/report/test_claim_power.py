"""Power of sweeps: standard deviations, obstacles, texts, and what the heads of sweeps say."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from normbench.config.compose import compose
from normbench.report.build import specs
from normbench.report.claim_power import ClaimPower, find_power, pooled_deviation
from normbench.report.power import smallest_effect
from normbench.report.power_text import grid_line, power_lines
from normbench.report.table_spec import Position
from normbench.results import Row
from support.verdict_rates import AFTER, PAGE, read
from support.verdict_scenarios import EVERY_NETWORK, POWER

SPECS = {each.name: each for each in specs()}
A: Position = (("A",), ("",))
B: Position = (("B",), ("",))
UNIT = {A: 1.0, B: -1.0}
FLAT = ("sweeps=evonorm_13", "norm=evonorm_s0,evonorm_s2")


@cache
def planned(*words: str) -> list[Row]:
    """Return a row for each cell of a command line."""
    cells, settings = compose(["-m", *words])
    assert settings is not None
    return [Row(**each.description(settings.sweep), status="ok") for each in cells]


@cache
def power(*words: str) -> dict[str, ClaimPower]:
    """Return the power of a sweep without finished rows, by claim."""
    return {each.claim.name: each for each in find_power(planned(*words), [])}


def finished(rows: Sequence[Row], spread: float, seeds: int = 3) -> list[Row]:
    """Return a row for each of `seeds` seeds of each cell, with distances of `spread`."""
    return [
        replace(
            row, id=f"{row.id}{seed}", seed=seed, test_top1=70 + spread * seed,
            config=row.config | {"seed": seed},
        )
        for row in rows
        if row.seed == 0
        for seed in range(seeds)
    ]  # fmt: skip


# Standard deviations


def test_error_bars_of_a_table_are_standard_deviations() -> None:
    of_nf_2 = power("sweeps=nf_2")
    assert len(of_nf_2) == 4
    assert {each.source for each in of_nf_2.values()} == {"the paper's error bars (table 2)"}
    large, close = of_nf_2["bn_falls_with_tiny_batches"], of_nf_2["nf_unaffected_from_8_to_4"]
    assert (large.seeds, large.confidence, large.chance, large.enough) == (5, 0.95, 1.0, 5)
    # With one more than the paper's five seeds.
    assert close.chance is not None
    assert 0.7 < close.chance < 0.8
    assert (close.enough, close.obstacle) == (6, "")
    # Both entries have 0.1; the other pair has 0.1 and 0.3.
    assert close.difference == pytest.approx(smallest_effect(UNIT, {A: 0.1, B: 0.1}, 5), rel=0.1)
    wide = smallest_effect(UNIT, {A: 0.1, B: 0.3}, 5)
    assert large.difference == pytest.approx(wide, rel=0.1)


def test_error_bars_may_be_in_another_table_and_for_other_rows() -> None:
    of_sn = power("sweeps=sn_input")["input_size_over_sample_size"]
    assert (
        of_sn.source
        == "the paper's error bars (random initializations); pooled for entries without"
    )
    assert (of_sn.seeds, of_sn.chance, of_sn.difference, of_sn.enough) == (1, 0.0, None, 2)


@pytest.mark.parametrize("name", [name for name, each in SPECS.items() if each.deviations])
def test_the_table_with_deviations_is_one_of_the_same_paper(name: str) -> None:
    known = SPECS[name]
    other = SPECS[str(known.deviations)]
    assert other.paper == known.paper
    assert any(number.error is not None for number in other.published.values())
    if other.published.keys() == known.published.keys():
        pairs = [(known.published[each], other.published[each]) for each in known.published]
        # Table 8 of Proxy Norm has 78.9 where table 4 has 78.8.
        assert sum(one.value != two.value for one, two in pairs) == (name == "proxy_norm_4")


def test_a_sweep_of_other_networks_says_whose_error_bars_these_are() -> None:
    (source,) = {each.source for each in power("sweeps=nf_2_small").values()}
    assert source.startswith("the paper's error bars (table 2), of its own setting, until ")


@pytest.mark.parametrize("spread", [0.2, 2.0])
def test_finished_rows_come_before_error_bars(spread: float) -> None:
    rows = planned("sweeps=nf_2")
    powers = {each.claim.name: each for each in find_power(rows, finished(rows, spread))}
    assert {each.source for each in powers.values()} == {"finished runs"}
    close = powers["nf_unaffected_from_8_to_4"]
    shown = smallest_effect(UNIT, {A: spread, B: spread}, 5)
    assert close.difference == pytest.approx(shown, rel=0.1)


def test_an_entry_without_two_seeds_has_the_pooled_deviation_of_the_others() -> None:
    rows = planned("sweeps=nf_2")
    some = [
        row
        for norm, spread in (("bn", 0.1), ("nf", 0.7))
        for row in finished(
            [each for each in rows if each.norm == norm and each.global_batch == 8], spread
        )
    ]
    assert len(some) == 6
    close = next(
        each for each in find_power(rows, some) if each.claim.name == "bn_falls_with_tiny_batches"
    )
    shown = smallest_effect(UNIT, {A: 0.5, B: 0.5}, 5)  # 0.25 = (0.01 + 0.49) / 2
    assert close.difference == pytest.approx(shown, rel=0.1)


@pytest.mark.parametrize("change", [{"seeds": 1}, {"spread": 0.0}])
def test_rows_that_do_not_vary_tell_no_deviation(change: dict[str, Any]) -> None:
    rows = planned("sweeps=nf_2")
    done = finished(rows, **{"spread": 0.5} | change)
    assert all("error bars" in each.source for each in find_power(rows, done))


def test_rows_of_another_setting_tell_nothing() -> None:
    rows = planned("sweeps=nf_2")
    small = finished(planned("sweeps=nf_2_small"), 0.5)
    assert all("error bars" in each.source for each in find_power(rows, small))


# Obstacles


@pytest.mark.parametrize(
    ("claim", "obstacle"),
    [
        ("s0_flat", "standard deviation unknown"),
        ("s2_flat", "none: printed numbers lie at the bound"),
        ("s1_flat", "entries missing in this grid"),
    ],
)
def test_no_number_of_seeds_has_a_reason(claim: str, obstacle: str) -> None:
    of_claim = power(*FLAT)[claim]
    assert (of_claim.enough, of_claim.obstacle) == (None, obstacle)


def test_a_grid_may_lack_entries_of_a_claim() -> None:
    of_bn = power("sweeps=nf_2", "norm=bn")["nf_above_bn_with_tiny_batches"]
    assert (of_bn.seeds, of_bn.chance, of_bn.enough) == (0, None, None)
    assert of_bn.obstacle == "entries missing in this grid"


def test_intervals_are_wider_with_another_number_of_seeds_than_planned() -> None:
    of_four = power("sweeps=nf_2", "seed=range(0,4)")["nf_unaffected_from_8_to_4"]
    assert (of_four.seeds, of_four.confidence) == (4, 0.999)
    assert of_four.chance is not None
    assert of_four.chance < 0.1
    assert of_four.enough == 6  # if they are planned


@pytest.mark.parametrize(
    "words", [("norm=bn,gn", "seed=0,1"), ("sweeps=proxy_norm_6", "norm=bn", "seed=0")]
)
def test_a_grid_without_claims_has_no_power(words: tuple[str, ...]) -> None:
    assert power(*words) == {}


def test_seeds_of_a_grid_show_the_difference_that_its_rows_tell() -> None:
    rows = planned("norm=bn,gn", "batch=4", "seed=0")
    done = finished(rows[:1], 0.1) + finished(rows[1:], 0.7)
    assert pooled_deviation(rows, done) == pytest.approx(0.5)
    assert pooled_deviation(rows[1:], done) == pytest.approx(0.7)
    assert pooled_deviation(rows, done[:1]) is None
    assert pooled_deviation(planned("norm=ln", "batch=4", "seed=0"), done) is None


# Texts


def test_the_table_says_how_likely_each_claim_is_confirmed() -> None:
    text = "\n".join(power_lines([*power("sweeps=nf_2").values()], "runs"))
    assert text.startswith(
        "\nClaims of table nf_2 (NF-ResNets (Brock et al. 2021), section 5.1, table 2)"
    )
    line = next(line for line in text.splitlines() if line.startswith("nf_unaffected_from_8_to_4"))
    assert re.fullmatch(r"\S+ +5 +7\d % +0\.2\d?  6", line)
    assert (
        "  An NF-ResNet-50 is as accurate with batches of 4 images as with 8 (within 0.5)." in text
    )
    assert "Standard deviations over seeds: the paper's error bars (table 2)." in text
    assert "99.9 %" not in text
    assert "?" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_grid_of_several_settings_has_a_table_of_each() -> None:
    rows = planned("sweeps=nf_2", "norm=bn", "recipe.epochs=2,3")
    text = "\n".join(power_lines(find_power(rows, []), "runs"))
    headings = text.split("Claims of table nf_2 ")[1:]
    assert ["recipe.epochs=2" in each for each in headings] == [True, False]
    assert ["recipe.epochs=3" in each for each in headings] == [False, True]


def test_notes_say_what_limits_the_numbers() -> None:
    unplanned = "\n".join(power_lines([*power("sweeps=nf_2", "seed=range(0,4)").values()], "runs"))
    assert "99.9 %" in unplanned
    unknown = "\n".join(power_lines([*power(*FLAT).values()], "there"))
    assert "Standard deviation unknown" in unknown
    assert "runs=there" in unknown
    assert re.search(r"\ns0_flat +1 +– +–  standard deviation unknown\n", unknown)


def test_a_number_that_could_not_be_verified_is_marked() -> None:
    certain = power("sweeps=nf_2")["bn_ahead_in_short_trainings"]
    text = "\n".join(power_lines([replace(certain, unverified=True)], "runs"))
    assert re.search(r" 100 % \? ", text)
    assert "could not verify" in text


def test_a_grid_says_what_more_seeds_would_show() -> None:
    text = grid_line(1.0, 2)
    for seeds in (2, 3, 5, 10):
        shown = smallest_effect(UNIT, {A: 1.0, B: 1.0}, seeds)
        found = re.search(rf"([\d.]+)\s+with\s+{seeds}\b", text)
        assert found is not None
        assert float(found[1]) == pytest.approx(shown, rel=0.1)
    assert grid_line(1.0, 1).count(" with ") + grid_line(1.0, 1).count("\nwith ") == 3


def numbers_of_page(title: str) -> list[list[str]]:
    """Return the body of a table in docs/statistics.md."""
    _, _, text = PAGE.read_text().partition(f"<!-- {title} -->\n")
    lines = text.partition("\n\n")[0].splitlines()
    return [
        [each.strip() for each in line.strip("|").split("|")] for line in lines if ":--" not in line
    ]


@pytest.mark.parametrize(("line", "other"), [(1, 1.0), (2, 3.0)])
def test_the_page_has_the_smallest_differences(line: int, other: float) -> None:
    table = numbers_of_page("smallest differences")
    for seeds, printed in zip(table[0][1:], table[line][1:], strict=True):
        shown = smallest_effect(UNIT, {A: 1.0, B: other}, int(seeds))
        assert shown == pytest.approx(float(printed), rel=0.06)  # of 200,000 draws, here 2,000


@pytest.mark.parametrize("name", EVERY_NETWORK)
def test_the_page_has_the_chances_of_both_simulations(name: str) -> None:
    ((judged, chance),) = [
        line[1:] for line in numbers_of_page("power of claims") if line[0] == name
    ]
    assert judged == read(AFTER)[f"{name}, true as printed", POWER, "once", 3, "equal"]
    assert abs(float(judged) - float(chance)) < 4
