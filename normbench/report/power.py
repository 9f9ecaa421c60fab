"""Power of the verdicts: how likely seeds confirm a claim if the means of its entries are known.

The judge of `normbench.report.verdicts` is simulated on normal results. Its intervals depend on the
mean and the variance of each entry alone, so these two are drawn instead of single results, and all
repetitions are judged at once. A claim is confirmed if every comparison is, so its chance is not
that of its weakest comparison, but less. Of the best of several entries the best alone is drawn;
the judge's interval may end higher, where another of them varies more.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from normbench.report.claims import Claim, claim_comparisons
from normbench.report.statistics import CONFIDENCE, bonferroni
from normbench.report.table_spec import Position, TableSpec

POWER = 0.8  # chance that is meant by "n seeds show a difference"
MOST = 100  # seeds, beyond which no number is looked for
REPETITIONS = 2000  # a chance of 80 % has a standard error of 0.9 points
_SEED = 0

Floats = NDArray[np.float64]  # one number for each repetition
Comparison = Mapping[Position, float]  # weight of each entry


@dataclass(frozen=True)
class Samples:
    """Mean and sample variance of each entry over its seeds, in every repetition."""

    means: Mapping[Position, Floats]
    variances: Mapping[Position, Floats]
    seeds: int


def printed_means(claim: Claim, spec: TableSpec) -> dict[Position, float]:
    """Return the means of a claim's entries that the paper prints; none of another metric."""
    if claim.metric is not None:  # a paper's table prints the metric of the table and no other
        return {}
    entries = {pick for comparison in claim_comparisons(claim, spec) for pick in comparison}
    printed = {pick: spec.published[pick].value for pick in entries & spec.published.keys()}
    return {pick: value for pick, value in printed.items() if value is not None}


def chance_to_confirm(
    claim: Claim,
    spec: TableSpec,
    means: Mapping[Position, float],
    deviations: Mapping[Position, float],
    seeds: int,
    confidence: float = CONFIDENCE,
) -> float | None:
    """Return the probability that the judge confirms a claim with `seeds` for each entry.

    Args:
        means: true mean of each entry. Comparisons with an entry that is not in it are left out,
            as a paper may print a word, "OOM", for some.
        deviations: true standard deviation over seeds of each entry.
        confidence: of intervals, 95 % if `seeds` is the planned number.

    Returns:
        None if no comparison is left, or an entry of one has no standard deviation.
    """
    comparisons = _comparisons(claim, spec, means)
    if not comparisons or not _entries(comparisons) <= deviations.keys():
        return None
    if seeds < 2:
        return 0.0  # one seed gives no interval
    samples = _draw(_entries(comparisons), means, deviations, seeds)
    return float(confirms(claim, spec, samples, confidence).mean())


def seeds_to_confirm(
    claim: Claim,
    spec: TableSpec,
    means: Mapping[Position, float],
    deviations: Mapping[Position, float],
    power: float = POWER,
    most: int = MOST,
) -> int | None:
    """Return the fewest planned seeds that confirm a claim with probability `power`.

    Arguments are those of `chance_to_confirm`. None if `most` seeds are too few.
    """

    def suffice(seeds: int) -> bool:
        chance = chance_to_confirm(claim, spec, means, deviations, seeds)
        return chance is not None and chance >= power

    fewest = 2
    while not suffice(fewest):  # doubling first, as large numbers are seldom needed
        if fewest == most:
            return None
        low, fewest = fewest, min(2 * fewest, most)
    if fewest == 2:
        return fewest
    while fewest - low > 1:
        middle = (low + fewest) // 2
        low, fewest = (low, middle) if suffice(middle) else (middle, fewest)
    return fewest


def smallest_difference(
    claim: Claim,
    spec: TableSpec,
    deviations: Mapping[Position, float],
    seeds: int,
    confidence: float = CONFIDENCE,
    power: float = POWER,
) -> float | None:
    """Return the smallest effect whose two-sided interval excludes 0 with probability `power`.

    Of the comparison whose effect varies most, as the claim is about each. Arguments are those of
    `chance_to_confirm`. None with one seed, of a claim about a standard deviation, or if an entry
    has no standard deviation.
    """
    comparisons = _comparisons(claim, spec)
    if seeds < 2 or claim.kind == "deviation" or not _entries(comparisons) <= deviations.keys():
        return None
    widest = max(
        comparisons, key=lambda each: sum((w * deviations[pick]) ** 2 for pick, w in each.items())
    )
    return smallest_effect(
        widest, deviations, seeds, bonferroni(_among(spec, widest), confidence), power
    )


