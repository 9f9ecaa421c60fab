"""Claims before rows: which verdict, by which interval; and before the papers' own numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from scipy import stats

from normbench.config.files import CLAIMS, ROOT, load, names
from normbench.errors import BadInput
from normbench.report import build, exports
from normbench.report.claim_results import Verdict, count_verdicts, expect_by_chance
from normbench.report.claims import Claim, claims
from normbench.report.pivot import tables
from normbench.report.statistics import std_interval, welch_contrast
from normbench.report.table_spec import spec
from normbench.report.verdicts import judge, judge_claims, judge_published
from normbench.results import Row
from support.claims import SPEC, TABLE, claim, verdict
from support.rows import FAR, runs

NEAR = [*runs("bn", 4, [79.0, 82.0, 80.0]), *runs("bn", 64, [80.0, 81.0, 80.4])]
FALLS = {"higher": [["BN", 64], ["BN", 4]]}


@pytest.mark.parametrize(
    ("rows", "entry", "word"),
    [
        (FAR, FALLS, "confirmed"),
        (FAR, {"higher": [["BN", 4], ["BN", 64]]}, "refuted"),
        (NEAR, FALLS, "undecided"),
        (FAR, FALLS | {"bound": 15.0}, "refuted"),
        (FAR, FALLS | {"bound": 9.7}, "undecided"),
        (FAR, {"not_lower": [["BN", 64], ["BN", 4]]}, "confirmed"),
        (FAR, {"not_lower": [["BN", 4], ["BN", 64]], "bound": 12.0}, "confirmed"),
        (FAR, {"not_lower": [["BN", 4], ["BN", 64]], "bound": 5.0}, "refuted"),
        (NEAR, {"alike": [["BN", 4], ["BN", 64]], "bound": 6.0}, "confirmed"),
        (NEAR, {"alike": [["BN", 4], ["BN", 64]], "bound": 1.0}, "undecided"),
        (FAR, {"alike": [["BN", 4], ["BN", 64]], "bound": 1.0}, "refuted"),
        (FAR, {"rises": [["BN", 4], ["BN", 64]]}, "confirmed"),
        (FAR, {"falls": [["BN", 4], ["BN", 64]]}, "refuted"),
        (FAR, {"spread": [["BN", 4], ["BN", 64]], "bound": 20.0}, "confirmed"),
        (FAR, {"spread": [["BN", 4], ["BN", 64]], "bound": 2.0}, "refuted"),
        (NEAR, {"spread": [["BN", 4], ["BN", 64]], "bound": 0.2}, "undecided"),
        (NEAR, {"deviation": [["BN", 64]], "bound": 5.0}, "confirmed"),
        (NEAR, {"deviation": [["BN", 64]], "bound": 0.1}, "refuted"),
        (NEAR, {"deviation": [["BN", 64]], "bound": 0.5}, "undecided"),
    ],
)
def test_the_verdict_follows_from_the_interval(
    rows: list[Row], entry: Mapping[str, Any], word: str
) -> None:
    assert verdict(rows, **entry).outcome == word


def test_a_difference_has_welchs_interval() -> None:
    """As SciPy computes it for two samples."""
    first, second = [80.0, 80.2, 80.9], [70.0, 70.5, 73.0]
    result = verdict([*runs("bn", 64, first), *runs("bn", 4, second)], **FALLS).effect
    assert result is not None
    test = stats.ttest_ind(first, second, equal_var=False)
    low, high = test.confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((low, high))
    assert result.value == pytest.approx(fmean(first) - fmean(second))
    assert result.seeds == 3


def test_the_interval_of_a_difference_of_differences_covers_as_often_as_it_says() -> None:
    """Of 400 draws of four samples of 3 with the true effect 0 about 95 % must have it inside."""
    import numpy as np

    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        parts = [
            (w, rng.normal(0, s, 3).tolist())
            for w, s in zip((1, -1, -1, 1), (1, 2, 1, 0.5), strict=True)
        ]
        result = welch_contrast(parts)
        assert result.low is not None
        assert result.high is not None
        inside += result.low <= 0 <= result.high
    assert 0.92 <= inside / 400 <= 0.985


EVERY = {"higher": [["BN", "*"], ["GN", "*"]]}


def columns(norm: str, *middles: float) -> list[Row]:
    """Three runs with each number of images, around a mean of its own."""
    return [
        row
        for batch, middle in zip((4, 16, 64), middles, strict=True)
        for row in runs(norm, batch, [middle - 0.1, middle, middle + 0.1])
    ]


def interval(result: Verdict) -> tuple[float, float]:
    assert result.effect is not None
    assert result.effect.low is not None
    assert result.effect.high is not None
    return result.effect.low, result.effect.high


def test_every_column_is_confirmed_if_each_alone_is() -> None:
    """An intersection-union test: the interval of the weakest is the one that it has alone."""
    rows = [*columns("bn", 80.0, 71.0, 80.0), *columns("gn", 70.0, 70.0, 70.0)]
    result = verdict(rows, **EVERY)
    assert result.outcome == "confirmed"
    assert result == verdict(rows, higher=[["BN", 16], ["GN", 16]])


def test_every_column_is_refuted_by_an_interval_for_all_of_them() -> None:
    """Any of the three may be the one that noise moves, so 1.7 % are left for each."""
    rows = [*columns("bn", 80.0, 69.0, 80.0), *columns("gn", 70.0, 70.0, 70.0)]
    result = verdict(rows, **EVERY)
    assert result.outcome == "refuted"
    parts = [(1.0, [68.9, 69.0, 69.1]), (-1.0, [69.9, 70.0, 70.1])]
    expected = welch_contrast(parts, 1 - 0.05 / 3)
    assert interval(result) == pytest.approx((expected.low, expected.high))


def test_what_refutes_one_column_alone_may_leave_all_undecided() -> None:
    """The interval that contains the bound is shown."""
    rows = [*columns("bn", 80.0, 69.75, 80.0), *columns("gn", 70.0, 70.0, 70.0)]
    assert verdict(rows, higher=[["BN", 16], ["GN", 16]]).outcome == "refuted"
    result = verdict(rows, **EVERY)
    assert result.outcome == "undecided"
    low, high = interval(result)
    assert low < 0 < high


def test_the_mean_of_columns_is_one_comparison() -> None:
    rows = [*columns("bn", 80.0, 60.0, 80.0), *columns("gn", 70.0, 70.0, 70.0)]
    average = verdict(rows, **EVERY, average=True)
    assert average.effect is not None
    assert average.effect.value == pytest.approx((10 - 10 + 10) / 3)


@pytest.mark.parametrize(
    ("rows", "entry", "word", "reason"),
    [
        (FAR, {"higher": [["BN", 16], ["BN", 4]]}, "untested", "no runs of BN, 16"),
        (
            [*runs("bn", 4, [70.0, None, 71.0]), *runs("bn", 64, [80.0, 80.1])],
            FALLS, "undecided", "BN, 4: a run ended without a number",
        ),
        ([*runs("bn", 4, [70.0]), *runs("bn", 64, [80.0])], FALLS, "undecided", "one seed"),
        (
            [*runs("bn", 4, [10.0, 10.0]), *runs("bn", 64, [10.0, 10.0])],
            FALLS, "undecided", "all seeds gave the same number",
        ),
        (
            [*runs("bn", 4, [None], status="impossible", reason="one value a channel"), *FAR[3:]],
            FALLS, "untested", "BN, 4: one value a channel",
        ),
    ],
)  # fmt: skip
def test_without_runs_enough_there_is_no_verdict(
    rows: list[Row], entry: Mapping[str, Any], word: str, reason: str
) -> None:
    result = verdict(rows, **entry)
    assert result.outcome == word
    assert reason in result.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"shared_with": "f" * 12},
        {"protocol": "fixed_global_batch", "global_batch": 128, "workers": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["spread", "rises"])
def test_that_one_computation_is_flat_says_nothing(changes: dict[str, Any], kind: str) -> None:
    rows = [each for b in (4, 16, 64) for each in runs("gn", b, [74.0, 74.1, 74.2], **changes)]
    result = verdict(rows, **{kind: [["GN", "*"]]}, bound=1.0)
    assert result.outcome == "untested"
    assert "share a computation" in result.reason
    # A claim about its height, and not its flatness, is judged.
    bn = runs("bn", 4, [70.0, 70.1, 70.2], **changes | {"shared_with": None})
    assert verdict([*rows, *bn], higher=[["GN", 4], ["BN", 4]]).outcome == "confirmed"


@pytest.mark.parametrize("kind", ["alike", "not_lower", "higher"])
def test_one_computation_is_not_compared_with_itself(kind: str) -> None:
    first = runs("gn", 4, [74.0, 74.1, 74.2])
    again = [
        replace(row, shared_with=other.id)
        for row, other in zip(runs("gn", 64, [74.0, 74.1, 74.2]), first, strict=True)
    ]
    result = verdict([*first, *again], **{kind: [["GN", 4], ["GN", 64]]}, bound=1.0)
    assert result.outcome == "untested"
    assert "share a computation" in result.reason


def test_what_is_missing_does_not_hide_a_refutation() -> None:
    every = {"higher": [["BN", "*"], ["GN", "*"]]}
    bn = [each for batch in (4, 16) for each in runs("bn", batch, [60.0, 60.1, 60.2])]
    gn = [each for batch in (16, 64) for each in runs("gn", batch, [70.0, 70.1, 70.2])]
    assert verdict([*bn, *gn], **every).outcome == "refuted"
    result = verdict([*bn, *runs("gn", 16, [50.0, 50.1, 50.2])], **every)
    assert (result.outcome, result.reason) == ("untested", "no runs of GN, 4")


def test_the_weakest_of_several_is_the_one_nearest_to_the_bound() -> None:
    alike = {"alike": [["BN", "*"], ["GN", "*"]], "bound": 0.5}
    bn = [each for b in (4, 16, 64) for each in runs("bn", b, [70.0, 70.1, 70.2])]
    gn = [
        each
        for b, off in ((4, 1.0), (16, 0.0), (64, -5.0))
        for each in runs("gn", b, [70.0 + off, 70.1 + off, 70.2 + off])
    ]
    result = verdict([*bn, *gn], **alike)
    assert result.outcome == "refuted"
    assert result.effect is not None
    assert result.effect.value == pytest.approx(5.0)


def best_gain(values: Sequence[Sequence[float]], base: Sequence[float]) -> Verdict:
    """Whether the best of several normalizers is better than bn."""
    others = ["gn", "ln", "frn", "in", "rms", "nf"][: len(values)]
    rows: dict[str, Any] = {"BN": {"norm": "bn"}} | {name: {"norm": name} for name in others}
    rows["gain"] = {"minus": [others, "BN"]}
    known = spec("made", TABLE | {"rows": rows, "published": {}})
    trained = runs("bn", 4, [*base])
    for name, own in zip(others, values, strict=True):
        trained += runs(name, 4, [*own])
    (table,) = tables([known], trained, None)
    return judge(claim(known, higher=[["gain", 4]]), table)


def test_the_best_of_several_is_confirmed_by_noise_as_rarely_as_it_should() -> None:
    """Of 300 draws in which all are alike hardly more than 2.5 % may prefer the best."""
    import numpy as np

    rng = np.random.default_rng(0)
    draws = [rng.normal(70, 1, (7, 3)).tolist() for _ in range(300)]
    words = [best_gain(own, base).outcome for base, *own in draws]
    assert words.count("confirmed") <= 0.04 * 300
    sure = best_gain([[80.0, 80.1, 80.3], [70.0, 70.1, 70.3]], [70.0, 70.2, 70.2])
    assert sure.outcome == "confirmed"


def test_a_difference_of_the_table_is_judged_over_pairs_of_seeds() -> None:
    """The interval is that of scipy's paired test, over the seeds that both entries have."""
    from scipy.stats import ttest_rel

    base, gain = [70.0, 72.0, 75.0], [70.4, 72.3, 75.8]
    result = best_gain([gain], [*base, 60.0])
    expected = ttest_rel(gain, base).confidence_interval()
    assert result.effect is not None
    assert result.effect.seeds == 3
    assert (result.effect.low, result.effect.high) == pytest.approx((expected.low, expected.high))


