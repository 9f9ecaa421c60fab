"""What rows and the papers' own numbers say to a claim.

On rows the verdict follows from an interval over the seeds: confirmed or refuted if the whole of it
says so, undecided if it reaches over the bound, untested where runs are missing. The numbers of the
paper are held against the claim by their sign alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from normbench.report import statistics
from normbench.report.claims import UNSIGNED, Claim, Pick, alternatives_of, weights_of
from normbench.report.statistics import CONFIDENCE, Estimate
from normbench.report.table import Cell, Table
from normbench.report.table_spec import Spec

Word = Literal["confirmed", "refuted", "undecided", "untested"]


@dataclass(frozen=True)
class Verdict:
    """What rows say to a claim.

    Args:
        word: the verdict.
        effect: the number that is compared with the bound, and its interval.
        reason: why it is untested or undecided, where the interval does not say it.
    """

    word: Word
    effect: Estimate | None = None
    reason: str = ""


def judge(claim: Claim, table: Table) -> Verdict:
    """The verdict of the rows of `table`; the whole claim, if * stands for several cells."""
    alternatives = list(alternatives_of(claim, table.spec))
    each = [alternatives] if claim.average else [[picks] for picks in alternatives]
    compared = [_weighted(claim, table.spec, own) for own in each]
    confidence = _of_all(len(compared))
    found = []
    for weights in compared:
        cells = {pick: _at(claim, table, pick) for pick in weights}
        if any(map(_without_memory, cells.values())):
            continue  # what does not fit has no speed to be compared, in the paper either
        found.append(_obstacle(claim, cells) or _compared(claim, cells, weights, confidence))
    nothing = Verdict("untested", reason="nothing of it fits into the memory of the device")
    return _together(claim, found or [nothing])


def _weighted(
    claim: Claim, spec: Spec, alternatives: Sequence[Sequence[Pick]]
) -> dict[Pick, float]:
    """What each cell counts in the mean of comparisons; one that is in several is one sample."""
    found: dict[Pick, float] = {}
    for picks in alternatives:
        for pick, weight in zip(picks, weights_of(claim, spec, picks), strict=True):
            found[pick] = found.get(pick, 0.0) + weight / len(alternatives)
    return found


def _of_all(several: int, confidence: float = CONFIDENCE) -> float:
    """Of each interval, for all of `several` to hold together (Bonferroni)."""
    return 1 - (1 - confidence) / several


def _compared(
    claim: Claim, cells: Mapping[Pick, Cell], weights: Mapping[Pick, float], confidence: float
) -> Verdict:
    values = [list(cell.values.values()) for cell in cells.values()]
    # The best of several was taken on these very numbers: its interval is one of all of them.
    confidence = _of_all(max(cell.among for cell in cells.values()), confidence)
    if claim.kind == "spread":
        effect = statistics.spread(values, confidence)
    elif claim.kind == "deviation":
        effect = statistics.deviation(values[0], confidence)
    else:
        parts = list(zip(weights.values(), values, strict=True))
        effect = statistics.contrast(parts, confidence)
    learned = any(cell.metric.learned for cell in cells.values())
    if learned and effect.low is not None and effect.low == effect.high:
        # Seeds that agree to the last digit have collapsed, or the test set is small.
        return Verdict("undecided", effect, "all seeds have the very same number")
    return _verdict(claim, effect)


@dataclass(frozen=True)
class Published:
    """What the paper's own numbers say to a claim.

    Args:
        holds: whether they have the sign that the claim asks for.
        effect: of several cells the weakest.
        unverified: one of the numbers is not in the text of the paper that we have.
    """

    holds: bool
    effect: float
    unverified: bool


def as_published(claim: Claim, spec: Spec) -> Published | None:
    """The paper's numbers held against its claim, by their sign; None without numbers."""
    effects = []
    unverified = False
    for picks in alternatives_of(claim, spec):
        if claim.metric is not None:
            return None
        numbers = [(spec.published or {}).get(pick) for pick in picks]
        values = [number.value for number in numbers if number and number.value is not None]
        if claim.kind == "deviation":
            values = [number.error for number in numbers if number and number.error is not None]
        if len(values) < len(picks):
            continue
        unverified |= any(number.unverified for number in numbers if number)
        if claim.kind == "spread":
            effects.append(max(values) - min(values))
        else:
            weights = weights_of(claim, spec, picks)
            effects.append(sum(w * v for w, v in zip(weights, values, strict=True)))
    if not effects:
        return None
    if claim.average:
        effects = [fmean(effects)]
    holds = [_holds(claim, round(effect, 6)) for effect in effects]
    worst = max(effects, key=abs) if claim.kind in ("alike", *UNSIGNED) else min(effects)
    return Published(all(holds), round(worst, 6), unverified)


