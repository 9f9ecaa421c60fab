"""The text that `normbench.decide` prints: what is proposed, and the commands that train it."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from textwrap import wrap

from normbench.config.cells import title_of
from normbench.config.row_words import words_of
from normbench.errors import printable
from normbench.execution.additions import Additions
from normbench.execution.cost_model import SHORTEST, round_number
from normbench.execution.forecast import Prospect
from normbench.execution.more_seeds import Step
from normbench.report.claim_results import ClaimResult

COLUMNS = (
    "Half width: of the interval now, and its median in simulations with the seeds. Chance: that "
    "the verdict is confirmed or refuted then, if the present means and standard deviations are "
    "true."
)
HEAD = ("claim", "table", "configuration", "seeds", "hours", "half width", "chance")


def proposal_lines(steps: Sequence[Step], units: Sequence[str]) -> list[str]:
    """Return a table of the proposal: a line for each configuration to which seeds are added.

    Below it stand the units of the hours, and the meaning of the columns.
    """
    lines: list[tuple[str, ...]] = [HEAD]
    for step in steps:
        titles = _titles(step.additions)
        result = step.prospect.result
        head = [result.claim.name, result.spec.name]
        end = [format_hours(step.hours), _half_widths(step), _chance(step)]
        for name, addition in step.additions.items():
            before, after = len(addition.trained), len(addition.trained | addition.seeds)
            lines.append((*head, titles[name], f"{before} → {after}", *end))
            head, end = ["", ""], ["", "", ""]
    seeds = sum(len(each.seeds) for step in steps for each in step.additions.values())
    hours = format_hours(sum(step.hours for step in steps))
    lines.append(("all", "", "", f"+{seeds}", hours, "", ""))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(f"{word:<{width}}" for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    text = f"{' and '.join(units) or 'hours'}. {COLUMNS}"
    return [*table, "", *wrap(text[:1].upper() + text[1:], 100)]


def _titles(additions: Additions) -> dict[str, str]:
    """Return normalizer, batch and the words in which configurations differ, of each of them."""
    words = {
        name: [word for word in title_of(vars(each.row)).split() if not word.startswith("seed=")]
        for name, each in additions.items()
    }
    common = set.intersection(*map(set, words.values()))
    return {
        name: printable(" ".join([*of[:2], *(word for word in of[2:] if word not in common)]))
        for name, of in words.items()
    }


def format_hours(hours: float) -> str:
    """Return hours as they are printed."""
    return f"<{SHORTEST}" if hours < SHORTEST else round_number(hours)


def _half_widths(step: Step) -> str:
    """Return half the width of the interval now and then."""
    decimals = step.prospect.result.decimals + 1
    now, then = (
        "none" if width is None else f"{width:.{decimals}f}"
        for width in (step.prospect.half_width, step.forecast.half_width)
    )
    return f"{now} → {then}"


def _chance(step: Step) -> str:
    chance = step.forecast.chance
    return "unknown" if chance is None else f"{100 * chance:.0f} %"


def commands(additions: Additions, words: Sequence[str]) -> Iterator[str]:
    """Yield the commands that train additions; `words` are added to each.

    A command names all seeds of its cells, of which the finished ones are skipped: its rows tell
    how many these are. Seeds that complete a plan of single seeds have a command each.
    """
    batches: dict[tuple[tuple[str, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for addition in additions.values():
        of_cell = tuple(
            word
            for word in words_of(addition.row)
            if word.partition("=")[0] not in ("batch", "seed")
        )
        listed = sorted(addition.trained | addition.seeds)
        of_commands = [[seed] for seed in sorted(addition.seeds)]
        for each in of_commands if addition.one_by_one else [listed]:
            batches[of_cell, tuple(each)].append(addition.row.batch)
    for (of_cell, seeds), numbers in batches.items():
        batch = f"batch={','.join(map(str, sorted(numbers)))}"
        grid = ["python", "-m", "normbench", "-m", *of_cell, batch, f"seed={_seeds(seeds)}"]
        yield shlex.join([*grid, *words])


def _seeds(seeds: Sequence[int]) -> str:
    """Return seeds as they are typed, as 0,2,5 or range(0,9)."""
    if len(seeds) > 3 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"range({seeds[0]},{seeds[-1] + 1})"
    return ",".join(map(str, seeds))


def loss_line(prospect: Prospect, chance: float) -> str:
    """Return that a decided verdict may be undecided with further seeds, as a line."""
    result = prospect.result
    return (
        f"may be undecided then: {result.claim.name}, {result.spec.name}, which is "
        f"{result.verdict.outcome} now and stays decided with a chance of {100 * chance:.0f} %"
    )


def verdict_line(before: ClaimResult, after: ClaimResult) -> str:
    """Return a verdict before and after a training, as a line."""
    verdicts = [f"{each.verdict.outcome} {each.effect}".rstrip() for each in (before, after)]
    return f"{before.claim.name}, {before.spec.name}: {' → '.join(verdicts)}"