def test_speeds_are_compared_where_they_fit_into_the_memory() -> None:
    known = spec("made", TABLE | {"metric": "steps_per_second", "published": {}})
    trained = [
        replace(row, images_per_second=speed + row.seed)
        for norm, speed in (("gn", 320.0), ("bn", 160.0))
        for batch in (4, 16)
        for row in runs(norm, batch, [70.0, 70.0, 70.0], devices="1 x GPU")
    ]
    every = claim(known, higher=[["GN", "*"], ["BN", "*"]])
    failed = runs("bn", 64, [None, None, None], status="oom", devices="1 x GPU")
    failed += runs("gn", 64, [70.0, 70.0, 70.0], images_per_second=320.0, devices="1 x GPU")
    (table,) = tables([known], [*trained, *failed], None)
    assert judge(every, table).outcome == "confirmed"
    (alone,) = tables([known], failed, None)
    assert judge(claim(known, higher=[["GN", 64], ["BN", 64]]), alone).outcome == "untested"


def test_speeds_of_two_processors_are_two_tables() -> None:
    known = spec("made", TABLE | {"metric": "steps_per_second", "published": {}})
    first, second = ["AMD EPYC (family 25, model 1)", "AMD EPYC (family 25, model 17)"]
    rows = [
        replace(row, images_per_second=speed, devices="1 x cpu (x86_64)", cpu=cpu)
        for cpu, speed in ((first, 160.0), (second, 80.0))
        for row in runs("bn", 4, [70.0, 70.0, 70.0])
    ]
    made = tables([known], rows, None)
    assert [table.setting["devices"] for table in made] == [f"1 x {first}", f"1 x {second}"]


