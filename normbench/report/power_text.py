"""Text about the power of a sweep, for `normbench.cost` and for the heads of sweeps."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from textwrap import fill, wrap

from normbench.errors import join_words
from normbench.report.claim_power import UNKNOWN_DEVIATION, ClaimPower
from normbench.report.power import POWER, smallest_effect
from normbench.report.statistics import CONFIDENCE
from normbench.report.table_spec import Position

WIDTH = 100
SEEDS = (3, 5, 10)
MEANING = (
    "Chance: that the report confirms the claim, if the paper's printed means are the true ones "
    "and results are normal. Shows: the smallest difference whose two-sided 95 % interval excludes "
    "0 in 80 % of cases, of the entries that vary most. The last column: the fewest seeds that "
    "give the claim a chance of 80 %, if the file of the sweep plans them (docs/statistics.md)."
)
UNKNOWN = (
    "Standard deviation unknown: neither finished runs nor the paper give it. Two seeds of each "
    "entry below runs={} make it known."
)
UNPLANNED = (
    "This number of seeds is not the planned one, so intervals are of 99.9 %; "
    "the chances are for these."
)
UNVERIFIED = "?: with a number that we could not verify in the text of the paper."
_FIRST: Position = (("first",), ("",))
_SECOND: Position = (("second",), ("",))


def power_lines(powers: Sequence[ClaimPower], runs: str) -> Iterator[str]:
    """Yield a table of the claims of a sweep, and notes; `runs` is the folder of finished runs."""
    tables: dict[tuple[str, str], list[ClaimPower]] = defaultdict(list)
    for each in powers:
        tables[each.spec.name, each.setting].append(each)
    several = len(tables) > len({name for name, _ in tables})
    for (name, setting), of_table in tables.items():
        place = setting if several else of_table[0].spec.source
        yield from ("", *wrap(f"Claims of table {name} ({place})", WIDTH), "")
        width = max(len(each.claim.name) for each in of_table)
        yield _line("", ("seeds", "chance", "shows", f"seeds for {_percent(POWER)}"), width)
        for each in of_table:
            yield _line(each.claim.name, _values(each), width)
            yield from wrap(each.claim.sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield ""
    yield from (fill(note, WIDTH) for note in _notes(powers, runs))


def _values(power: ClaimPower) -> tuple[str, str, str, str]:
    chance = "–" if power.chance is None else _percent(power.chance)
    shows = "–" if power.difference is None else f"{power.difference:.2g}"
    if power.chance is not None and power.chance >= POWER:
        enough = "enough"
    else:
        enough = str(power.enough or power.obstacle)
    return str(power.seeds), chance + " ?" * power.unverified, shows, enough


def _percent(chance: float) -> str:
    return f"{100 * chance:.0f} %"


def _line(claim: str, values: tuple[str, str, str, str], width: int) -> str:
    seeds, chance, shows, enough = values
    return f"{claim:<{width}} {seeds:>6} {chance:>8} {shows:>8}  {enough}"


def _notes(powers: Sequence[ClaimPower], runs: str) -> Iterator[str]:
    for source in dict.fromkeys(each.source for each in powers if each.source):
        yield f"Standard deviations over seeds: {source}."
    if any(each.obstacle == UNKNOWN_DEVIATION for each in powers):
        yield UNKNOWN.format(runs)
    if any(each.confidence != CONFIDENCE for each in powers):
        yield UNPLANNED
    if any(each.unverified for each in powers):
        yield UNVERIFIED
    yield MEANING


def grid_line(deviation: float, seeds: int) -> str:
    """Return the smallest differences of two accuracies in a grid without claims.

    Args:
        deviation: standard deviation over seeds of each.
        seeds: of the grid.
    """
    numbers = sorted({*SEEDS, seeds} - {1})
    deviations = {_FIRST: deviation, _SECOND: deviation}
    shown = [smallest_effect({_FIRST: 1.0, _SECOND: -1.0}, deviations, each) for each in numbers]
    texts = [f"{each:.2g} with {n}" for each, n in zip(shown, numbers, strict=True)]
    return fill(
        "Smallest difference of two test accuracies, in points, that n seeds show: "
        f"{join_words(texts)} (standard deviation {deviation:.2g} over seeds of finished runs; "
        "two-sided 95 %, in 80 % of cases).",
        WIDTH,
    )


def head_lines(powers: Sequence[ClaimPower]) -> list[str]:
    """Return the comment in the head of a sweep on claims that its seeds leave undecided, if any.

    Claims that the sweep's seeds confirm with a chance of 80 % are not named, nor are those whose
    chance is unknown, unless there is one seed, which decides nothing.
    """
    weak = [each for each in powers if each.chance is not None and each.chance < POWER]
    text = ""
    if weak:
        numbers = [f"{each.enough or each.obstacle} for {each.claim.name}" for each in weak]
        numbers[0] = numbers[0].replace(" for ", " seeds for ", 1)
        text = f"Power: {', '.join(numbers)} (80 % chance to confirm; normbench.cost)."
    elif powers and all(each.seeds < 2 for each in powers):
        text = (
            "Power: one seed decides no claim; the paper's numbers do not tell how many would "
            "(normbench.cost)."
        )
    return wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")
