"""Verdicts on claims: confirmed, refuted, undecided or untested.

A verdict on rows follows from a confidence interval over the seeds: confirmed or refuted if the
whole interval lies on one side of the claim's bound, undecided if it contains the bound or there is
no interval, untested where rows are missing. The paper's own numbers are compared by sign only.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, get_args

from normbench.report import statistics
from normbench.report.claims import Claim, claim_alternatives, claim_weights
from normbench.report.planned_seeds import UNPLANNED, UNPLANNED_TEXT, confidence
from normbench.report.statistics import Effect, signed
from normbench.report.table import Entry, Table
from normbench.report.table_spec import Position, TableSpec

Outcome = Literal["confirmed", "refuted", "undecided", "untested"]

METHOD = (
    "A claim compares entries of a table. Its effect is the quantity compared with the bound: a "
    "difference, a difference of differences, the spread of a row (largest minus smallest mean) "
    "or a standard deviation. A trend must hold between every two neighbouring numbers of images "
    "per worker. The intervals are confidence intervals over seeds: of 95 % with the number of "
    "seeds that the file of the sweep names (3 without one), of 99.9 % with any other number, so "
    "that adding seeds until a claim is decided makes hardly more errors than one look. Variances "
    "may differ: Welch's for differences of means, also in tables that print medians; chi-square "
    "intervals for standard deviations. A claim that several comparisons all hold is confirmed if "
    "each of them alone is confirmed (an intersection-union test, Berger 1982). It is refuted if "
    "one of them is refuted by an interval that is Bonferroni-corrected for their number, because "
    "any of them may be the one that noise moves. The weakest is shown. A spread is treated in the "
    "same way: its upper end is the largest of all pairs' intervals, its lower end comes from "
    "Games and Howell's intervals for all pairs together. For the best of several entries the "
    "interval is Bonferroni-corrected. Seeds of two entries are not paired, because networks with "
    "different normalizers share little more than the seed. Where a row or column of the table "
    "itself is a difference, it has one value for each seed of both its entries, and the interval "
    "is Student's over these pairs; so are the intervals in the footnotes of a table. Confirmed or "
    "refuted: the whole interval lies on one side of the bound. Undecided: the interval contains "
    "the bound, or there is no interval because there is one seed or all seeds gave the same "
    "number. Untested: an entry has no runs, or the entries are equal by construction because "
    "they share a computation. As published: the sign of the paper's own numbers, without an "
    "interval; ? marks numbers that we could not verify in the text of the paper."
)


@dataclass(frozen=True)
class Verdict:
    """Verdict of rows on a claim, with the estimate that was compared with the bound.

    `reason` tells why the claim is untested or undecided, where the interval does not show it.
    """

    outcome: Outcome
    effect: Effect | None = None
    reason: str = ""


@dataclass(frozen=True)
class PublishedEffect:
    """Effect of a claim in the paper's own numbers; the weakest, if it is about several.

    `unverified`: one of the numbers could not be verified in the text of the paper.
    """

    holds: bool
    effect: float
    unverified: bool


@dataclass(frozen=True)
class ClaimResult:
    """A claim judged in one setting of one of its tables, by our rows and the paper's numbers."""

    claim: Claim
    spec: TableSpec
    table: Table | None  # None without rows
    verdict: Verdict
    published: PublishedEffect | None  # None if the paper prints no number

    @property
    def decimals(self) -> int:
        return (self.claim.metric or self.spec).decimals

    @property
    def setting(self) -> str:
        """The setting of the rows as typed, and whether it is the paper's."""
        if self.table is None:
            return "no runs"
        setting = self.table.setting_text
        return setting if self.table.deviations else f"the paper's: {setting}"

    @property
    def effect(self) -> str:
        """The effect and its interval as text."""
        effect = self.verdict.effect
        return "" if effect is None else effect.text(self.decimals)

    @property
    def seeds(self) -> str:
        return "" if self.verdict.effect is None else str(self.verdict.effect.seeds)

    @property
    def evidence(self) -> str:
        """Support of the claim by the paper's own numbers, as text."""
        if self.published is None:
            return "no number"
        word = "holds" if self.published.holds else "does not hold"
        mark = " ?" if self.published.unverified else ""
        return f"{word} ({signed(self.published.effect, self.decimals)}{mark})"


def judge_claims(
    claims: Sequence[Claim], specs: Mapping[str, TableSpec], tables: Sequence[Table]
) -> list[ClaimResult]:
    """Judge every claim in every setting of its tables; `specs` are all tables by name."""
    results = []
    for claim in claims:
        for name in claim.tables:
            published = judge_published(claim, specs[name])
            judged = [
                ClaimResult(claim, specs[name], table, judge(claim, table), published)
                for table in tables
                if table.spec.name == name and table.runs
            ]
            no_runs = Verdict("untested", reason="no runs of this table")
            results += judged or [ClaimResult(claim, specs[name], None, no_runs, published)]
    return results


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


