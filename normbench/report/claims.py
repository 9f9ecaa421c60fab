"""Claims of the papers, held against rows and against the papers' own numbers.

A claim is a comparison of cells of a table. On rows its verdict follows from an interval over the
seeds: confirmed or refuted if the whole of it says so, undecided if it reaches over the bound,
untested where runs are missing. The papers' numbers are held against it by their sign alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from math import log2
from statistics import fmean
from typing import Any, Literal

from normbench.errors import BadInput, choose_from
from normbench.report import statistics
from normbench.report.metrics import METRICS, Metric
from normbench.report.spec import Label, Spec
from normbench.report.statistics import CONFIDENCE, Estimate
from normbench.report.table import Cell, Table

Word = Literal["confirmed", "refuted", "undecided", "untested"]
KINDS = ("higher", "not_lower", "alike", "spread", "deviation", "more", "rises", "falls")
UNSIGNED = ("spread", "deviation")  # of these effects both ends are at least 0
Pick = tuple[Label, Label]  # row and column of a cell


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and the comparison that it stands for.

    Args:
        name: in its file.
        paper: who claims it.
        place: where in the paper.
        says: the sentence.
        tables: whose cells are compared, each table by itself.
        kind: higher and not_lower compare the first cell with the second (or with 0), `more` the
            difference of two cells with that of two others; alike asks for a difference of at most
            `bound`, spread that a row of cells lies within `bound`, deviation that the standard
            deviation over the seeds of a cell is at most `bound`; rises and falls ask for the sign
            of the slope over the logarithm of the images per worker.
        picks: the cells; a word with * stands for several rows or columns, and the claim for each.
        bound: in the unit of the metric.
        average: over what * stands for, the mean is meant and not each of them.
        metric: that is compared, if it is not what the table prints.
    """

    name: str
    paper: str
    place: str
    says: str
    tables: tuple[str, ...]
    kind: str
    picks: tuple[Pick, ...]
    bound: float = 0.0
    average: bool = False
    metric: Metric | None = None

    @property
    def flat(self) -> bool:
        """Whether it is about a row being flat, which one computation is by construction."""
        return self.kind in ("spread", "rises", "falls")


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


def claims(file: str, raw: Mapping[str, Any], specs: Mapping[str, Spec]) -> list[Claim]:
    """The claims of a file of reports/claims/.

    Args:
        file: its name.
        raw: its content.
        specs: all tables by name.

    Raises:
        BadInput: a claim is about something that is not there.
    """
    found = []
    for name, entry in raw["claims"].items():
        try:
            claim = _claim(name, str(raw["paper"]), dict(entry))
            for table in claim.tables:
                if table not in specs:
                    raise ValueError(f"table {table} is unknown; {choose_from(table, specs)}")
                for picks in _alternatives(claim, specs[table]):
                    _weights(claim, specs[table], picks)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"reports/claims/{file}.yaml, {name}: {error}") from error
        found.append(claim)
    return found


def judge(claim: Claim, table: Table) -> Verdict:
    """The verdict of the rows of `table`; the whole claim, if * stands for several cells."""
    alternatives = list(_alternatives(claim, table.spec))
    confidence = CONFIDENCE
    if claim.average:
        compared = [_averaged(claim, table.spec, alternatives)]
    else:
        compared = [_weighted(claim, table.spec, picks) for picks in alternatives]
        confidence = _of_all(len(compared))
    found = []
    for weights in compared:
        cells = {pick: _at(claim, table, pick) for pick in weights}
        if any(map(_without_memory, cells.values())):
            continue  # what does not fit has no speed to be compared, in the paper either
        found.append(_obstacle(claim, cells) or _compared(claim, cells, weights, confidence))
    nothing = Verdict("untested", reason="nothing of it fits into the memory of the device")
    return _together(claim, found or [nothing])


def _weighted(claim: Claim, spec: Spec, picks: Sequence[Pick]) -> dict[Pick, float]:
    """The cells of a comparison and what each counts in its effect."""
    found: dict[Pick, float] = {}
    for pick, weight in zip(picks, _weights(claim, spec, picks), strict=True):
        found[pick] = found.get(pick, 0.0) + weight
    return found


def _averaged(
    claim: Claim, spec: Spec, alternatives: Sequence[Sequence[Pick]]
) -> dict[Pick, float]:
    """The mean of all comparisons as one; a cell that is in several of them is one sample."""
    found: dict[Pick, float] = {}
    for picks in alternatives:
        for pick, weight in _weighted(claim, spec, picks).items():
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
    for picks in _alternatives(claim, spec):
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
            weights = _weights(claim, spec, picks)
            effects.append(sum(w * v for w, v in zip(weights, values, strict=True)))
    if not effects:
        return None
    if claim.average:
        effects = [fmean(effects)]
    holds = [_holds(claim, round(effect, 6)) for effect in effects]
    worst = max(effects, key=abs) if claim.kind in ("alike", *UNSIGNED) else min(effects)
    return Published(all(holds), round(worst, 6), unverified)