def smallest_effect(
    comparison: Comparison,
    deviations: Mapping[Position, float],
    seeds: int,
    confidence: float = CONFIDENCE,
    power: float = POWER,
) -> float:
    """Return the smallest effect of one comparison that at least two seeds show."""
    samples = _draw(comparison, dict.fromkeys(comparison, 0.0), deviations, seeds)
    error, half = _welch(comparison, samples, confidence)
    # An effect e is estimated as e + error, and shown if that exceeds the half width.
    return float(np.quantile(half - error, power))


def confirms(
    claim: Claim, spec: TableSpec, samples: Samples, confidence: float = CONFIDENCE
) -> NDArray[np.bool_]:
    """Return for each repetition whether the judge confirms a claim about the entries drawn."""
    margins = [
        _margin(claim, each, samples, bonferroni(_among(spec, each), confidence))
        for each in _comparisons(claim, spec, samples.means)
    ]
    margin = np.min(margins, axis=0)
    confirmed: NDArray[np.bool_] = (
        margin >= 0 if claim.two_sided or claim.kind == "not_lower" else margin > 0
    )
    return confirmed


def _comparisons(
    claim: Claim, spec: TableSpec, available: Collection[Position] | None = None
) -> list[Comparison]:
    """Return the comparisons of a claim whose entries are all `available`; None: all.

    A row is flat if every pair of its entries is, by Welch's intervals.
    """
    comparisons: list[Comparison] = [*claim_comparisons(claim, spec)]
    if claim.kind == "spread":
        pairs = [combinations(row, 2) for row in comparisons]
        comparisons = [{first: 1.0, second: -1.0} for row in pairs for first, second in row]
    if available is None:
        return comparisons
    return [each for each in comparisons if all(pick in available for pick in each)]


def _entries(comparisons: Iterable[Comparison]) -> set[Position]:
    return {pick for comparison in comparisons for pick in comparison}


def _draw(
    entries: Iterable[Position],
    means: Mapping[Position, float],
    deviations: Mapping[Position, float],
    seeds: int,
) -> Samples:
    """Draw the mean and the variance of `seeds` normal results of each entry."""
    rng = np.random.default_rng(_SEED)
    picks = sorted(entries)
    errors = rng.standard_normal((len(picks), REPETITIONS)) / seeds**0.5
    ratios = rng.chisquare(seeds - 1, (len(picks), REPETITIONS)) / (seeds - 1)
    return Samples(
        {p: means[p] + deviations[p] * row for p, row in zip(picks, errors, strict=True)},
        {p: deviations[p] ** 2 * row for p, row in zip(picks, ratios, strict=True)},
        seeds,
    )


def _margin(claim: Claim, comparison: Comparison, samples: Samples, confidence: float) -> Floats:
    """Return how far inside the bound of a claim the nearer end of the interval lies."""
    if claim.kind == "deviation":
        from scipy.special import chdtri  # slow import: 0.2 s

        (pick,) = comparison
        freedom = samples.seeds - 1
        quantile = float(chdtri(freedom, (1 + confidence) / 2))
        return claim.bound - np.sqrt(samples.variances[pick] * freedom / quantile)
    effect, half = _welch(comparison, samples, confidence)
    if claim.two_sided:
        return claim.bound - np.abs(effect) - half
    return effect - half + (claim.bound if claim.kind == "not_lower" else -claim.bound)


def _welch(comparison: Comparison, samples: Samples, confidence: float) -> tuple[Floats, Floats]:
    """Return the effect and the half width of its interval, as `statistics.welch_contrast`."""
    from scipy.special import stdtrit  # slow import: 0.2 s

    effect = sum(weight * samples.means[pick] for pick, weight in comparison.items())
    squares = np.array(
        [weight**2 / samples.seeds * samples.variances[pick] for pick, weight in comparison.items()]
    )
    total = squares.sum(axis=0)
    freedom = total**2 * (samples.seeds - 1) / (squares**2).sum(axis=0)
    half = stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(total)
    return np.asarray(effect), half


def _among(spec: TableSpec, comparison: Comparison) -> int:
    """Return the number of entries of which one in the comparison is the best."""
    rows, columns = (
        {header.label: header for header in axis} for axis in (spec.rows, spec.columns)
    )
    headers = [header for row, column in comparison for header in (rows[row], columns[column])]
    return max((len(header.minus.first) for header in headers if header.minus), default=1)
