"""Seeds that are added to the runs of a table, and the seeds that an entry lacks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice

from normbench.report.planned_seeds import configuration, is_planned, next_planned
from normbench.report.table import Entry
from normbench.results import Row


@dataclass(frozen=True)
class Addition:
    """Seeds that are added to those of one configuration.

    Args:
        row: a run of the configuration.
        trained: seeds of its runs.
        seeds: that are added.
        one_by_one: each has a command of its own; else one command names all seeds, as a plan does.
    """

    row: Row
    trained: frozenset[int]
    seeds: frozenset[int]
    one_by_one: bool = False

    @property
    def command_seeds(self) -> int:
        """Seeds of the cell in the command that trains them, as the new rows will have it."""
        return 1 if self.one_by_one else len(self.trained | self.seeds)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The new rows, with the numbers of `row` in place of their own."""
        return tuple(
            replace(
                self.row, id=f"{self.row.id} {seed}", seed=seed, computation="", shared_with=None,
                command_seeds=self.command_seeds,
            )
            for seed in sorted(self.seeds - self.trained)
        )  # fmt: skip


#: Additions by their `configuration`.
Additions = Mapping[str, Addition]


def merge(first: Additions, second: Additions) -> dict[str, Addition]:
    """Return the seeds of both."""
    merged = dict(first)
    for key, addition in second.items():
        before = merged.get(key, addition)
        larger = max(before, addition, key=lambda each: len(each.seeds))
        merged[key] = replace(larger, seeds=before.seeds | addition.seeds)
    return merged


def subtract(after: Additions, before: Additions) -> dict[str, Addition]:
    """Return the seeds that are added after others, which count as trained."""
    rest = {}
    for key, addition in after.items():
        earlier = before[key].seeds if key in before else frozenset()
        if addition.seeds - earlier:
            rest[key] = replace(
                addition, trained=addition.trained | earlier, seeds=addition.seeds - earlier
            )
    return rest


def with_additions(entry: Entry, additions: Additions) -> tuple[Entry, frozenset[int]]:
    """Return an entry with the rows of additions, and the seeds that it has only by them."""

    def extend_runs(part: Entry) -> Entry:
        addition = additions.get(configuration(part.runs[0])) if part.runs else None
        return part if addition is None else replace(part, runs=part.runs + addition.rows)

    if not entry.sources:
        extended = extend_runs(entry)
        return extended, _seeds(extended) - entry.values.keys()
    sources = tuple(map(extend_runs, entry.sources))
    common = frozenset.intersection(*map(_seeds, sources))
    return replace(entry, sources=sources), common - entry.values.keys()


def _seeds(entry: Entry) -> frozenset[int]:
    return frozenset(row.seed for row in entry.runs)


def bring_to(entry: Entry, number: int, *, one_by_one: bool = False) -> dict[str, Addition]:
    """Return what brings an entry to this number of seeds; of a difference, both of its sources."""
    trained = [(part.runs[0], _seeds(part)) for part in parts(entry)]
    common = frozenset.intersection(*(of_part for _, of_part in trained))
    free = (seed for seed in count() if seed not in common)
    seeds = frozenset(islice(free, max(0, number - len(entry.values))))
    return {
        configuration(row): Addition(row, of_part, seeds - of_part, one_by_one)
        for row, of_part in trained
        if seeds - of_part
    }


def parts(entry: Entry) -> Sequence[Entry]:
    """Return the entries whose runs are behind an entry: itself, or those of a difference."""
    return entry.sources or (entry,)


def complete_plan(entries: Sequence[Entry]) -> dict[str, Addition]:
    """Return what brings all entries to a planned number of seeds, the next one if they have one.

    Nothing if a planned number cannot be reached, because an entry has more seeds than planned, or
    if it is reached and no larger one is planned.
    """
    missing = [each for each in entries if not is_planned(len(each.values), each.source_runs)]
    plans = [(entry, next_planned(entry)) for entry in missing or entries]
    additions: dict[str, Addition] = {}
    for entry, plan in plans:
        if plan is not None:
            number, of_command = plan
            additions = merge(additions, bring_to(entry, number, one_by_one=of_command == 1))
        elif missing:
            return {}
    return additions


def share_out(sizes: Sequence[tuple[Entry, float]], largest: float) -> dict[str, Addition]:
    """Return additions in proportion to the `sizes` of entries, of which the largest is 1.

    No entry loses seeds: one with more than its share gets none.
    """
    additions: dict[str, Addition] = {}
    for entry, size in sizes:
        additions = merge(additions, bring_to(entry, round(largest * size)))
    return additions


def share_seeds(
    entries: Sequence[Entry], deviations: Sequence[float], hours: Callable[[Row], float]
) -> list[tuple[Entry, float]]:
    """Return the relative numbers of seeds that narrow an interval most per hour.

    They are proportional to the standard deviation over seeds, and to the inverse root of the hours
    of a seed: optimum allocation (Cochran 1977, Sampling Techniques, section 5.5).
    """
    costs = [sum(hours(part.runs[0]) for part in parts(entry)) for entry in entries]
    least = min((cost for cost in costs if cost > 0), default=1.0)
    shares = [
        deviation / max(cost, least) ** 0.5
        for deviation, cost in zip(deviations, costs, strict=True)
    ]
    return [
        (entry, share / max(shares) if max(shares) else 1.0)
        for entry, share in zip(entries, shares, strict=True)
    ]
