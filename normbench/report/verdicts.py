"""Verdicts on claims: confirmed, refuted, undecided or untested.

A verdict on rows follows from a confidence interval over seeds alone: confirmed or refuted if the
whole interval lies on one side of the claim's bound, undecided if it contains the bound or there is
no interval, untested where rows are missing. The paper's own numbers are compared by sign only.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from normbench.report import statistics
from normbench.report.claim_results import ClaimResult, Outcome, PublishedEffect, Verdict
from normbench.report.claims import (
    Claim,
    claim_alternatives,
    claim_comparisons,
    claim_weights,
)
from normbench.report.image_intervals import widen_over_images
from normbench.report.planned_seeds import UNPLANNED, UNPLANNED_TEXT, verdict_level
from normbench.report.statistics import Effect, bonferroni
from normbench.report.table import Entry, Table
from normbench.report.table_spec import Position, TableSpec


def judge_claims(
    claims: Sequence[Claim], specs: Mapping[str, TableSpec], tables: Sequence[Table]
) -> list[ClaimResult]:
    """Judge every claim in every setting of its tables; `specs` are all tables by name.

    Settings that lack entries of a claim are left out if another setting of the table tests it.
    """
    results: list[ClaimResult] = []
    for claim in claims:
        for name in claim.tables:
            published = judge_published(claim, specs[name])
            judged = [
                ClaimResult(
                    claim, specs[name], table, verdict, published,
                    _smallest_shown(claim, table, verdict),
                )
                for table in tables
                if table.spec.name == name and table.runs
                for verdict in [judge(claim, table)]
            ]  # fmt: skip
            tested = [result for result in judged if result.verdict.outcome != "untested"]
            no_runs = Verdict("untested", reason="no runs of this table")
            results += (
                tested or judged or [ClaimResult(claim, specs[name], None, no_runs, published)]
            )
    return results


def _smallest_shown(claim: Claim, table: Table, verdict: Verdict) -> float | None:
    """Return the smallest effect that the seeds of an undecided claim show in 80 % of cases.

    It is the distance from the bound. None of another verdict, or without an interval.
    """
    effect = verdict.effect
    if verdict.outcome != "undecided" or effect is None or effect.low == effect.high:
        return None
    from normbench.report.power import smallest_difference  # NumPy takes a tenth of a second

    entries = {
        pick: entry for each in comparisons(claim, table) for pick, entry in each.entries.items()
    }
    deviations = {
        pick: stdev(entry.values.values())
        for pick, entry in entries.items()
        if len(entry.values) > 1
    }
    level = verdict_level(entries.values())
    return smallest_difference(claim, table.spec, deviations, effect.seeds, level)


def tables_to_show(claims: Sequence[Claim], tables: Sequence[Table]) -> list[Table]:
    """Drop tables with so few runs that no claim can be judged by them."""
    return [
        table
        for table in tables
        if not table.runs
        or not table.sparse
        or any(
            table.spec.name in claim.tables and judge(claim, table).outcome != "untested"
            for claim in claims
        )
    ]


def judge(claim: Claim, table: Table) -> Verdict:
    """Return the verdict of the rows of `table`, over all entries that * stands for."""
    return judge_comparisons(claim, comparisons(claim, table), table.root)


@dataclass(frozen=True)
class Comparison:
    """Entries that a claim compares, with their weights in the effect."""

    entries: Mapping[Position, Entry]
    weights: Mapping[Position, float]


def comparisons(claim: Claim, table: Table) -> list[Comparison]:
    """Return the comparisons of a claim in a table, all of which it says hold."""
    # An entry may be in several comparisons of a mean; it has one weight and one sample.
    return [
        Comparison({pick: find_entry(claim, table, pick) for pick in weights}, weights)
        for weights in claim_comparisons(claim, table.spec)
    ]


def judge_comparisons(
    claim: Claim, compared: Sequence[Comparison], root: Path | None = None
) -> Verdict:
    """Return the verdict on the comparisons of a claim; `root` has the test hits of their runs."""
    verdicts = judge_each(claim, compared, root)
    nothing = Verdict("untested", reason="none of these runs fits into the memory of the device")
    return _weakest(claim, [verdict for verdict in verdicts if verdict is not None] or [nothing])


def judge_each(
    claim: Claim, compared: Sequence[Comparison], root: Path | None = None
) -> list[Verdict | None]:
    """Return the verdict on each comparison; None on one of runs that did not fit into memory."""
    verdicts: list[Verdict | None] = []
    for each in compared:
        if any(map(_out_of_memory, each.entries.values())):
            verdicts.append(None)  # there is no speed to compare, in the paper either
        else:
            obstacle = _obstacle(claim, each.entries)
            verdicts.append(
                obstacle or _judge_one(claim, each.entries, each.weights, len(compared), root)
            )
    return verdicts


def _judge_one(
    claim: Claim,
    entries: Mapping[Position, Entry],
    weights: Mapping[Position, float],
    comparisons: int,
    root: Path | None,
) -> Verdict:
    """Return the verdict on one of several comparisons, all of which the claim says hold.

    The claim is confirmed by an intersection-union test (Berger 1982): every comparison is tested
    at the full level. It is refuted by any of them, which needs Bonferroni's correction. Holm's
    would refute the same claims, as its first step is Bonferroni's.
    """
    level = verdict_level(entries.values())
    verdict = _compare(claim, entries, weights, level, root)
    if verdict.outcome == "refuted":
        verdict = _compare(claim, entries, weights, bonferroni(comparisons, level), root)
    effect = verdict.effect
    if level == UNPLANNED and effect is not None and effect.low != effect.high:
        return replace(verdict, reason=UNPLANNED_TEXT)
    return verdict


def _compare(
    claim: Claim,
    entries: Mapping[Position, Entry],
    weights: Mapping[Position, float],
    level: float,
    root: Path | None,
) -> Verdict:
    values = [list(entry.values.values()) for entry in entries.values()]
    over_images: Effect | None = None
    for_all = bonferroni(1 + max(len(entry.known_rivals) for entry in entries.values()), level)
    if claim.kind == "spread":
        effect = statistics.spread(values, for_all)
    elif claim.kind == "deviation":
        effect = statistics.std_interval(values[0], for_all)
    else:
        effect = _contrast(entries, weights, level)
        weighted = [*zip(weights.values(), entries.values(), strict=True)]
        over_images = widen_over_images(effect, weighted, root, level)
    learned = any(entry.metric.learned for entry in entries.values())
    if learned and effect.low is not None and effect.low == effect.high:
        # Seeds that agree to the last digit have collapsed, or the test set is tiny.
        return Verdict("undecided", effect, "all seeds gave the same number")
    return replace(_decide(claim, effect), over_images=over_images)


def _contrast(
    entries: Mapping[Position, Entry], weights: Mapping[Position, float], level: float
) -> Effect:
    """Return a weighted sum of entries with its interval, also where some are the best of several.

    The best was chosen by these same numbers. So the end of the interval at which it is less good
    is Bonferroni-corrected for the number of entries. The end at which it is better is the farthest
    of the intervals of all of them, each at the full level: the best does not exceed a bound if
    none of them does (an intersection-union test, Berger 1982).
    """
    chosen = _welch(weights, [*entries.values()], level)
    if chosen.low is None or not any(entry.rivals for entry in entries.values()):
        return chosen
    low = min(_ends(entries, weights, level, -1))
    return replace(chosen, low=low, high=max(_ends(entries, weights, level, 1)))


def _ends(
    entries: Mapping[Position, Entry], weights: Mapping[Position, float], level: float, side: int
) -> Iterator[float]:
    """Yield the ends of which the farthest bounds the best of several entries at one side.

    An entry that lacks runs may be the best without bound.

    Args:
        entries: what is compared.
        weights: of the entries in the effect.
        level: confidence of the interval.
        side: 1 for its upper end, -1 for its lower one.
    """
    choices, corrected = list[list[Entry]](), 1
    for pick, entry in entries.items():
        better = -1 if entry.metric.better == "lower" else 1
        if side * better * weights[pick] > 0:
            choices.append([entry, *entry.rivals])
        else:
            choices.append([entry])
            corrected *= 1 + len(entry.known_rivals)
    for choice in product(*choices):
        end = None
        if all(entry.values and not entry.failed for entry in choice):
            effect = _welch(weights, choice, bonferroni(corrected, level))
            end = effect.high if side > 0 else effect.low
        yield side * math.inf if end is None else end


def _welch(weights: Mapping[Position, float], entries: Sequence[Entry], level: float) -> Effect:
    values = [[*entry.values.values()] for entry in entries]
    return statistics.welch_contrast([*zip(weights.values(), values, strict=True)], level)


def judge_published(claim: Claim, spec: TableSpec) -> PublishedEffect | None:
    """Return the effect of a claim in the paper's numbers; None without numbers."""
    # A paper's table prints the metric of the table and no other.
    if claim.metric is not None:
        return None
    effects = []
    unverified = False
    for picks in claim_alternatives(claim, spec):
        numbers = [spec.published[pick] for pick in picks if pick in spec.published]
        printed = [n.error if claim.kind == "deviation" else n.value for n in numbers]
        values = [value for value in printed if value is not None]
        if len(values) < len(picks):
            continue
        unverified |= any(number.unverified for number in numbers)
        if claim.kind == "spread":
            effects.append(max(values) - min(values))
        else:
            weights = claim_weights(claim, picks)
            effects.append(sum(w * v for w, v in zip(weights, values, strict=True)))
    if not effects:
        return None
    if claim.average:
        effects = [fmean(effects)]
    # In floats 74.3 - 74.1 is above a bound of 0.2.
    effects = [round(effect, 6) for effect in effects]
    weakest = max(effects, key=abs) if claim.two_sided else min(effects)
    return PublishedEffect(all(_holds(claim, effect) for effect in effects), weakest, unverified)