def test_runs_of_their_own_are_judged_on_flatness() -> None:
    rows = [each for b in (4, 16, 64) for each in runs("gn", b, [74.0, 74.1, 74.2])]
    assert verdict(rows, spread=[["GN", "*"]], bound=1.0).outcome == "confirmed"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (FALLS, (True, 6.0)),
        ({"higher": [["GN", "*"], ["BN", "*"]]}, (False, -1.9)),
        ({"not_lower": [["GN", 4], ["BN", 4]]}, (True, 4.0)),
        ({"spread": [["GN", "*"]], "bound": 0.2}, (True, 0.2)),
        ({"spread": [["GN", "*"]], "bound": 0.1}, (False, 0.2)),
        ({"deviation": [["GN", 64]], "bound": 0.4}, (True, 0.3)),
        ({"deviation": [["GN", 64]], "bound": 0.2}, (False, 0.3)),
        ({"rises": [["BN", "*"]]}, (True, 1.0)),
        ({"falls": [["GN", "*"]]}, (False, -0.2)),
        ({"more": [["BN", 64], ["BN", 4], ["GN", 64], ["GN", 4]]}, (True, 5.9)),
        ({"higher": [["GN", "*"], ["BN", "*"]], "average": True}, (True, 0.433333)),
    ],
)
def test_the_papers_numbers_are_judged_by_their_sign(
    entry: Mapping[str, Any], expected: tuple[bool, float]
) -> None:
    result = judge_published(claim(**entry), SPEC)
    assert result is not None
    assert result.holds is expected[0]
    assert abs(result.effect) == pytest.approx(abs(expected[1]))
    assert not result.unverified


