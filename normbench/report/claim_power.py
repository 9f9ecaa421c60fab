"""Power of a sweep: how likely its seeds confirm the claims of its paper's table."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import variance

from normbench.report import pivot
from normbench.report.build import read_claims, specs
from normbench.report.claim_results import PublishedEffect
from normbench.report.claims import Claim, claim_comparisons
from normbench.report.metrics import METRICS, Metric
from normbench.report.planned_seeds import UNPLANNED, configuration, is_planned
from normbench.report.power import (
    MOST,
    POWER,
    chance_to_confirm,
    printed_means,
    seeds_to_confirm,
    smallest_difference,
)
from normbench.report.statistics import CONFIDENCE
from normbench.report.table import Entry, Table
from normbench.report.table_spec import Position, TableSpec
from normbench.report.verdicts import find_entry, judge_published, slack
from normbench.results import Row

UNKNOWN_DEVIATION = "standard deviation unknown"

ROUNDED_TO_0 = 0.3  # of a printed error bar's last digit, where it is 0
Deviations = Mapping[Position, float]
Variance = tuple[float, int]  # with its degrees of freedom


@dataclass(frozen=True)
class ClaimPower:
    """Chance that the seeds of a sweep confirm a claim, if its paper's numbers are the truth.

    Args:
        setting: of the sweep's runs, as typed.
        seeds: fewest of an entry that the claim compares.
        confidence: of the intervals that the report would have.
        source: where standard deviations over seeds come from, "" if they are unknown.
        chance: None if the paper prints no number, standard deviations are unknown, or the sweep
            lacks an entry.
        difference: smallest one that the seeds show.
        enough: seeds for a chance of 80 %; None if there is no such number.
        obstacle: why `chance` or `enough` is None.
        unverified: a number of the paper could not be verified in its text.
    """

    claim: Claim
    spec: TableSpec
    setting: str
    seeds: int
    confidence: float
    source: str
    chance: float | None
    difference: float | None
    enough: int | None
    obstacle: str
    unverified: bool


def find_power(planned: Sequence[Row], finished: Sequence[Row]) -> list[ClaimPower]:
    """Return the power of a sweep for each claim about a table that it trains.

    Args:
        planned: a row for each cell of the sweep; results in them are not used.
        finished: rows, of which those of the same setting give standard deviations.
    """
    known = specs()
    by_name = {spec.name: spec for spec in known}
    claims = read_claims(known)
    powers = []
    for spec in [each for each in known if each.is_trained_by(planned[0].sweep)]:
        for grid in pivot.tables([spec], planned):
            trained = [
                table
                for table in pivot.tables([spec], finished)
                if (table.setting, table.scale) == (grid.setting, grid.scale)
            ]
            printed = by_name.get(spec.deviations or spec.name, spec)
            powers += [
                _power(claim, grid, *_find_deviations(claim, grid, trained, printed))
                for claim in claims
                if spec.name in claim.tables
            ]
    return powers


def _power(claim: Claim, grid: Table, deviations: Deviations, source: str) -> ClaimPower:
    spec = grid.spec
    entries = [find_entry(claim, grid, pick) for pick in _entries(claim, spec)]
    seeds = min(map(_seeds, entries))
    planned = all(is_planned(seeds, entry.source_runs) for entry in entries)
    confidence = CONFIDENCE if planned or seeds < 2 else UNPLANNED
    means = printed_means(claim, spec) if seeds else {}
    chance = chance_to_confirm(claim, spec, means, deviations, seeds, confidence)
    difference = smallest_difference(claim, spec, deviations, seeds, confidence)
    enough = None
    published = judge_published(claim, spec)
    obstacle = _obstacle(claim, published, seeds, deviations)
    if chance is not None and chance >= POWER:
        enough = seeds
    elif not obstacle:
        enough = seeds_to_confirm(claim, spec, means, deviations)
        obstacle = "" if enough else f"more than {MOST}"
    return ClaimPower(
        claim, spec, grid.setting_text, seeds, confidence, source, chance, difference, enough,
        obstacle, published is not None and published.unverified,
    )  # fmt: skip


def _obstacle(
    claim: Claim, published: PublishedEffect | None, seeds: int, deviations: Deviations
) -> str:
    """Return why no number of seeds can be computed that confirms a claim, else ""."""
    if not seeds:
        return "entries missing in this grid"
    if published is None:
        return "no printed number"
    margin = round(slack(claim, published.effect), 6)
    if margin <= 0:
        return f"none: printed numbers {'lie at the bound' if margin == 0 else 'contradict it'}"
    return "" if deviations else UNKNOWN_DEVIATION


def _entries(claim: Claim, spec: TableSpec) -> list[Position]:
    return sorted({pick for each in claim_comparisons(claim, spec) for pick in each})


def _seeds(entry: Entry) -> int:
    """Return the number of seeds of an entry, of a difference those of the shorter source."""
    if entry.sources:
        return min(map(_seeds, entry.sources))
    return len({row.seed for row in entry.runs})


def pooled_deviation(planned: Sequence[Row], finished: Sequence[Row]) -> float | None:
    """Return the standard deviation of test accuracies over seeds in runs of a grid.

    Pooled over its cells, with the seeds of `finished` rows. None if no cell has two.
    """
    metric = METRICS["test_top1"]
    wanted = {configuration(row) for row in planned}
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for row in finished:
        value = metric.of(row) if row.status == "ok" else None
        if value is not None and (key := configuration(row)) in wanted:
            values[key][row.seed] = value
    samples = [[*by_seed.values()] for by_seed in values.values() if len(by_seed) > 1]
    squares = [(variance(sample), len(sample) - 1) for sample in samples]
    return _pool(squares) if squares else None


# Standard deviations


def _find_deviations(
    claim: Claim, grid: Table, trained: Sequence[Table], printed: TableSpec
) -> tuple[Deviations, str]:
    """Return the standard deviation of each entry of a claim, and where they come from.

    They are those of finished rows, or else the paper's error bars. An entry without any has the
    pooled one of entries with the same metric. Nothing if there is none.
    """
    picks = _entries(claim, grid.spec)
    sources = [(grid.spec, _variances_of_rows(claim, each), "finished runs") for each in trained]
    if claim.metric is None:
        place = printed.place.rpartition(", ")[2] or printed.name
        others = (
            ", of its own setting, until two seeds of this one are there"
            if grid.setting_differences
            else ""
        )
        bars = f"the paper's error bars ({place}){others}"
        sources.append((printed, _variances_of_paper(printed), bars))
    for spec, variances, source in sources:
        pools: dict[tuple[Metric, bool], list[Variance]] = defaultdict(list)
        for entry, each in variances.items():
            pools[_kind(spec, entry)].append(each)
        samples = {
            pick: [variances[pick]] if pick in variances else pools[_kind(grid.spec, pick)]
            for pick in picks
        }
        if all(samples.values()):
            pooled = "" if variances.keys() >= {*picks} else "; pooled for entries without"
            return {pick: _pool(each) for pick, each in samples.items()}, source + pooled
    return {}, ""


def _variances_of_rows(claim: Claim, table: Table) -> dict[Position, Variance]:
    variances = {}
    for row, column in product(table.lines, table.columns):
        values = [*find_entry(claim, table, (row, column.label)).values.values()]
        if len(values) > 1 and (square := variance(values)) > 0:
            variances[row, column.label] = square, len(values) - 1
    return variances


def _variances_of_paper(printed: TableSpec) -> dict[Position, Variance]:
    least = ROUNDED_TO_0 * 10**-printed.decimals
    return {
        place: (max(number.error, least) ** 2, 1)
        for place, number in printed.published.items()
        if number.error is not None
    }


def _pool(variances: Sequence[Variance]) -> float:
    """Return the standard deviation that several variances estimate together."""
    freedom = sum(count for _, count in variances)
    return math.sqrt(sum(square * count for square, count in variances) / freedom)


def _kind(spec: TableSpec, place: Position) -> tuple[Metric, bool]:
    """Return metric of an entry, and whether it is a difference: only like entries are pooled."""
    row, column = (
        next(header for header in axis if header.label == label)
        for axis, label in zip((spec.rows, spec.columns), place, strict=True)
    )
    return spec.metric_of(row, column), bool(row.minus or column.minus)
