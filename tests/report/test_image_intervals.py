"""Intervals over seeds and test images: the formula, its coverage, and where they are shown."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from normbench import results
from normbench.records.hits import write_hits
from normbench.records.studies import STUDY
from normbench.report import build
from normbench.report.claim_results import ClaimResult
from normbench.report.exports import claims_csv
from normbench.report.pivot import tables
from normbench.report.recommendation import recommendations
from normbench.report.recommendation_text import sentences
from normbench.report.statistics import Effect, add_test_images, mcnemar, welch_contrast
from normbench.report.table import Table
from normbench.report.table_spec import spec
from normbench.report.verdicts import judge
from normbench.results import Row
from support.claims import SPEC, TABLE, claim
from support.rows import runs
from support.slow import slow_except

Hits = NDArray[np.bool_]  # (seed, image)


def as_number(hits: NDArray[np.bool_]) -> int:
    """Return the bits of a run as the report takes them."""
    return int.from_bytes(np.packbits(hits).tobytes(), "big") >> (-len(hits) % 8)


def intervals(first: Hits, second: Hits, confidence: float = 0.95) -> tuple[Effect, Effect]:
    """Return the difference of two samples over seeds, and over seeds and images."""
    samples = [(1.0, first), (-1.0, second)]
    accuracies = [(weight, [100 * float(run.mean()) for run in runs]) for weight, runs in samples]
    over_seeds = welch_contrast(accuracies, confidence)
    parts = [(weight, [*map(as_number, runs)]) for weight, runs in samples]
    return over_seeds, add_test_images(over_seeds, parts, first.shape[1], confidence)


def half(effect: Effect) -> float:
    assert effect.low is not None
    return effect.value - effect.low


def draw(
    rng: np.random.Generator, seeds: Sequence[int], images: int, over_seeds: float
) -> Iterator[Hits]:
    """Yield the hits of two normalizers that are equally good over all seeds and images.

    An image has a difficulty, and is easier or harder for one of them; a seed is better or worse by
    the standard deviation `over_seeds`; and each seed errs on images of its own.
    """
    difficulty = rng.normal(scale=1.5, size=images)
    for number in seeds:
        taste = rng.normal(scale=0.5, size=images)
        quality = rng.normal(scale=over_seeds, size=(number, 1))
        yield 1.2 + difficulty + taste + quality + rng.normal(size=(number, images)) > 0


def coverage(
    seeds: Sequence[int], images: int, over_seeds: float, repetitions: int
) -> tuple[float, float]:
    """Return how often both intervals contain the true difference, 0."""
    rng = np.random.default_rng(images + 10 * sum(seeds))
    covered = np.zeros(2)
    for _ in range(repetitions):
        first, second = draw(rng, seeds, images, over_seeds)
        pair = intervals(first, second)
        covered += [abs(effect.value) <= half(effect) for effect in pair]
    of_seeds, of_both = covered / repetitions
    return float(of_seeds), float(of_both)


CASES = [
    (seeds, images, over_seeds)
    for seeds in ((3, 3), (5, 5), (10, 10), (3, 10))
    for images in (360, 10_000)
    for over_seeds in (0.0, 0.1, 0.4)
]


@pytest.mark.parametrize(
    ("seeds", "images", "over_seeds"),
    slow_except(CASES, [((3, 3), 360, 0.0), ((5, 5), 360, 0.4), ((10, 10), 10_000, 0.0)]),
)
def test_other_seeds_and_images_are_covered_as_often_as_stated(
    seeds: tuple[int, int], images: int, over_seeds: float
) -> None:
    repetitions = 600 if images < 1000 else 150
    _, covered = coverage(seeds, images, over_seeds, repetitions)
    error = math.sqrt(0.95 * 0.05 / repetitions)
    # Up to 2.5 points are too many: with 3 seeds both half widths are added with few freedoms.
    assert 0.945 - 3 * error <= covered <= 0.975 + 3 * math.sqrt(0.975 * 0.025 / repetitions)


def test_an_interval_over_seeds_does_not_cover_other_images() -> None:
    """Or the second one would not be needed."""
    covered, _ = coverage((10, 10), 360, 0.0, 300)
    assert covered < 0.9


def test_the_variance_is_that_of_the_textbook() -> None:
    """With NumPy: variance over images of the effect, less the residual mean squares."""
    images = 500
    first, second = draw(np.random.default_rng(0), (3, 5), images, 0.2)
    variance = (first.mean(0) - second.mean(0)).var(ddof=1) / images
    for y in (first, second):
        rest = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
        residual = (rest**2).sum() / ((len(y) - 1) * (images - 1))
        variance -= residual / (len(y) * images)
    over_seeds, over_both = intervals(first, second, confidence=0.9)
    expected = half(over_seeds) ** 2 + 100**2 * stats.t.ppf(0.95, images - 1) ** 2 * variance
    assert half(over_both) == pytest.approx(expected**0.5)
    assert over_both.value == over_seeds.value
    assert over_both.high == pytest.approx(over_both.value + half(over_both))


def test_with_the_same_errors_in_both_only_seeds_count() -> None:
    """Images that both get wrong, whatever the seed, say nothing about their difference."""
    hits = np.random.default_rng(0).random((1, 400)) < 0.8
    first, second = np.repeat(hits, 3, 0), np.repeat(hits, 3, 0)
    first[0, :2], second[1, 5:9] = True, False
    over_seeds, over_both = intervals(first, second)
    assert half(over_both) == pytest.approx(half(over_seeds), rel=0.1)
    assert half(over_both) >= half(over_seeds) > 0


@pytest.mark.parametrize("counts", [(0, 0), (3, 9), (9, 3), (10, 10), (120, 160), (0, 5000)])
def test_mcnemar_is_the_binomial_test(counts: tuple[int, int]) -> None:
    expected = stats.binomtest(counts[0], sum(counts)).pvalue if sum(counts) else 1.0
    assert mcnemar(*counts) == pytest.approx(expected, rel=1e-9)


IMAGES = 400


def write_runs(
    root: Path, norms: Sequence[str], without: int = 0, kept: int = IMAGES, **changes: Any
) -> list[Row]:
    """Write three seeds of each normalizer, each 2 points below the one before; return all rows.

    The first runs, as many as `without`, keep no hits. `changes` are those of the last normalizer,
    whose runs keep the hits of the first `kept` images.
    """
    rng = np.random.default_rng(5)
    easy = rng.random(IMAGES)
    for place, norm in enumerate(norms):
        last = norm == norms[-1]
        hits = easy + rng.normal(scale=0.2, size=(3, IMAGES)) > 0.2 + 0.02 * place
        hits = hits[:, : kept if last else IMAGES]
        accuracies = [100 * float(run.mean()) for run in hits]
        more = changes if last else {}
        for row, run in zip(
            runs(norm, 4, accuracies, test_images=hits.shape[1], **more), hits, strict=True
        ):
            results.write(root / row.sweep / row.id, row)
            if without <= 0:
                write_hits(root / row.sweep / row.id, run.tolist())
            without -= 1
    return results.read(root)


def batch_size_table(root: Path, rows: Sequence[Row]) -> Table:
    (table,) = tables(build.specs(["batch_size"]), rows, root=root)
    return table


def judged(root: Path, rows: Sequence[Row], **entry: Any) -> ClaimResult:
    (table,) = tables([SPEC], rows, root=root)
    made = claim(**entry)
    return ClaimResult(made, SPEC, table, judge(made, table), None)


@pytest.mark.parametrize("study", [False, True])
def test_the_recommendation_has_both_intervals(tmp_path: Path, study: bool) -> None:
    rows, root = write_runs(tmp_path, ["bn", "gn", "ln"]), tmp_path
    if study:
        root = tmp_path / "study" / STUDY
        results.write_study(root, [(tmp_path, row) for row in rows])
    table = batch_size_table(root, rows)
    (at_4,) = recommendations(table)
    others = [each for each in (*at_4.good, *at_4.worse) if each.distance]
    assert len(others) == 2
    for each in others:
        assert each.distance is not None
        assert each.distance_images is not None
        assert half(each.distance_images) > half(each.distance)
        assert each.distance_images.value == each.distance.value
    said = sentences(table, recommendations(table))
    assert said[0].count("], images [") == 2
    assert not said[-1].startswith("Without an interval")


@pytest.mark.parametrize("without", [1, 6])
def test_runs_without_hits_have_one_interval_and_are_counted(tmp_path: Path, without: int) -> None:
    rows = write_runs(tmp_path, ["bn", "gn"], without)
    table = batch_size_table(tmp_path, rows)
    said = sentences(table, recommendations(table))
    assert "lower [" in said[0]
    assert "images [" not in said[0]
    assert said[-1] == (
        f"Without an interval over test images, because {without} of 6 runs have no test_hits.bin."
    )


ABOVE = {"higher": [["BN", 4], ["GN", 4]]}


@pytest.mark.parametrize(
    "entry", [ABOVE, {"alike": ABOVE["higher"], "bound": 9}, {"higher": [["BN", 4]]}], ids=str
)
def test_claims_have_both_intervals_and_follow_the_first(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    rows = write_runs(tmp_path, ["bn", "gn"])
    result = judged(tmp_path, rows, **entry)
    verdict = result.verdict
    assert verdict.effect is not None
    assert verdict.over_images is not None
    assert half(verdict.over_images) > half(verdict.effect)
    assert result.effect.count("[") == 2
    (table,) = tables([SPEC], rows)
    assert judge(claim(**entry), table) == replace(verdict, over_images=None)
    (line,) = csv.DictReader(claims_csv([result]).splitlines())
    assert float(line["low_images"]) == verdict.over_images.low
    assert float(line["high_images"]) == verdict.over_images.high


@pytest.mark.parametrize(
    ("options", "entry"),
    [
        ({"without": 1}, ABOVE),
        ({"data": "cifar10"}, ABOVE),  # another data set may have as many images
        ({"kept": IMAGES - 1}, ABOVE),
        ({}, {"spread": [["BN", 4], ["GN", 4]]}),
        ({}, {"deviation": [["BN", 4]]}),
        ({}, ABOVE | {"metric": "train_loss"}),
    ],
    ids=str,
)
def test_other_effects_have_one_interval(
    tmp_path: Path, options: dict[str, Any], entry: dict[str, Any]
) -> None:
    rows = [
        replace(row, train_loss=1 + row.seed / 10 + row.batch_independent)
        for row in write_runs(tmp_path, ["bn", "gn"], **options)
    ]
    known = spec("made", TABLE | {"setting": {}, "rows": ROWS})
    (table,) = tables([known], rows, root=tmp_path)
    verdict = judge(claim(known, **entry), table)
    assert verdict.effect is not None
    assert verdict.effect.low is not None
    assert verdict.over_images is None


#: Rows that take their runs from any data set.
ROWS = {"BN": {"norm": "bn", "data": "digits"}, "GN": {"norm": "gn", "data": ["digits", "cifar10"]}}


def test_one_seed_has_no_interval_at_all(tmp_path: Path) -> None:
    rows = [row for row in write_runs(tmp_path, ["bn", "gn"]) if row.seed == 0]
    assert judged(tmp_path, rows, **ABOVE).verdict.over_images is None
