"""Claims and recommendations about entries whose means are known, with normal noise.

`Scenario`s differ in the claim, the truth and the standard deviations of entries. The report's
own judge decides; `verdict_rates` counts the outcomes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normbench.config.files import CLAIMS, TABLES, load, names
from normbench.report.claims import Claim, claims
from normbench.report.recommendation import recommendations
from normbench.report.table import Entry, Table
from normbench.report.table_spec import Label, Position, TableSpec, spec
from normbench.report.verdicts import judge
from support.rows import row

BATCHES = (2, 4, 8, 16, 32, 64)
ROWS = ("A", "B")
#: Distance of two means, in standard deviations, that Welch's test notices in 4 of 5 cases.
EFFECTS = {3: 3.6, 5: 2.1, 10: 1.4}
NOISY = 20.0  # standard deviation of one entry, where the others have 1
FAR = 1000.0

#: Claims about every network, and the tables with standard deviations of the same numbers.
EVERY_NETWORK = {
    "gn_pn_above_gn": "proxy_norm_7",
    "gn_pn_above_gn_efficientnet": "proxy_norm_8",
    "gn_pn_matches_bn": "proxy_norm_7",
}

_TABLE = {
    "title": "Simulated", "metric": "test_top1",
    "rows": {name: {"norm": name} for name in ROWS},
    "columns": {batch: {"batch": batch} for batch in BATCHES},
}  # fmt: skip
SPEC = spec("simulated", _TABLE)
Place = tuple[str, int]
FIRST_A, FIRST_B = ("A", BATCHES[0]), ("B", BATCHES[0])
Values = NDArray[np.float64]  # (entry, seed)
Decide = Callable[[Values, str], str]


@dataclass(frozen=True)
class Scenario:
    """Entries with known means, how they are judged, and the outcome that is counted."""

    subject: str  # kind of claim, or of recommendation
    rate: str
    counted: str  # outcome
    means: Sequence[float]
    deviations: Sequence[float]
    decide: Decide  # from values (entry, seed) and the name of a sweep to an outcome


def _entries(values: Values, sweep: str) -> list[Entry]:
    source = Entry((row(sweep=sweep, protocol="fixed_workers"),), SPEC.metric)
    return [
        Entry((), SPEC.metric, differences=dict(enumerate(line)), sources=(source,))
        for line in values.tolist()
    ]


# Claims


def claim_scenarios(effect: float, noisy: bool) -> Iterator[Scenario]:
    """Yield the scenarios of every kind of claim; the first entry is noisy, or none is."""
    deviations = {(name, batch): 1.0 for name in ROWS for batch in BATCHES}
    if noisy:
        deviations[FIRST_A] = NOISY

    def unit(*places: Place) -> float:
        """The effect, in the standard deviations of these entries."""
        return effect * math.sqrt(sum(deviations[each] ** 2 for each in places) / 2)

    def scenarios(subject: str, entry: Mapping[str, Any], truths: Truths) -> Iterator[Scenario]:
        decide = _judge_by(_claim(entry))
        for rate, means in truths.items():
            yield Scenario(
                subject, rate, "refuted" if "refut" in rate else "confirmed",
                [means.get(place, 0.0) for place in deviations], [*deviations.values()], decide,
            )  # fmt: skip

    yield from _pair_scenarios(scenarios, unit)
    yield from _row_scenarios(scenarios, unit)
    if not noisy:
        # The bound that is met exactly; power: against one three times as large.
        for bound, rates in ((1.0, (FALSE, WRONG)), (3.0, (POWER,))):
            entry = {"deviation": [["A", BATCHES[1]]], "bound": bound}
            yield from scenarios("deviation", entry, {rate: {} for rate in rates})


FALSE, WRONG, POWER, REFUTE = (
    "false confirmations", "false refutations", "power to confirm", "power to refute",
)  # fmt: skip
Truths = Mapping[str, Mapping[Place, float]]  # means that are not 0, by the rate
_Scenarios = Callable[[str, Mapping[str, Any], Truths], Iterator[Scenario]]


def _pair_scenarios(scenarios: _Scenarios, unit: Callable[..., float]) -> Iterator[Scenario]:
    """Yield comparisons of two or four entries, at their bounds and far from them."""
    pair, size = [list(FIRST_A), list(FIRST_B)], unit(FIRST_A, FIRST_B)
    at_bound: dict[str, Mapping[Place, float]] = {FALSE: {}, WRONG: {}}
    yield from scenarios("higher", {"higher": pair}, at_bound | {POWER: {FIRST_A: size}})
    for kind in ("not_lower", "alike"):
        below = {FIRST_A: -size}
        truths = {FALSE: below, WRONG: below, POWER: {}}
        yield from scenarios(kind, {kind: pair, "bound": size}, truths)
    four = [*pair, ["A", BATCHES[1]], ["B", BATCHES[1]]]
    size = unit(*((name, batch) for name, batch in four))
    yield from scenarios("more", {"more": four}, at_bound | {POWER: {FIRST_A: size}})


def _row_scenarios(scenarios: _Scenarios, unit: Callable[..., float]) -> Iterator[Scenario]:
    """Yield claims about six columns: every one higher, a trend, a flat row.

    The bound of a flat row is met exactly by two of its entries; that it is wrongly refuted is
    simulated for equal means and a bound of 0. Its power to confirm is for equal means.
    """
    every = {"higher": [["A", "*"], ["B", "*"]]}
    sizes = {("A", batch): 1.5 * unit(("A", batch), ("B", batch)) for batch in BATCHES}
    one_false = dict.fromkeys(sizes, FAR) | {("A", BATCHES[-1]): 0.0}
    truths = {FALSE: one_false, WRONG: {}, POWER: sizes}
    yield from scenarios("higher in every of 6", every, truths)
    height, rising = 0.0, {FIRST_A: 0.0}
    for fewer, more in pairwise(BATCHES):
        height += 1.5 * unit(("A", fewer), ("A", more))
        rising["A", more] = height
    steps = {("A", batch): FAR * place for place, batch in enumerate(BATCHES)}
    level_end = steps | {("A", BATCHES[-1]): steps["A", BATCHES[-2]]}
    truths = {FALSE: level_end, WRONG: {}, POWER: rising}
    yield from scenarios("rises over 6", {"rises": [["A", "*"]]}, truths)
    flat = [["A", "*"]]
    bound = 1.5 * unit(FIRST_A, ("A", BATCHES[1]))
    # The noisy entry is in the middle, so that the quiet ones decide.
    ends = {("A", BATCHES[-2]): -bound / 2, ("A", BATCHES[-1]): bound / 2}
    yield from scenarios("spread of 6", {"spread": flat, "bound": bound}, {FALSE: ends, POWER: {}})
    off = {("A", BATCHES[-1]): 1.5 * unit(("A", BATCHES[1]), ("A", BATCHES[2]))}
    yield from scenarios("spread of 6", {"spread": flat}, {WRONG: {}, REFUTE: off})


def _claim(entry: Mapping[str, Any]) -> Claim:
    raw = {"says": "So.", "place": "here", "tables": [SPEC.name], **entry}
    (parsed,) = claims("simulated", {"paper": "None", "claims": {"it": raw}}, {SPEC.name: SPEC})
    return parsed


def _judge_by(claim: Claim, known: TableSpec = SPEC) -> Decide:
    labels = [line.label for line in known.rows]

    def decide(values: Values, sweep: str) -> str:
        entries, width = _entries(values, sweep), len(known.columns)
        lines = {label: entries[k * width : (k + 1) * width] for k, label in enumerate(labels)}
        return judge(claim, Table(known, {}, [], lines)).outcome

    return decide


def paper_scenarios() -> Iterator[Scenario]:
    """Yield claims about every network of Proxy Norm, where the paper's own numbers are the truth.

    Means and standard deviations are those that the paper prints, 0.0 being less than 0.05.
    """
    raw = load(CLAIMS / "proxy_norm.yaml")
    papers = {name: spec(name, load(TABLES / f"{name}.yaml")) for name in names(TABLES)}
    for claim in claims("proxy_norm", raw, papers):
        if claim.name in EVERY_NETWORK:
            printed = papers[EVERY_NETWORK[claim.name]].published
            yield Scenario(
                f"{claim.name}, true as printed", POWER, "confirmed",
                [number.value or 0.0 for number in printed.values()],
                [max(0.03, number.error or 0.0) for number in printed.values()],
                partial(judge_values, claim, papers[claim.tables[0]], [*printed]),
            )  # fmt: skip


def judge_values(
    claim: Claim,
    known: TableSpec,
    places: Sequence[Position],
    values: Values,
    sweep: str,
) -> str:
    """Return the verdict on a claim if the entries at `places` have `values` (entry, seed)."""
    entries = dict(zip(places, _entries(values, sweep), strict=True))
    nothing = Entry((), known.metric)
    lines = {
        line.label: [entries.get((line.label, column.label), nothing) for column in known.columns]
        for line in known.rows
    }
    return judge(claim, Table(known, {}, [], lines)).outcome


# The recommendation


def recommendation_scenarios(effect: float, noisy: bool) -> Iterator[Scenario]:
    """Yield recommendations among 2, 5 and 10 normalizers.

    All are equal, and any that is called worse is an error; or the last is worse, and the noisy one
    is far below, so that its noise is all that it contributes.
    """
    for arms in (2, 5, 10):
        subject = f"recommendation of {arms}"
        deviations = [NOISY if noisy else 1.0, *[1.0] * (arms - 1)]
        yield Scenario(subject, FALSE, "worse", [0.0] * arms, deviations, _worse)
        # Of two, the noisy one is one of the pair.
        size = effect * (NOISY if noisy and arms == 2 else 1.0)
        means = [-FAR if noisy and arms > 2 else 0.0, *[0.0] * (arms - 2), -size]
        yield Scenario(subject, POWER, "worse", means, deviations, _last_is_worse)


_AXES = replace(SPEC, axes=("norm", "batch"), columns=SPEC.columns[:1])


def _names_of_worse(values: Values, sweep: str) -> list[str]:
    lines: dict[Label, list[Entry]] = {
        (f"n{k:02}",): [entry] for k, entry in enumerate(_entries(values, sweep))
    }
    (column,) = recommendations(Table(_AXES, {}, [], lines))
    return [each.name for each in column.worse]


def _worse(values: Values, sweep: str) -> str:
    return "worse" if _names_of_worse(values, sweep) else "undecided"


def _last_is_worse(values: Values, sweep: str) -> str:
    last = f"n{len(values) - 1:02}"
    return "worse" if last in _names_of_worse(values, sweep) else "undecided"
