"""Choose the seeds that decide most verdicts per hour, and make cells of them.

A candidate is what one verdict needs. Its gain is the expected number of verdicts that it decides:
of all claims about the same runs, less those that were decided and may no longer be, because more
seeds than planned widen their intervals to 99.9 %.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from normbench.config.cells import Cell, Settings
from normbench.config.compose import compose
from normbench.config.row_words import words_of
from normbench.errors import BadInput, Impossible
from normbench.execution.cost_model import Computation, Costs
from normbench.report.additions import Addition, Additions, configuration, merge, subtract
from normbench.report.forecast import WANTED, Forecast, Prospect
from normbench.results import Row

UNKNOWN = 0.5  # chance that is counted where no seeds tell how results vary
FEWEST_HOURS = 1e-4  # that are counted, so that seeds without a training of their own have a rate


class Trainings:
    """The cells of further seeds, and their hours.

    Args:
        rows: finished runs, whose speeds are used.
        words: of the command line, which are added to those of each run and change no number.
    """

    def __init__(self, rows: Iterable[Row], words: Sequence[str]) -> None:
        self.costs, self.words = Costs(rows), words
        self.composed: dict[str, tuple[Cell, Settings]] = {}
        self.found: dict[tuple[str, int], tuple[str, Computation]] = {}

    def compose(self, row: Row) -> tuple[Cell, Settings]:
        """Return the cell of a run, and the settings of the words that are added.

        Raises:
            BadInput: its words make no run, or another one than when it was trained.
        """
        key = configuration(row)
        if key not in self.composed:
            cells, settings = compose([*words_of(row), *self.words])
            if settings is None or [cell.id for cell in cells] != [row.id]:
                raise BadInput(
                    f"norm={row.norm} batch={row.batch} would be trained with other options than "
                    f"the run {row.id}: the code has changed, or a word of this command line "
                    "changes numbers; only words such as data.root=FOLDER or jobs=2 can be added"
                )
            self.composed[key] = cells[0], settings
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
        try:
            return self.costs.find(self.compose(row)[0])[1].hours
        except Impossible as reason:
            raise BadInput(f"norm={row.norm} batch={row.batch} cannot work: {reason}") from None

    def computations(self, additions: Additions) -> dict[str, Computation]:
        """Return what is trained for additions, by a key that cells share if one serves them."""
        found = dict(
            self._find(name, each.row, seed)
            for name, each in additions.items()
            for seed in sorted(each.seeds)
        )
        return {key: each for key, each in found.items() if not each.finished}

    def _find(self, name: str, row: Row, seed: int) -> tuple[str, Computation]:
        if (name, seed) not in self.found:
            cell = replace(self.compose(row)[0], seed=seed)
            self.found[name, seed] = self.costs.find(cell)
        return self.found[name, seed]

    def hours(self, additions: Additions) -> float:
        """Return the hours of additions, one training after the other."""
        return sum(each.hours for each in self.computations(additions).values())

    def units(self, additions: Additions) -> list[str]:
        """Return whose hours these are, as "hours of 1 x cpu, as measured"."""
        return sorted({each.rate.hours for each in self.computations(additions).values()})


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


def choose(
    wanted: Sequence[Prospect],
    candidates: Mapping[Prospect, Additions],
    trainings: Trainings,
    budget: float,
) -> list[Step]:
    """Choose among candidates, by gain per hour, until no further one fits.

    Args:
        wanted: verdicts whose gain counts.
        candidates: what undecided ones of them need.
        trainings: cells and hours.
        budget: hours.
    """
    steps: list[Step] = []
    chosen: dict[str, Addition] = {}
    spent, left = 0.0, dict(candidates)
    while True:
        best: tuple[float, Prospect, float] | None = None
        for prospect, additions in left.items():
            merged = merge(chosen, additions)
            hours = trainings.hours(merged) - spent
            if spent + hours > budget or decides(prospect, chosen):
                continue
            rate = gain(wanted, chosen, merged) / max(hours, FEWEST_HOURS)
            if rate > 0 and (best is None or rate > best[0]):
                best = rate, prospect, hours
        if best is None:
            return steps
        _, prospect, hours = best
        merged = merge(chosen, left.pop(prospect))
        steps.append(Step(prospect, subtract(merged, chosen), hours, prospect.forecast(merged)))
        chosen, spent = merged, spent + hours


def decides(prospect: Prospect, additions: Additions) -> bool:
    """Return True if additions, perhaps for other verdicts, suffice for this one."""
    return _value(prospect.forecast(additions)) >= WANTED


def gain(wanted: Sequence[Prospect], before: Additions, after: Additions) -> float:
    """Return the expected number of verdicts that further seeds decide, less those they lose."""
    changed = {key for key in after if before.get(key) != after[key]}
    return sum(
        _value(prospect.forecast(after)) - _value(prospect.forecast(before))
        for prospect in wanted
        if prospect.configurations & changed
    )


def _value(forecast: Forecast) -> float:
    return UNKNOWN if forecast.chance is None else forecast.chance