def _claim(name: str, paper: str, entry: dict[str, Any]) -> Claim:
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise ValueError(f"a claim has one of {', '.join(KINDS)}")
    picks = tuple((_label(row), _label(column)) for row, column in entry.pop(kinds[0]))
    metric = entry.pop("metric", None)
    if metric is not None and metric not in METRICS:
        raise ValueError(f"metric={metric} is unknown; {choose_from(metric, METRICS)}")
    found = Claim(
        name=name,
        paper=paper,
        place=entry.pop("place"),
        says=entry.pop("says"),
        tables=tuple(entry.pop("tables")),
        kind=kinds[0],
        picks=picks,
        bound=float(entry.pop("bound", 0.0)),
        average=entry.pop("average", False),
        metric=METRICS[metric] if metric else None,
    )
    for key in entry:
        known = [*Claim.__dataclass_fields__, *KINDS]
        raise ValueError(f"{key} is no key of a claim; {choose_from(key, known)}")
    wanted = {
        "higher": (1, 2),
        "not_lower": (1, 2),
        "alike": (1, 2),
        "deviation": (1,),
        "more": (4,),
    }.get(kinds[0])
    if wanted and len(picks) not in wanted:
        raise ValueError(f"{kinds[0]} compares {' or '.join(map(str, wanted))} cells")
    return found


def _label(words: Any) -> Label:
    return tuple(map(str, words)) if isinstance(words, list) else (str(words),)


def _alternatives(claim: Claim, spec: Spec) -> Iterator[tuple[Pick, ...]]:
    """The cells of a claim with every word that * can stand for, the same one in all cells.

    For kinds that take a row of cells these are one alternative.

    Raises:
        ValueError: the table has no such row or column.
    """
    assert spec.fixed is not None
    rows, columns = ([place.label for place in axis] for axis in spec.fixed)
    matching = [
        [
            (row, column)
            for row, column in product(rows, columns)
            if _matches(pick[0], row) and _matches(pick[1], column)
        ]
        for pick in claim.picks
    ]
    for pick, found in zip(claim.picks, matching, strict=True):
        if not found:
            raise ValueError(f"{spec.name} has no cell {' '.join(pick[0])}, {' '.join(pick[1])}")
    if claim.flat:
        yield tuple(cell for found in matching for cell in found)
        return
    several = [len(found) for found in matching if len(found) > 1]
    if len(set(several)) > 1:
        raise ValueError("* stands for different numbers of cells")
    for index in range(several[0] if several else 1):
        yield tuple(found[index] if len(found) > 1 else found[0] for found in matching)


def _matches(wanted: Label, label: Label) -> bool:
    if wanted == ("*",):
        return True
    return len(wanted) == len(label) and all(
        fnmatchcase(own, word) for word, own in zip(wanted, label, strict=True)
    )


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
            return Verdict("undecided", reason=f"{name}: {cell.lost} runs ended without a number")
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


def _weights(claim: Claim, spec: Spec, picks: Sequence[Pick]) -> list[float]:
    """What each cell counts in the effect."""
    if claim.kind == "more":
        return [1.0, -1.0, -1.0, 1.0]
    if claim.kind in UNSIGNED:
        return [1.0] * len(picks)
    if claim.kind not in ("rises", "falls"):
        return [1.0, -1.0][: len(picks)]
    x = [log2(_batch(spec, pick)) for pick in picks]
    center = fmean(x)
    total = sum((each - center) ** 2 for each in x)
    sign = 1.0 if claim.kind == "rises" else -1.0
    return [sign * (each - center) / total for each in x]


def _batch(spec: Spec, pick: Pick) -> int:
    """Images per worker of a cell, which its row or its column says.

    Raises:
        ValueError: neither does.
    """
    assert spec.fixed is not None
    for axis, label in zip(spec.fixed, pick, strict=True):
        for place in axis:
            if place.label == label and place.batch is not None:
                return place.batch
    raise ValueError(f"{' '.join(pick[0])}, {' '.join(pick[1])} is not about images per worker")


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


_ORDER: Sequence[Word] = ("refuted", "undecided", "untested", "confirmed")


def _together(claim: Claim, verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim about several cells: refuted if one is, confirmed if all are; the weakest."""
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