def count_verdicts(results: Sequence[ClaimResult]) -> str:
    """Return the number of verdicts of each outcome as text."""
    outcomes = [result.verdict.outcome for result in results]
    return ", ".join(f"{outcomes.count(word)} {word}" for word in get_args(Outcome))


def group_claims(
    results: Sequence[ClaimResult],
) -> dict[str, dict[Claim, list[ClaimResult]]]:
    """Group results by paper and claim."""
    papers: dict[str, dict[Claim, list[ClaimResult]]] = {}
    for result in results:
        papers.setdefault(result.claim.paper, {}).setdefault(result.claim, []).append(result)
    return papers


def judge(claim: Claim, table: Table) -> Verdict:
    """Return the verdict of the rows of `table`, over all entries that * stands for."""
    alternatives = list(claim_alternatives(claim, table.spec))
    comparisons = [alternatives] if claim.average else [[picks] for picks in alternatives]
    weighted = [_mean_weights(claim, picks) for picks in comparisons]
    verdicts = []
    for weights in weighted:
        # An entry may be in several comparisons of a mean; it has one weight and one sample.
        entries = {pick: _entry_at(claim, table, pick) for pick in weights}
        if any(map(_out_of_memory, entries.values())):
            continue  # without a number there is no speed to compare, in the paper either
        obstacle = _obstacle(claim, entries)
        verdicts.append(obstacle or _judge_one(claim, entries, weights, len(weighted)))
    nothing = Verdict("untested", reason="none of these runs fits into the memory of the device")
    return _weakest(claim, verdicts or [nothing])


def _mean_weights(
    claim: Claim, alternatives: Sequence[Sequence[Position]]
) -> dict[Position, float]:
    """Return the weight of each entry in the mean of comparisons; a repeated entry has one."""
    total: dict[Position, float] = defaultdict(float)
    for picks in alternatives:
        for pick, weight in zip(picks, claim_weights(claim, picks), strict=True):
            total[pick] += weight / len(alternatives)
    return total


def _bonferroni(comparisons: int, level: float) -> float:
    """Return the confidence of each of several intervals that hold together with that of `level`.

    Bonferroni's correction (Dunn 1961).
    """
    return 1 - (1 - level) / comparisons


def _judge_one(
    claim: Claim,
    entries: Mapping[Position, Entry],
    weights: Mapping[Position, float],
    comparisons: int,
) -> Verdict:
    """Return the verdict on one of several comparisons, all of which the claim says hold.

    The claim is confirmed by an intersection-union test (Berger 1982): every comparison is tested
    at the full level. It is refuted by any of them, which needs Bonferroni's correction. Holm's
    would refute the same claims, as its first step is Bonferroni's.
    """
    level = confidence(entries.values())
    verdict = _compare(claim, entries, weights, level)
    if verdict.outcome == "refuted":
        verdict = _compare(claim, entries, weights, _bonferroni(comparisons, level))
    effect = verdict.effect
    if level == UNPLANNED and effect is not None and effect.low != effect.high:
        return replace(verdict, reason=UNPLANNED_TEXT)
    return verdict


def _compare(
    claim: Claim,
    entries: Mapping[Position, Entry],
    weights: Mapping[Position, float],
    level: float,
) -> Verdict:
    values = [list(entry.values.values()) for entry in entries.values()]
    # The best of several was chosen by these same numbers, so its interval covers all of them.
    level = _bonferroni(max(entry.among for entry in entries.values()), level)
    if claim.kind == "spread":
        effect = statistics.spread(values, level)
    elif claim.kind == "deviation":
        effect = statistics.std_interval(values[0], level)
    else:
        parts = list(zip(weights.values(), values, strict=True))
        effect = statistics.welch_contrast(parts, level)
    learned = any(entry.metric.learned for entry in entries.values())
    if learned and effect.low is not None and effect.low == effect.high:
        # Seeds that agree to the last digit have collapsed, or the test set is tiny.
        return Verdict("undecided", effect, "all seeds gave the same number")
    return _decide(claim, effect)


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


def _entry_at(claim: Claim, table: Table, pick: Position) -> Entry:
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
    equal = claim.flat and any(_equal_by_construction(entry) for entry in entries.values())
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


def _equal_by_construction(entry: Entry) -> bool:
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
    slack = _slack(claim, effect)
    return slack >= 0 if claim.two_sided or claim.kind == "not_lower" else slack > 0


def _slack(claim: Claim, effect: float) -> float:
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
        slacks = [_slack(claim, end) for end in ends if end is not None]
        return _WEAKEST_FIRST.index(verdict.outcome), min(slacks, default=0.0)

    return min(verdicts, key=strength)