def find_entry(claim: Claim, table: Table, pick: Position) -> Entry:
    """Return the entry of `table` at `pick`, with the metric that the claim compares."""
    index = [column.label for column in table.columns].index(pick[1])
    entry = table.lines[pick[0]][index]
    return replace(entry, metric=claim.metric) if claim.metric else entry


def _out_of_memory(entry: Entry) -> bool:
    """Return True if a speed or memory is missing because its runs did not fit."""
    statuses = {row.status for row in entry.source_runs}
    return not entry.metric.learned and not entry.values and "oom" in statuses


def _obstacle(claim: Claim, entries: Mapping[Position, Entry]) -> Verdict | None:
    """Return the verdict where entries cannot be compared, else None."""
    for (row, column), entry in entries.items():
        name = f"{' '.join(row)}, {' '.join(column)}"
        reasons = (r.reason for r in entry.source_runs if r.status == "impossible")
        if reason := next(reasons, ""):
            return Verdict("untested", reason=f"{name}: {reason}")
        if entry.failed:
            runs = "a run" if entry.failed == 1 else f"{entry.failed} runs"
            return Verdict("undecided", reason=f"{name}: {runs} ended without a number")
        if not entry.values:
            return Verdict("untested", reason=f"no runs of {name}")
    equal = claim.about_row and any(equal_by_construction(entry) for entry in entries.values())
    if equal or _share_computation([*entries.values()]):
        reason = "these entries share a computation, so they are equal in any case"
        return Verdict("untested", reason=reason)
    return None


