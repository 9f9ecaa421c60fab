"""Seeds that would decide a verdict: how many, where, and with what chance."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from normbench.execution.additions import Additions, bring_to, merge, subtract, with_additions
from normbench.execution.forecast import MOST_SEEDS, Prospect
from normbench.report.pivot import tables
from normbench.report.planned_seeds import UNPLANNED, configuration, is_planned, next_planned
from normbench.report.power import POWER
from normbench.report.statistics import welch_contrast
from normbench.report.table import Entry
from normbench.report.table_spec import TableSpec, spec
from normbench.report.verdicts import judge_claims
from normbench.results import Row
from support.claims import SPEC, TABLE, claim
from support.rows import runs

NOISE = (-0.5, 0.5, 0.0, -0.2, 0.2, -0.4, 0.4, 0.1, -0.1)


def rows_of(norm: str, mean: float, seeds: int, spread: float = 1.0, **changes: Any) -> list[Row]:
    """Return runs of batch 4 around a mean."""
    return runs(norm, 4, [mean + spread * each for each in NOISE[:seeds]], **changes)


def prospect(rows: Sequence[Row], known: TableSpec = SPEC, **entry: Any) -> Prospect:
    """Return the prospect of a claim about the small table."""
    (result,) = judge_claims([claim(known, **entry)], {"made": known}, tables([known], rows))
    return Prospect(result)


def undecided(seeds: int = 3, difference: float = 0.8, **changes: Any) -> Prospect:
    rows = [*rows_of("gn", 70.0 + difference, seeds, **changes), *rows_of("bn", 70.0, seeds)]
    return prospect(rows, higher=[["GN", 4], ["BN", 4]])


def totals(additions: Additions) -> dict[str, int]:
    """Return the number of seeds of each normalizer, with those that are added."""
    return {each.row.norm: len(each.trained | each.seeds) for each in additions.values()}


def one_hour(_row: Row) -> float:
    return 1.0


# The rule of planned seeds


def entry(typed: Sequence[int | None], sweep: str = "default") -> Entry:
    rows = rows_of("bn", 70.0, len(typed), sweep=sweep)
    rows = [replace(row, command_seeds=each) for row, each in zip(rows, typed, strict=True)]
    (table,) = tables([SPEC], rows)
    return next(each for each in table.entries if each.runs)


@pytest.mark.parametrize(
    ("typed", "sweep", "expected"),
    [
        ([1], "default", (3, 1)), ([1, 1], "default", (3, 1)), ([None], "default", (3, 1)),
        ([None, None, None], "default", None), ([1, 1, 1], "default", None),
        ([5, 5, 5], "default", (5, 5)), ([1, 4, 4], "default", (4, 4)),
        ([3, 3, 3], "default", None), ([3, 3, 3, 8], "default", None),
        ([None, 5], "default", None), ([1, 1], "evonorm_9_small", (3, 3)),
        ([3] * 3, "evonorm_9_small", None), ([3] * 3, "four_things_decay", None),
        ([10] * 3, "four_things_decay", (10, 10)),
        ([3] * 4, "evonorm_9_small", None),
    ],
)  # fmt: skip
def test_the_next_planned_number_completes_the_plan_of_file_or_command(
    typed: list[int | None], sweep: str, expected: tuple[int, int] | None
) -> None:
    assert next_planned(entry(typed, sweep)) == expected
    if expected is not None:
        number, of_command = expected
        (addition,) = bring_to(entry(typed, sweep), number, one_by_one=of_command == 1).values()
        assert addition.command_seeds == of_command
        completed, new = with_additions(
            entry(typed, sweep), {configuration(addition.row): addition}
        )
        assert len({*completed.values, *new}) == number
        assert is_planned(number, completed.source_runs)


@pytest.mark.parametrize(
    ("typed", "sweep", "planned"),
    [
        ([3] * 3, "default", set()), ([1, 1, 1], "default", set()), ([1, 1], "default", {3}),
        ([None] * 3, "default", set()), ([None, 5], "default", set()), ([5] * 3, "default", {5}),
        ([3, 3, 3, 8], "default", set()), ([3] * 3, "evonorm_9_small", set()),
        ([7] * 3, "four_things_decay", {10}),
    ],
)  # fmt: skip
def test_other_numbers_of_added_seeds_never_pass_as_planned(
    typed: list[int | None], sweep: str, planned: set[int]
) -> None:
    before = entry(typed, sweep)
    passed = set()
    for number in range(len(typed) + 1, 13):
        plan = next_planned(before)
        one_by_one = plan is not None and plan == (number, 1)
        extended, new = with_additions(before, bring_to(before, number, one_by_one=one_by_one))
        assert len({*before.values, *new}) == number
        if is_planned(number, extended.source_runs):
            passed.add(number)
    assert passed == planned


# What is proposed


def test_the_planned_number_comes_first() -> None:
    additions = undecided(2).propose(one_hour)
    assert totals(additions) == {"gn": 3, "bn": 3}
    assert {each.seeds for each in additions.values()} == {frozenset({2})}


def test_only_entries_below_the_plan_are_completed() -> None:
    rows = [*rows_of("gn", 70.3, 3), *rows_of("bn", 70.0, 2)]
    additions = prospect(rows, higher=[["GN", 4], ["BN", 4]]).propose(one_hour)
    assert totals(additions) == {"bn": 3}


def test_beyond_the_plan_the_number_has_about_doubled() -> None:
    """One or two seeds more would widen the interval."""
    few = undecided()
    additions = few.propose(one_hour)
    assert min(totals(additions).values()) >= 6
    for number in (4, 5):
        more = merge({}, {})
        for each in few.entries.values():
            more = merge(more, bring_to(each, number))
        forecast = few.forecast(more)
        assert forecast.half_width is not None
        assert few.half_width is not None
        if number == 4:
            assert forecast.half_width > few.half_width
        assert (forecast.chance or 0.0) < POWER


def test_the_proposed_number_decides_in_four_of_five_cases_and_fewer_do_not() -> None:
    some = undecided()
    additions = some.propose(one_hour)
    assert (some.forecast(additions).chance or 0.0) >= POWER
    fewer = {
        name: replace(each, seeds=frozenset(sorted(each.seeds)[:-1]))
        for name, each in additions.items()
    }
    assert (some.forecast(fewer).chance or 0.0) < POWER


@pytest.mark.parametrize(("seeds", "chance"), [(8, 0.25), (11, 0.5), (25, 0.99)])
def test_a_chance_is_that_of_the_judges_interval(seeds: int, chance: float) -> None:
    """Seeds that are there stay, and the others are drawn around their mean."""
    some = undecided()
    additions: Additions = {}
    for each in some.entries.values():
        additions = merge(additions, bring_to(each, seeds))
    generator = Random(5)
    decided = 0
    for _ in range(1000):
        samples = []
        for mean in (70.8, 70.0):
            new = [generator.gauss(mean, 0.5) for _ in range(seeds - 3)]
            samples.append([*(mean + each for each in NOISE[:3]), *new])
        effect = welch_contrast([(1.0, samples[0]), (-1.0, samples[1])], UNPLANNED)
        assert effect.low is not None
        assert effect.high is not None
        decided += effect.low > 0 or effect.high < 0
    # Standard errors of at most 0.016 and 0.035.
    assert decided / 1000 == pytest.approx(chance, abs=0.06)
    assert some.forecast(additions).chance == pytest.approx(decided / 1000, abs=0.1)


def test_a_noisy_entry_gets_more_seeds_and_a_costly_one_fewer() -> None:
    rows = [*rows_of("gn", 73.0, 3, spread=4.0), *rows_of("bn", 70.0, 3)]
    noisy = totals(prospect(rows, higher=[["GN", 4], ["BN", 4]]).propose(one_hour))
    assert noisy["gn"] > 2 * noisy.get("bn", 3)
    equal = totals(undecided().propose(one_hour))
    costly = totals(undecided().propose(lambda row: 4.0 if row.norm == "gn" else 1.0))
    assert equal["gn"] == equal["bn"]
    assert costly.get("gn", 3) < equal["gn"] <= costly["bn"]


def test_what_fifty_seeds_would_not_decide_is_not_proposed() -> None:
    assert undecided(difference=0.01).propose(one_hour) == {}
    widest = undecided(difference=0.01)
    additions: Additions = {}
    for each in widest.entries.values():
        additions = merge(additions, bring_to(each, MOST_SEEDS))
    assert (widest.forecast(additions).chance or 0.0) < POWER


def test_only_undecided_comparisons_get_seeds() -> None:
    rows = [
        *rows_of("gn", 70.8, 3), *rows_of("bn", 70.0, 3),
        *(row for norm, mean in (("gn", 80.0), ("bn", 70.0)) for batch in (16, 64)
          for row in runs(norm, batch, [mean + each for each in NOISE[:3]])),
    ]  # fmt: skip
    additions = prospect(rows, higher=[["GN", "*"], ["BN", "*"]]).propose(one_hour)
    assert {each.row.batch for each in additions.values()} == {4}


def test_a_single_seed_has_the_deviation_of_the_other_entries() -> None:
    rows = [*rows_of("gn", 70.3, 3), *rows_of("bn", 70.0, 1)]
    some = prospect(rows, higher=[["GN", 4], ["BN", 4]])
    assert some.forecast(some.propose(one_hour)).chance is not None
    assert len({*some.deviations.values()}) == 1


def test_without_a_second_seed_anywhere_the_chance_is_unknown() -> None:
    some = undecided(1)
    forecast = some.forecast(some.propose(one_hour))
    assert forecast.chance is None
    assert forecast.half_width is None


# Other verdicts


def test_a_decided_verdict_may_be_lost_by_seeds_beyond_the_plan() -> None:
    decided = undecided(difference=1.6)
    assert decided.decided
    assert decided.forecast({}).chance == 1.0
    more = bring_to(next(iter(decided.entries.values())), 4)
    assert (decided.forecast(more).chance or 0.0) < 0.5


def test_seeds_of_other_runs_change_nothing() -> None:
    some = undecided()
    other = bring_to(entry([3, 3, 3], "nf_1"), 9)
    (key,) = other
    assert some.forecast({"other": other[key]}).chance == 0.0


MINUS = spec(
    "made",
    TABLE
    | {
        "rows": {"BN": {"norm": "bn"}, "GN": {"norm": "gn"}, "gain": {"minus": ["GN", "BN"]}},
        "published": {},
    },
)


def test_a_difference_gets_the_seeds_that_either_of_its_entries_lacks() -> None:
    rows = [*rows_of("gn", 70.5, 3), *runs("bn", 4, [69.0, 71.0])]
    additions = prospect(rows, MINUS, higher=[["gain", 4]]).propose(one_hour)
    assert totals(additions) == {"bn": 3}
    rows = [*rows_of("gn", 71.5, 3), *runs("bn", 4, [69.0, 71.0, 70.5])]
    some = prospect(rows, MINUS, higher=[["gain", 4]])
    more = totals(some.propose(one_hour))
    assert more["gn"] == more["bn"] > 4


# What is not proposed


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([*runs("gn", 4, [70.0, None, 71.0]), *runs("bn", 4, [70.0, 71.0])], "without a number"),
        ([*runs("gn", 4, [70.0, 70.0]), *runs("bn", 4, [70.5, 70.5])], "the same number"),
    ],
)
def test_seeds_are_not_proposed_where_they_would_not_decide(rows: list[Row], reason: str) -> None:
    assert reason in prospect(rows, higher=[["GN", 4], ["BN", 4]]).obstacle


def test_speeds_are_not_measured_by_more_seeds() -> None:
    known = spec("made", TABLE | {"metric": "steps_per_second", "published": {}})
    rows = [
        replace(row, images_per_second=100.0 + row.seed, devices="1 x GPU")
        for row in [*rows_of("gn", 70.0, 3), *rows_of("bn", 70.0, 3)]
    ]
    assert "speed" in prospect(rows, known, higher=[["GN", 4], ["BN", 4]]).obstacle


def test_runs_that_begin_with_others_need_those_of_further_seeds() -> None:
    rows = [
        replace(row, config={**row.config, "init_from": "0123456789ab@1"})
        for row in [*rows_of("gn", 70.5, 3), *rows_of("bn", 70.0, 3)]
    ]
    assert "begin with the networks" in prospect(rows, higher=[["GN", 4], ["BN", 4]]).obstacle


def test_seeds_of_an_earlier_step_are_not_added_again() -> None:
    before = bring_to(entry([3, 3, 3]), 6)
    after = merge(before, bring_to(entry([3, 3, 3]), 9))
    (rest,) = subtract(after, before).values()
    assert rest.seeds == {6, 7, 8}
    assert len(rest.trained) == 6
    assert rest.command_seeds == 9
    assert subtract(after, after) == {}
