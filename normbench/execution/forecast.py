"""Forecast of verdicts: the chance to be decided, and the interval, with further seeds.

The numbers of further seeds are drawn from normal distributions with the mean and the standard
deviation of the seeds that an entry has, as if the present estimate were the truth. The report's
own judge decides each draw, so its corrections and the rule of planned seeds hold.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from statistics import fmean, median, stdev

from normbench.execution.additions import (
    Addition,
    Additions,
    complete_plan,
    parts,
    share_out,
    share_seeds,
    with_additions,
)
from normbench.report.claim_results import ClaimResult, Verdict
from normbench.report.planned_seeds import configuration
from normbench.report.power import POWER
from normbench.report.table import Entry
from normbench.report.table_spec import Position
from normbench.report.verdicts import Comparison, comparisons, judge_comparisons, judge_each
from normbench.results import Row

MOST_SEEDS = 50  # of an entry
REPETITIONS = 200  # a chance of 80 % has a standard error of 3 points

DECIDED = ("confirmed", "refuted")


@dataclass(frozen=True)
class Forecast:
    """A verdict with further seeds: its chance to be decided, and its median half width.

    The chance is None if no entry has two seeds that tell how they vary; the half width is None
    without an interval.
    """

    chance: float | None
    half_width: float | None


class Prospect:
    """A verdict of a report on runs, and what further seeds would make of it.

    Args:
        result: the verdict.
        missing: what the entries need that have no runs at all.
    """

    def __init__(self, result: ClaimResult, missing: Additions | None = None) -> None:
        assert result.table is not None
        self.result, self.table = result, result.table
        self.missing = missing or {}
        self.comparisons = comparisons(result.claim, result.table)
        self.entries = {
            place: entry for each in self.comparisons for place, entry in each.entries.items()
        }
        self.forecasts: dict[frozenset[tuple[str, frozenset[int], bool]], Forecast] = {}

    @property
    def decided(self) -> bool:
        return self.result.verdict.outcome in DECIDED

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval that the report shows."""
        return _half_width(self.result.verdict)

    @cached_property
    def configurations(self) -> frozenset[str]:
        """The configurations of all runs behind the verdict, and of those that it lacks."""
        return frozenset(self.missing) | frozenset(
            configuration(part.runs[0])
            for entry in self.entries.values()
            for part in parts(entry)
            if part.runs
        )

    @cached_property
    def undecided_entries(self) -> dict[Position, Entry]:
        """The entries of the comparisons that are undecided."""
        verdicts = judge_each(self.result.claim, self.comparisons)
        return {
            place: entry
            for each, verdict in zip(self.comparisons, verdicts, strict=True)
            if verdict is not None and verdict.outcome == "undecided"
            for place, entry in each.entries.items()
        }

    @cached_property
    def obstacle(self) -> str:
        """The reason why further seeds are not proposed, as a part of a sentence, or ""."""
        entries = [*self.undecided_entries.values()]
        rows = [row for entry in self.entries.values() for row in entry.source_runs]
        effect = self.result.verdict.effect
        if any(entry.metric.hardware for entry in self.entries.values()):
            return "about speed or memory, which `normbench.probe speed` measures"
        if any(entry.failed for entry in entries):
            return "with a run that ended without a number"
        if effect is not None and effect.low is not None and effect.low == effect.high:
            return "whose seeds all gave the same number"
        if any("init_from" in row.config for row in rows):
            return "whose runs begin with the networks of others"
        if any(not part.runs for entry in entries for part in parts(entry)):
            return "about differences of differences"
        return ""

    @cached_property
    def deviations(self) -> dict[Position, float | None]:
        """The standard deviation over seeds of each entry.

        An entry with one seed has the median one of the others, or else of the table.
        """
        own = {place: _deviation(entry) for place, entry in self.entries.items()}
        metrics = {entry.metric.label for entry in self.entries.values()}
        of_table = [
            _deviation(entry) for entry in self.table.entries if entry.metric.label in metrics
        ]
        measured = [each for each in own.values() if each is not None]
        measured = measured or [each for each in of_table if each is not None]
        typical = median(measured) if measured else None
        return {place: typical if each is None else each for place, each in own.items()}

    def propose(self, hours: Callable[[Row], float]) -> dict[str, Addition]:
        """Return the seeds to add; nothing if `MOST_SEEDS` of an entry would not suffice.

        The planned number of seeds comes first, because it alone has an interval of 95 %. Beyond
        it, as many as decide the verdict with a chance of `POWER`, if the estimate is true.
        """
        entries = [*self.undecided_entries.values()]
        if self.missing:
            return dict(self.missing)
        if planned := complete_plan(entries):
            return planned
        deviations = [self.deviations[place] or 0.0 for place in self.undecided_entries]
        sizes = share_seeds(entries, deviations, hours)
        few, enough = 1, MOST_SEEDS
        if self._is_underpowered(share_out(sizes, enough)):
            return {}
        while enough - few > 1:
            middle = (few + enough) // 2
            if self._is_underpowered(share_out(sizes, middle)):
                few = middle
            else:
                enough = middle
        return share_out(sizes, enough)

    def _is_underpowered(self, additions: Additions) -> bool:
        return (self.forecast(additions).chance or 0.0) < POWER

    def forecast(self, additions: Additions) -> Forecast:
        """Return the forecast with additions, of which some may be of other verdicts."""
        key = frozenset(
            (name, additions[name].seeds, additions[name].one_by_one)
            for name in self.configurations & additions.keys()
        )
        if self.missing:
            filled = self.missing.keys() <= additions.keys()
            return Forecast(None if filled else 0.0, None)
        if not key:
            return Forecast(float(self.decided), self.half_width)
        if key not in self.forecasts:
            self.forecasts[key] = self._simulate(additions)
        return self.forecasts[key]

    def _simulate(self, additions: Additions) -> Forecast:
        samples = {
            place: _Sample(*with_additions(entry, additions), self.deviations[place])
            for place, entry in self.entries.items()
        }
        drawn_from = [sample for sample in samples.values() if sample.seeds]
        if any(sample.deviation is None or not sample.measured for sample in drawn_from):
            return Forecast(None, None)
        generator = Random(zlib.crc32(f"{self.result.claim.name} {self.table.slug}".encode()))
        verdicts = []
        for _ in range(REPETITIONS):
            drawn = {place: sample.draw(generator) for place, sample in samples.items()}
            compared = [
                Comparison({place: drawn[place] for place in each.entries}, each.weights)
                for each in self.comparisons
            ]
            verdicts.append(judge_comparisons(self.result.claim, compared))
        widths = [width for width in map(_half_width, verdicts) if width is not None]
        decided = sum(verdict.outcome in DECIDED for verdict in verdicts)
        return Forecast(decided / REPETITIONS, median(widths) if widths else None)


@dataclass(frozen=True)
class _Sample:
    """An entry with the rows of further seeds, whose numbers are drawn."""

    entry: Entry
    seeds: frozenset[int]
    deviation: float | None

    @cached_property
    def measured(self) -> dict[int, float]:
        return {s: v for s, v in self.entry.values.items() if s not in self.seeds}

    def draw(self, generator: Random) -> Entry:
        """Return the entry with drawn numbers of the further seeds beside those measured."""
        if not self.seeds:
            return self.entry
        mean, deviation = fmean(self.measured.values()), self.deviation or 0.0
        new = {seed: generator.gauss(mean, deviation) for seed in sorted(self.seeds)}
        # As of a difference, whose numbers are not those of single rows either.
        return replace(self.entry, differences=self.measured | new)


def _deviation(entry: Entry) -> float | None:
    values = [*entry.values.values()]
    return stdev(values) if len(values) > 1 else None


def _half_width(verdict: Verdict) -> float | None:
    effect = verdict.effect
    if effect is None or effect.low is None or effect.high is None:
        return None
    return (effect.high - effect.low) / 2