def _at(claim: Claim, table: Table, pick: Pick) -> Cell:
    index = [column.label for column in table.columns].index(pick[1])
    cell = table.lines[pick[0]][index]
    return replace(cell, metric=claim.metric) if claim.metric else cell


def _without_memory(cell: Cell) -> bool:
    """Its runs did not fit, and what it is about is no accuracy."""
    return not cell.metric.learned and not cell.values and "oom" in {r.status for r in cell.behind}


def _obstacle(claim: Claim, cells: Mapping[Pick, Cell]) -> Verdict | None:
    """Why cells cannot be compared."""
    for (row, column), cell in cells.items():
        name = f"{' '.join(row)}, {' '.join(column)}"
        if reason := next((r.reason for r in cell.behind if r.status == "impossible"), ""):
            return Verdict("untested", reason=f"{name}: {reason}")
        if cell.lost:
            runs = "a run" if cell.lost == 1 else f"{cell.lost} runs"
            return Verdict("undecided", reason=f"{name}: {runs} ended without a number")
        if not cell.values:
            return Verdict("untested", reason=f"no runs of {name}")
    if _one_computation(list(cells.values())) or (
        claim.flat and any(_same_by_construction(cell) for cell in cells.values())
    ):
        return Verdict(
            "untested",
            reason="these cells share a computation, so that they are alike says nothing",
        )
    return None


def _one_computation(cells: Sequence[Cell]) -> bool:
    """Whether what was computed once stands in several of the cells."""
    known: set[str] = set()
    for cell in cells:
        own = {run.computation or run.shared_with or run.id for run in cell.runs}
        if own & known:
            return True
        known |= own
    return False


def _same_by_construction(cell: Cell) -> bool:
    return cell.shared or any(
        run.batch_independent and run.protocol == "fixed_global_batch" for run in cell.behind
    )


def _verdict(claim: Claim, effect: Estimate) -> Verdict:
    if effect.low is None or effect.high is None:
        return Verdict("undecided", effect, "one seed has no interval; more, as seed=0,1,2, have")
    if claim.kind in ("alike", *UNSIGNED):
        inside = -claim.bound <= effect.low and effect.high <= claim.bound
        outside = effect.low > claim.bound or effect.high < -claim.bound
    elif claim.kind == "not_lower":
        inside, outside = effect.low >= -claim.bound, effect.high < -claim.bound
    else:
        inside, outside = effect.low > claim.bound, effect.high <= claim.bound
    word: Word = "confirmed" if inside else "refuted" if outside else "undecided"
    return Verdict(word, effect)


def _holds(claim: Claim, effect: float) -> bool:
    if claim.kind in ("alike", *UNSIGNED):
        return abs(effect) <= claim.bound
    return effect >= -claim.bound if claim.kind == "not_lower" else effect > claim.bound


_ORDER: Sequence[Word] = ("refuted", "untested", "undecided", "confirmed")


def _together(claim: Claim, verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim about several cells: refuted if one is, confirmed if all are; the weakest.

    With a cell missing it is untested, whatever the others leave open.
    """
    return min(
        verdicts,
        key=lambda each: (
            _ORDER.index(each.word),
            _slack(claim, each.effect) if each.effect else 0.0,
        ),
    )


def _slack(claim: Claim, effect: Estimate) -> float:
    """How far the interval, or without one the effect, stays on the claim's side of its bound."""
    low = effect.value if effect.low is None else effect.low
    high = effect.value if effect.high is None else effect.high
    if claim.kind in ("alike", *UNSIGNED):
        return claim.bound - max(abs(low), abs(high))
    return low + claim.bound if claim.kind == "not_lower" else low - claim.bound