def _share_computation(entries: Sequence[Entry]) -> bool:
    """Return True if a computation that was done once is in several of the entries."""
    # Where the key of the computation is unknown, an id stands for it.
    keys = [
        {run.computation or run.shared_with or run.id for run in entry.runs} for entry in entries
    ]
    return len(frozenset().union(*keys)) < sum(map(len, keys))


def equal_by_construction(entry: Entry) -> bool:
    """Return True if an entry computes the same for every number of images per worker."""
    return entry.shared or any(
        row.batch_independent and row.protocol == "fixed_global_batch" for row in entry.source_runs
    )


def _decide(claim: Claim, effect: Effect) -> Verdict:
    if effect.low is None or effect.high is None:
        reason = "one seed gives no interval; train more, as seed=0,1,2"
        return Verdict("undecided", effect, reason)
    # The effects that the claim allows are an interval: if both ends are inside, all is; if the
    # ends and the effect nearest to 0 are outside, all is.
    nearest = min(max(effect.low, 0.0), effect.high)
    holds = [_holds(claim, each) for each in (effect.low, effect.high, nearest)]
    outcome: Outcome = "confirmed" if all(holds) else "undecided" if any(holds) else "refuted"
    return Verdict(outcome, effect)


def _holds(claim: Claim, effect: float) -> bool:
    distance = slack(claim, effect)
    return distance >= 0 if claim.two_sided or claim.kind == "not_lower" else distance > 0


def slack(claim: Claim, effect: float) -> float:
    """Return the distance of an effect from the bound, negative where the claim does not hold."""
    if claim.two_sided:
        return claim.bound - abs(effect)
    return effect + claim.bound if claim.kind == "not_lower" else effect - claim.bound


_WEAKEST_FIRST: Sequence[Outcome] = ("refuted", "untested", "undecided", "confirmed")


def _weakest(claim: Claim, verdicts: Sequence[Verdict]) -> Verdict:
    """Return the weakest verdict: a claim about several entries is refuted if one of them is.

    It is confirmed if all are. With an entry missing it is untested, unless another refutes it. Of
    equal outcomes, the weakest has the least slack within its interval.
    """

    def strength(verdict: Verdict) -> tuple[int, float]:
        effect = verdict.effect
        ends = [] if effect is None else [effect.low, effect.high, effect.value]
        slacks = [slack(claim, end) for end in ends if end is not None]
        return _WEAKEST_FIRST.index(verdict.outcome), min(slacks, default=0.0)

    return min(verdicts, key=strength)
