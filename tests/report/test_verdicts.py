"""Verdicts at their bounds: what exactly is confirmed, refuted and undecided, and by how much."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from normbench.errors import BadInput
from normbench.report import statistics
from normbench.report.claim_results import Verdict
from normbench.report.pivot import tables
from normbench.report.table_spec import spec
from normbench.report.verdicts import judge, judge_published
from normbench.results import Row
from support.claims import TABLE, claim, verdict
from support.rows import runs

#: Steps per second of equal runs have an interval of no width, so that bounds can be met exactly.
SPEED = spec("made", TABLE | {"metric": "steps_per_second", "published": {}})


def speeds(norm: str, steps_per_second: float) -> list[Row]:
    """Return three runs of batch 4, whose global batch has 32 images."""
    changes = {"images_per_second": 32 * steps_per_second, "devices": "1 x GPU"}
    return runs(norm, 4, [70.0, 70.0, 70.0], **changes)


@pytest.mark.parametrize(
    ("kind", "difference", "outcome"),
    [
        ("higher", 5.0, "refuted"),
        ("higher", 5.5, "confirmed"),
        ("not_lower", -5.0, "confirmed"),
        ("not_lower", -5.5, "refuted"),
        ("not_lower", 4.0, "confirmed"),
        ("alike", 5.0, "confirmed"),
        ("alike", -5.0, "confirmed"),
        ("alike", 5.5, "refuted"),
        ("alike", -5.5, "refuted"),
    ],
)
def test_a_bound_belongs_to_not_lower_and_alike_and_not_to_higher(
    kind: str, difference: float, outcome: str
) -> None:
    rows = [*speeds("bn", 10.0), *speeds("gn", 10.0 + difference)]
    (table,) = tables([SPEED], rows, None)
    result = judge(claim(SPEED, bound=5.0, **{kind: [["GN", 4], ["BN", 4]]}), table)
    assert result.outcome == outcome
    assert result.effect == statistics.Effect(difference, difference, difference, 3)


@pytest.mark.parametrize("kind", ["not_lower", "alike"])
@pytest.mark.parametrize(("offset", "bound"), [(-5.0, 5.0), (-1.0, 2.0)])
def test_an_interval_across_the_lower_bound_decides_nothing(
    kind: str, offset: float, bound: float
) -> None:
    rows = [
        *runs("gn", 4, [70.0 + offset, 71.0 + offset, 72.0 + offset]),
        *runs("bn", 4, [70.0, 71.0, 72.0]),
    ]
    result = verdict(rows, bound=bound, **{kind: [["GN", 4], ["BN", 4]]})
    assert result.effect is not None
    assert result.effect.low is not None
    assert result.effect.high is not None
    assert result.effect.low < -bound < result.effect.high
    assert result.outcome == "undecided"


def test_one_seed_leaves_the_difference_and_says_what_is_missing() -> None:
    rows = [*runs("gn", 4, [72.0]), *runs("bn", 4, [70.0])]
    assert verdict(rows, higher=[["GN", 4], ["BN", 4]]) == Verdict(
        "undecided",
        statistics.Effect(2.0, None, None, 1),
        "one seed gives no interval; train more, as seed=0,1,2",
    )


def test_seeds_of_one_accuracy_leave_the_difference_and_decide_nothing() -> None:
    rows = [*runs("gn", 4, [72.0, 72.0]), *runs("bn", 4, [70.0, 70.0])]
    assert verdict(rows, higher=[["GN", 4], ["BN", 4]]) == Verdict(
        "undecided",
        statistics.Effect(2.0, 2.0, 2.0, 2),
        "all seeds gave the same number",
    )


@pytest.mark.parametrize(
    ("kind", "wide", "narrow"),
    [("higher", 3.0, 2.0), ("not_lower", 3.0, 2.0), ("alike", 1.0, 2.0), ("alike", -1.0, -2.0)],
)
def test_the_weakest_of_several_is_the_one_whose_interval_comes_nearest(
    kind: str, wide: float, narrow: float
) -> None:
    """Not the one whose difference does."""
    noise = [-0.9, 0.0, 0.9]
    rows = [
        *runs("bn", 4, [70.0, 70.01, 70.02]),
        *runs("bn", 16, [70.0, 70.01, 70.02]),
        *runs("gn", 4, [70.01 + wide + each for each in noise]),
        *runs("gn", 16, [70.0 + narrow, 70.01 + narrow, 70.02 + narrow]),
    ]
    two = spec("made", TABLE | {"columns": {4: {"batch": 4}, 16: {"batch": 16}}, "published": {}})
    (table,) = tables([two], rows, None)
    result = judge(claim(two, bound=9.0, **{kind: [["GN", "*"], ["BN", "*"]]}), table)
    assert result.effect is not None
    assert result.effect.value == pytest.approx(wide)


def test_the_deviation_that_refutes_a_claim_about_several_has_an_interval_for_all_of_them() -> None:
    rows = [*runs("bn", 4, [70.0, 71.0, 74.0]), *runs("bn", 16, [70.0, 71.0, 72.0])]
    rows += runs("bn", 64, [70.0, 71.0, 72.0])
    result = verdict(rows, deviation=[["BN", "*"]], bound=0.1)
    assert result.effect == statistics.std_interval([70.0, 71.0, 74.0], 1 - 0.05 / 3)
    result = verdict(rows, deviation=[["BN", "*"]], bound=50.0)
    assert result.outcome == "confirmed"
    assert result.effect == statistics.std_interval([70.0, 71.0, 74.0])


def test_the_spread_of_the_best_of_several_has_an_interval_for_all_of_them() -> None:
    others = ["gn", "ln", "frn"]
    lines: dict[str, Any] = {"BN": {"norm": "bn"}} | {name: {"norm": name} for name in others}
    lines["gain"] = {"minus": [others, "BN"]}
    known = spec("made", TABLE | {"rows": lines, "published": {}})
    rows = [row for b in (4, 16, 64) for row in runs("bn", b, [70.0, 70.1, 70.3])]
    for shift, name in enumerate(others):
        for place, batch in enumerate((4, 16, 64)):
            base = 71.0 + shift + 0.1 * place
            rows += runs(name, batch, [base, base + 0.2, base + 0.5], batch_independent=False)
    (table,) = tables([known], rows, None)
    samples = [list(cell.values.values()) for cell in table.lines["gain",]]
    result = judge(claim(known, spread=[["gain", "*"]], bound=50.0), table)
    assert result.effect == statistics.spread(samples, 1 - 0.05 / 3)


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_the_best_of_several_is_as_good_as_another_only_if_all_are(better: str) -> None:
    """The one that varies most may be the best of other seeds."""
    sign = 1 if better == "higher" else -1
    lines: dict[str, Any] = {"BN": {"norm": "bn"}, "GN": {"norm": "gn"}, "LN": {"norm": "ln"}}
    lines["gain"] = {"minus": [["GN", "LN"], "BN"]}
    metric = "test_top1" if better == "higher" else "test_loss"
    known = spec("made", TABLE | {"rows": lines, "published": {}, "metric": metric})
    bn, gn, ln = [70.0, 70.0, 70.0], [70.2, 70.21, 70.22], [67.0, 71.0, 72.0]
    if better == "lower":
        bn, gn, ln = [[140 - each for each in values] for values in (bn, gn, ln)]
    rows = [*runs("bn", 4, bn), *runs("gn", 4, gn), *runs("ln", 4, ln)]
    rows = [replace(row, test_loss=row.test_top1) for row in rows]
    (table,) = tables([known], rows, None)
    result = judge(claim(known, alike=[["gain", 4]], bound=0.5), table).effect
    assert result is not None
    best = statistics.welch_contrast([(1.0, [a - b for a, b in zip(gn, bn, strict=True)])], 0.975)
    rival = statistics.welch_contrast([(1.0, [a - b for a, b in zip(ln, bn, strict=True)])])
    ends = (best.low, rival.high) if sign > 0 else (rival.low, best.high)
    assert (result.value, result.low, result.high) == (best.value, *ends)


@pytest.mark.parametrize("lost", ["untrained", "diverged"])
def test_an_entry_without_runs_may_be_the_best(lost: str) -> None:
    """So nothing says that the best is not better, but what is above a bound stays above."""
    lines: dict[str, Any] = {"BN": {"norm": "bn"}, "GN": {"norm": "gn"}, "LN": {"norm": "ln"}}
    lines["gain"] = {"minus": [["GN", "LN"], "BN"]}
    known = spec("made", TABLE | {"rows": lines, "published": {}})
    rows = [*runs("bn", 4, [70.0, 70.1, 70.2]), *runs("gn", 4, [70.2, 70.3, 70.4])]
    if lost == "diverged":
        first, *others = runs("ln", 4, [69.0, 69.1, 69.2])
        rows += [replace(first, status="diverged"), *others]
    (table,) = tables([known], rows, None)
    outcomes = {
        kind: judge(claim(known, bound=bound, **{kind: [["gain", 4]]}), table)
        for kind, bound in (("alike", 1.0), ("higher", 0.1))
    }
    effect = outcomes["alike"].effect
    assert effect is not None
    assert effect.text(1).endswith("+∞]")
    assert outcomes["alike"].outcome == "undecided"
    assert outcomes["higher"].outcome == "confirmed"


# The paper's own numbers


def published(numbers: dict[str, Sequence[Any]], **entry: Any) -> tuple[bool, float, bool] | None:
    """Return whether the claim holds, its effect, and if a number is unverified."""
    known = spec("made", TABLE | {"published": numbers})
    result = judge_published(claim(known, **entry), known)
    return None if result is None else (result.holds, result.effect, result.unverified)


NUMBERS: dict[str, Sequence[Any]] = {"BN": [70.0, 75.0, 76.0], "GN": [74.0, 74.2, "74.1 ± 0.3"]}


@pytest.mark.parametrize(
    ("entry", "holds", "effect"),
    [
        ({"higher": [["GN", 4], ["BN", 4]], "bound": 4.0}, False, 4.0),
        ({"higher": [["GN", 4], ["BN", 4]], "bound": 3.9}, True, 4.0),
        ({"higher": [["GN", 64], ["BN", 64]], "bound": 4.0}, False, -1.9),
        ({"not_lower": [["BN", 4], ["GN", 4]], "bound": 4.0}, True, -4.0),
        ({"not_lower": [["BN", 4], ["GN", 4]], "bound": 3.9}, False, -4.0),
        ({"alike": [["BN", "*"], ["GN", "*"]], "bound": 4.0}, True, -4.0),
        ({"alike": [["GN", "*"], ["BN", "*"]], "bound": 3.9}, False, 4.0),
        ({"deviation": [["GN", 64]], "bound": 0.3}, True, 0.3),
    ],
)
def test_a_papers_numbers_meet_a_bound_exactly(
    entry: dict[str, Any], holds: bool, effect: float
) -> None:
    assert published(NUMBERS, **entry) == (holds, effect, False)


def test_a_number_that_a_paper_leaves_out_leaves_the_others() -> None:
    numbers = NUMBERS | {"BN": [None, 75.0, 76.0]}
    assert published(numbers, higher=[["BN", "*"], ["GN", "*"]]) == (True, 0.8, False)
    assert published(numbers, higher=[["BN", 4], ["GN", 4]]) is None


def test_a_deviation_that_a_paper_does_not_print_is_not_judged() -> None:
    assert published(NUMBERS, deviation=[["BN", 4]], bound=1.0) is None


def test_one_unverified_number_makes_the_judgement_unverified() -> None:
    numbers = NUMBERS | {"BN": ["70.0 unverified", 75.0, 76.0]}
    assert published(numbers, alike=[["BN", "*"], ["GN", "*"]], bound=9.0) == (True, -4.0, True)


def test_a_trend_needs_entries_with_images_per_worker() -> None:
    columns = {"small": {"batch": 4}, "wide": {"model": "resnet14"}}
    known = spec("made", TABLE | {"columns": columns, "published": {}})
    with pytest.raises(BadInput, match=r"it: BN, wide has no images per worker"):
        claim(known, rises=[["BN", "*"]])


def test_a_trend_has_no_average() -> None:
    with pytest.raises(BadInput, match="rises is about every step; leave out average"):
        claim(spec("made", TABLE | {"published": {}}), rises=[["BN", "*"]], average=True)


def test_a_trend_needs_entries_with_different_images_per_worker() -> None:
    known = spec("made", TABLE | {"published": {}})
    with pytest.raises(BadInput, match="rises compares entries with different images per worker"):
        claim(known, rises=[["*", 4]])