@pytest.mark.parametrize(("middle", "word"), [(74.0, "confirmed"), (60.0, "refuted")])
def test_a_trend_is_one_over_all_columns(middle: float, word: str) -> None:
    """In a line through three columns the middle one would have no weight."""
    heights = {4: 70.0, 16: middle, 64: 78.0}
    rows = [
        row
        for b, height in heights.items()
        for row in runs("bn", b, [height, height + 0.1, height - 0.1])
    ]
    assert verdict(rows, rises=[["BN", "*"]]).outcome == word


def test_another_metric_than_the_tables_can_be_claimed_about() -> None:
    """The learned ratios of switchable normalization: the paper draws them, and prints none."""
    shares = {4: 0.1, 16: 0.3, 64: 0.5}
    rows = [
        replace(each, sn_ratios={"mean.bn": share + each.seed / 100})
        for batch, share in shares.items()
        for each in runs("bn", batch, [70.0, 70.0, 70.0])
    ]
    entry: dict[str, Any] = {"rises": [["BN", "*"]], "metric": "bn_ratio_mean"}
    result = verdict(rows, **entry)
    assert result.outcome == "confirmed"
    assert result.effect is not None
    assert result.effect.value == pytest.approx(0.2)  # the smaller of two equal steps
    assert judge_published(claim(**entry), SPEC) is None


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({}, "a claim needs exactly one of higher"),
        ({"higher": [["BN", 5], ["BN", 4]]}, "made has no entry BN, 5"),
        ({"higher": [["BN", 4], ["BN", 16], ["BN", 64]]}, "higher compares 1 or 2 entries"),
        ({"higher": [["BN", 4]], "tables": ["maid"]}, "did you mean made?"),
        ({"higher": [["BN", 4]], "bund": 3}, "bund is no key of a claim; did you mean bound?"),
        ({"higher": [["BN", 4]], "metric": "tset_top1"}, "did you mean test_top1?"),
        ({"higher": [["BN", "*"], ["*", "*"]]}, "* stands for different numbers of entries"),
    ],
)
def test_a_claim_about_nothing_is_refused(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        claim(**entry)
    assert says in str(caught.value)
    assert str(caught.value).startswith("reports/claims/made.yaml, it: ")


# The claims of the papers

SPECS = {each.name: each for each in build.specs()}
ALL = [
    each
    for file in names(CLAIMS)
    for each in claims(file, load(CLAIMS / f"{file}.yaml"), SPECS)
]  # fmt: skip
PAPERS = {each.paper for each in ALL}


def test_there_are_claims_of_all_five_papers_and_of_later_ones() -> None:
    assert len(ALL) >= 25
    assert len(PAPERS) == 6
    assert sum("Unequal workers" in paper for paper in PAPERS) == 1


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_a_papers_own_numbers_agree_with_what_it_says(each: Claim) -> None:
    """Else a number or the claim is mistyped."""
    for name in each.tables:
        result = judge_published(each, SPECS[name])
        assert result is None or result.holds, (name, result)


def test_the_claims_of_the_guide_are_valid() -> None:
    text = (ROOT / "docs" / "guide" / "tables.md").read_text().partition("## Claims")[2]
    raw = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    result = claims("guide", raw, SPECS)
    assert [each.kind for each in result] == ["higher", "spread", "more"]
    for each in result:
        assert judge_published(each, SPECS["evonorm_9"]) is not None


def test_every_claim_is_tried_before_every_table() -> None:
    result = judge_claims(ALL, SPECS, [])
    assert len(result) == sum(len(each.tables) for each in ALL)
    assert {each.verdict.outcome for each in result} == {"untested"}
    text = exports.claims_markdown(result)
    assert text.count("Untested, because their tables have no runs:") == len(PAPERS)
    assert all(each.says in text for each in ALL)
    assert len(exports.claims_csv(result).splitlines()) == len(result) + 1


def test_a_setting_without_the_entries_of_a_claim_is_no_second_verdict() -> None:
    """Here the runs of other networks are few; that claim is tested by those of the first."""
    made = [claim(higher=[["BN", 64], ["BN", 4]]), claim(higher=[["GN", 64], ["GN", 4]])]
    other = {"model": "resnet20"}
    rows = [*FAR, *runs("bn", 4, [70.0, 71.0, 72.0], **other)]
    settings = tables([SPEC], rows, None)
    assert len(settings) == 2
    found = [
        (each.claim is made[0], each.verdict.outcome)
        for each in judge_claims(made, {"made": SPEC}, settings)
    ]
    assert found == [(True, "confirmed"), (False, "untested"), (False, "untested")]


def test_above_the_verdicts_stands_how_many_may_be_wrong_by_chance() -> None:
    """A trial is a verdict whose runs give an interval; here 4 of 6."""
    made = [
        claim(higher=[["BN", 64], ["BN", 4]]),
        claim(higher=[["BN", 4], ["BN", 64]]),
        claim(alike=[["BN", 4], ["BN", 64]], bound=10.0),
        claim(deviation=[["BN", 4]], bound=1.0),
        claim(higher=[["GN", 64], ["GN", 4]]),  # one seed
        claim(higher=[["GN", 16], ["GN", 4]]),  # no runs
    ]
    rows = [*FAR, *runs("gn", 4, [70.0]), *runs("gn", 64, [71.0])]
    results = judge_claims(made, {"made": SPEC}, tables([SPEC], rows, None))
    said = expect_by_chance(results)
    assert said.startswith("4 of 6 verdicts are trials: their runs give an interval.")
    assert said.endswith("expect up to 0.1 false confirmations and 0.1 false refutations.")
    text = exports.claims_markdown(results)
    assert f"{count_verdicts(results)}. {said}\n" in text
    (of_table,) = re.findall(r"^\| made .*$", text, re.MULTILINE)
    counts = [
        str([each.verdict.outcome for each in results].count(outcome) or "")
        for outcome in ("confirmed", "refuted", "undecided", "untested")
    ]
    assert [cell.strip() for cell in of_table.split("|")[1:-1]] == ["made", *counts]


def test_an_undecided_claim_says_which_effect_its_seeds_would_show() -> None:
    """Of 400 draws with that effect about 80 % have an interval above the bound."""
    import numpy as np

    falls = FALLS["higher"]
    made = [
        claim(higher=falls), claim(higher=falls, bound=1.0), claim(higher=[["BN", 16], ["BN", 4]]),
    ]  # fmt: skip
    rows = [
        *runs("bn", 64, [69.0, 70.0, 71.0]), *runs("bn", 4, [69.5, 70.5, 71.5]),
        *runs("bn", 16, [80.0, 81.0, 82.0]),
    ]  # fmt: skip
    free, bounded, confirmed = judge_claims(made, {"made": SPEC}, tables([SPEC], rows, None))
    assert confirmed.verdict.outcome == "confirmed"
    assert confirmed.smallest_shown is None
    assert free.smallest_shown == bounded.smallest_shown
    smallest = free.smallest_shown
    assert smallest is not None
    rng = np.random.default_rng(0)
    draws = [
        welch_contrast(
            [(1.0, rng.normal(smallest, 1, 3).tolist()), (-1.0, rng.normal(0, 1, 3).tolist())]
        )
        for _ in range(400)
    ]
    assert 0.74 <= np.mean([draw.low is not None and draw.low > 0 for draw in draws]) <= 0.86
    said = f"3 seeds would show an effect of {smallest:.1f} in 80 % of cases"
    assert free.reason == said
    assert bounded.reason == said.replace(" in 80", " beyond the bound in 80")
    results = [free, bounded, confirmed]
    assert f"undecided ({said})" in exports.claims_markdown(results)
    assert exports.claims_csv(results).splitlines()[1].endswith(f",{smallest}")


def test_a_deviation_has_the_interval_of_chi_square() -> None:
    values = [80.0, 80.2, 80.9, 79.7, 80.4]
    result = std_interval(values)
    square = stdev(values) ** 2
    assert (result.low, result.high) == pytest.approx(
        [(4 * square / stats.chi2.ppf(tail, 4)) ** 0.5 for tail in (0.975, 0.025)]
    )
    assert result.value == pytest.approx(stdev(values))
    assert std_interval([80.0]).low is None


def listed_claims() -> dict[str, set[str]]:
    """The claims that docs/claims.md names in the last column of its tables, by their file."""
    page = (ROOT / "docs/claims.md").read_text()
    _, *parts = re.split(r"^## .*\(`(\w+)`\)$", page, flags=re.MULTILINE)
    return {
        file: {
            name
            for line in text.splitlines()
            if line.startswith("|")
            for name in re.findall(r"`(\w+)`", line.rsplit("|", 2)[1])
        }
        for file, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize(("file", "listed"), listed_claims().items())
def test_the_list_of_a_papers_statements_has_every_claim(file: str, listed: set[str]) -> None:
    assert listed == {*load(CLAIMS / f"{file}.yaml")["claims"]}
