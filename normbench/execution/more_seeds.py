"""Choose the seeds that decide most verdicts per hour, and make cells of them.

A candidate is what one verdict needs. Its gain is the expected number of verdicts that it decides:
of all claims about the same runs, less those that were decided and may no longer be, because more
seeds than planned widen their intervals to 99.9 %. A narrower interval adds up to a tenth of a
verdict, in proportion to how much narrower it is.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from normbench.config.cells import Cell, Settings
from normbench.config.row_words import compose_again
from normbench.errors import BadInput, Impossible, count
from normbench.execution.additions import Addition, Additions, merge, subtract
from normbench.execution.cost_model import Computation, Costs
from normbench.execution.forecast import MOST_SEEDS, Forecast, Prospect
from normbench.execution.missing_cells import missing_cells, missing_places
from normbench.report.claim_results import ClaimResult
from normbench.report.planned_seeds import configuration
from normbench.report.power import POWER
from normbench.results import Row

UNKNOWN_CHANCE = 0.5  # where no entry has two seeds
WIDTH_WEIGHT = 0.1  # gain, in verdicts, of an interval that shrinks to a point
MIN_HOURS = 1e-4  # by which gains are divided; seeds that share another run's computation take none


class Trainings:
    """The cells of further seeds, and their hours.

    Args:
        rows: finished runs, whose speeds are used.
        words: of the command line, which are added to those of each run and change no number.
    """

    def __init__(self, rows: Iterable[Row], words: Sequence[str]) -> None:
        self.costs, self.words = Costs(rows), words
        self.composed: dict[str, tuple[Cell, Settings]] = {}
        self.known_computations: dict[tuple[str, int], tuple[str, Computation]] = {}

    def compose(self, row: Row) -> tuple[Cell, Settings]:
        """Return the cell of a run, and the settings of the words that are added.

        Raises:
            BadInput: its words make no run, or another one than when it was trained.
        """
        key = configuration(row)
        if key not in self.composed:
            self.composed[key] = compose_again(row, self.words)
        return self.composed[key]

    def cells(self, additions: Additions) -> list[Cell]:
        """Return the cells of additions, which know how many seeds their command has."""
        return [
            replace(self.compose(each.row)[0], seed=seed, command_seeds=each.command_seeds)
            for each in additions.values()
            for seed in sorted(each.seeds)
        ]

    def hours_of_seed(self, row: Row) -> float:
        """Return the hours of one seed more of the configuration of a run.

        Raises:
            BadInput: it cannot be trained again.
        """
        return self._find(configuration(row), row, row.seed)[1].hours

    def computations(self, additions: Additions) -> dict[str, Computation]:
        """Return what is trained for additions, by a key that cells share if one serves them."""
        computations = dict(
            self._find(name, each.row, seed)
            for name, each in additions.items()
            for seed in sorted(each.seeds)
        )
        return {key: each for key, each in computations.items() if not each.finished}

    def _find(self, name: str, row: Row, seed: int) -> tuple[str, Computation]:
        if (name, seed) not in self.known_computations:
            cell = replace(self.compose(row)[0], seed=seed)
            try:
                self.known_computations[name, seed] = self.costs.find(cell)
            except Impossible as reason:
                raise BadInput(f"norm={row.norm} batch={row.batch} cannot work: {reason}") from None
        return self.known_computations[name, seed]

    def hours(self, additions: Additions) -> float:
        """Return the hours of additions, one training after the other."""
        return sum(each.hours for each in self.computations(additions).values())

    def units(self, additions: Additions) -> list[str]:
        """Return whose hours these are, as "hours of 1 x cpu, as measured"."""
        return sorted({each.rate.hours for each in self.computations(additions).values()})


class Candidates:
    """Seeds for each undecided claim, and cells for claims that are untested for lack of a few.

    Args:
        judged: all verdicts of a report.
        wanted: those of them that are to be decided.
        trainings: cells and hours.

    Raises:
        BadInput: the words of the command line suit the runs of none.
    """

    def __init__(
        self, judged: Sequence[ClaimResult], wanted: Sequence[ClaimResult], trainings: Trainings
    ) -> None:
        self.additions: dict[Prospect, Additions] = {}
        self.left_out: Counter[str] = Counter()  # number of verdicts by the reason
        self.failures: list[BadInput] = []
        self.trainings = trainings
        self.prospects = [self._look_at(each, wanted) for each in judged if each.table is not None]
        self.wanted = [each for each in self.prospects if each.result in wanted]
        if self.failures and not self.additions:
            raise self.failures[0]

    def _look_at(self, result: ClaimResult, wanted: Sequence[ClaimResult]) -> Prospect:
        prospect = Prospect(result)
        if result not in wanted:
            return prospect
        try:
            if places := missing_places(result):
                self.trainings.compose(prospect.table.runs[0])  # which raises for unfit words
                prospect = Prospect(result, missing_cells(result, places, self.trainings.words))
            if prospect.missing or result.verdict.outcome == "undecided":
                self._add(prospect)
        except BadInput as error:
            self.failures.append(error)
            self.left_out[f"because {error}"] += 1
        return prospect

    def _add(self, prospect: Prospect) -> None:
        if prospect.obstacle:
            self.left_out[prospect.obstacle] += 1
            return
        additions = prospect.propose(self.trainings.hours_of_seed)
        self.trainings.hours(additions)  # which raises if one cannot be trained
        if additions:
            self.additions[prospect] = additions
        else:
            self.left_out[
                f"that even {MOST_SEEDS} seeds of an entry decide with a chance below {POWER:.0%}"
            ] += 1


@dataclass(frozen=True)
class Step:
    """The seeds that are proposed for one verdict.

    Args:
        prospect: the verdict.
        additions: seeds that no earlier step has.
        hours: of their trainings.
        forecast: of the verdict, with those of all earlier steps.
    """

    prospect: Prospect
    additions: Additions
    hours: float
    forecast: Forecast


def choose(candidates: Candidates, budget: float) -> list[Step]:
    """Choose among candidates, by gain per hour, until no further one fits into the hours."""
    steps: list[Step] = []
    chosen: dict[str, Addition] = {}
    spent, left = 0.0, dict(candidates.additions)
    while True:
        best: tuple[float, Prospect, float] | None = None
        for prospect, additions in left.items():
            merged = merge(chosen, additions)
            hours = candidates.trainings.hours(merged) - spent
            if spent + hours > budget or decides(prospect, chosen):
                continue
            rate = gain(candidates.wanted, chosen, merged) / max(hours, MIN_HOURS)
            if rate > 0 and (best is None or rate > best[0]):
                best = rate, prospect, hours
        if best is None:
            return steps
        _, prospect, hours = best
        merged = merge(chosen, left.pop(prospect))
        steps.append(Step(prospect, subtract(merged, chosen), hours, prospect.forecast(merged)))
        chosen, spent = merged, spent + hours


def refusals(candidates: Candidates, chosen: Additions, budget: float) -> list[str]:
    """Return why other candidates are not chosen, a part of a sentence for each reason."""
    harmful, needed = 0, []
    for prospect, additions in candidates.additions.items():
        merged = merge(chosen, additions)
        if decides(prospect, chosen) or merged == chosen:
            continue
        if gain(candidates.wanted, chosen, merged) > 0:
            needed.append(candidates.trainings.hours(merged))
        else:
            harmful += 1
    reasons = []
    if needed:
        least = ceil(min(needed) * 1000) / 1000
        reasons.append(
            f"{count(len(needed), 'further verdict')} would need more than hours={budget:g}; "
            f"hours={least:g} would do for the next"
        )
    if harmful:
        reasons.append(
            f"{count(harmful, 'verdict')} whose seeds would leave as many decided ones undecided; "
            "claim=NAME counts the named ones alone"
        )
    return reasons


def decides(prospect: Prospect, additions: Additions) -> bool:
    """Return True if additions, perhaps for other verdicts, suffice for this one."""
    return _chance(prospect.forecast(additions)) >= POWER


def gain(wanted: Sequence[Prospect], before: Additions, after: Additions) -> float:
    """Return the expected number of verdicts that further seeds decide, less those they lose.

    An interval that becomes narrower without deciding counts a little, too.
    """
    changed = {key for key in after if before.get(key) != after[key]}
    return sum(
        _value(prospect, after) - _value(prospect, before)
        for prospect in wanted
        if prospect.configurations & changed
    )


def _value(prospect: Prospect, additions: Additions) -> float:
    forecast = prospect.forecast(additions)
    now, then = prospect.half_width, forecast.half_width
    narrower = 0.0
    if then is not None and not prospect.decided:
        narrower = max(0.0, 1 - then / now) if now else 1.0
    return _chance(forecast) + WIDTH_WEIGHT * narrower


def _chance(forecast: Forecast) -> float:
    return UNKNOWN_CHANCE if forecast.chance is None else forecast.chance
