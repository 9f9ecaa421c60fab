"""Printout of a command: the recommendation, then the tables.

On a terminal rich draws it to the terminal's width. Elsewhere it is Markdown.
"""

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from normbench.errors import join_words, printable
from normbench.report.claim_results import ClaimResult
from normbench.report.exports import table_markdown
from normbench.report.footnotes import footnotes
from normbench.report.markdown import escape_markdown
from normbench.report.recommendation import Recommendation, recommendations
from normbench.report.recommendation_text import describe, speed_command, verdict_texts
from normbench.report.table import Table

if TYPE_CHECKING:
    from rich.console import Console

ONE_SEED = "No ranking{}: with one seed, differences may be due to chance; seed=0,1,2 trains three."
INTERVALS = (
    "In brackets the interval of the difference to the best; those of one batch hold for all pairs "
    'together with 95 %. After "images": for other test images, too. "Not significantly worse": it '
    "contains 0, and its upper end says how much worse the mean may be."
)
TIME_MEASURED = "Time is that of a training step, measured on {} by `normbench.probe speed`."
TIME = (
    "Time is not compared, because runs that train beside others slow each other down; "
    "`{}` measures it."
)
CLAIMS_TITLE = "The papers' claims, tested"
LABELS = 24  # letters of labels that are not broken on a narrow terminal
_JOINED = "\N{NO-BREAK SPACE}"  # where a line must not end
#: A command; a normalizer with its mean; a difference with its interval; images with theirs.
_UNBROKEN = re.compile(
    r"`[^`]*`|(?<=[;:] )[^;:]+ \(\d+\)|\S+ (?:lower|higher) \[[^\]]*\]|images \[[^\]]*\]"
)


def print_tables(tables: Sequence[Table], console: "Console | None") -> None:
    """Print the recommendation of each table that compares normalizers, then all tables.

    `console` draws on a terminal; without one the output is Markdown.
    """
    print_recommendations(tables, console)
    for table in tables:
        if console is None:
            print(f"\n{table_markdown(table)}")
        else:
            _draw_table(table, console)


def print_recommendations(tables: Sequence[Table], console: "Console | None") -> None:
    """Print for each table that compares normalizers the best ones at every batch."""
    explain = True
    for table in tables:
        # A normalizer that was trained alone is compared with none.
        columns = [each for each in recommendations(table) if len(each.tested) > 1]
        if not columns:
            continue
        notes = [*_notes(table, columns, explain=explain)]
        explain &= INTERVALS not in notes
        if console is None:
            print(f"\n{_recommendation_markdown(table, columns, notes)}")
        else:
            _draw_recommendation(table, columns, notes, console)


def print_verdicts(results: Sequence[ClaimResult], console: "Console | None") -> None:
    """Print the verdict on each claim, with its effect and intervals."""
    lines = []
    for each in results:
        effect = each.effect and f" Effect: {each.effect}."
        reason = each.verdict.reason and f" Reason: {each.verdict.reason}."
        sensitivity = each.sensitivity and f" {each.sensitivity}."
        lines.append(
            f"{each.verdict.outcome} ({each.claim.name}, {each.spec.name}): {each.claim.sentence}"
            f"{effect}{reason}{sensitivity}"
        )
    if console is None:
        print("\n".join([f"\n**{CLAIMS_TITLE}**\n", *(f"- {escape_markdown(x)}" for x in lines)]))
    else:
        _draw_title(CLAIMS_TITLE, console)
        _draw_notes(lines, console)


def _title(table: Table) -> str:
    return f"Which normalizer, by {table.spec.metric.label}: {table.setting_text}"


def _best(column: Recommendation, decimals: int, space: str = " ") -> str:
    """Return the best normalizer and its mean, with `space` between them."""
    if not column.good:
        return "no normalizer has a result for every seed"
    return describe(column.good[0], decimals, space)


def _notes(table: Table, columns: Sequence[Recommendation], *, explain: bool) -> Iterator[str]:
    """Yield what must be known to read the recommendation, and how to get what it lacks.

    `explain` what the intervals are; the first of several recommendations does.
    """
    ranked = [column for column in columns if column.ranked]
    compared = [
        each for column in ranked for each in (*column.good, *column.worse) if each.distance
    ]  # fmt: skip
    if compared and explain:
        yield INTERVALS
    if unranked := [str(column.batch) for column in columns if not column.ranked]:
        yield ONE_SEED.format(f" with {', '.join(unranked)} images per worker" if ranked else "")
    candidates = [each for column in ranked for each in column.candidates]
    if devices := sorted({each.time.device for each in candidates if each.time}):
        yield TIME_MEASURED.format(join_words(devices))
    elif candidates:
        yield TIME.format(speed_command(table, columns))


def _recommendation_markdown(
    table: Table, columns: Sequence[Recommendation], notes: Sequence[str]
) -> str:
    lines = [f"**{escape_markdown(_title(table))}**", ""]
    for column in (each for each in columns if each.ranked):
        best = _best(column, table.spec.decimals)
        head = f"batch={column.batch}: {f'{column.best_mean} ' if column.good else ''}{best}"
        parts = [head, *verdict_texts(column, table.spec.decimals)]
        lines.append(f"- {escape_markdown('. '.join(parts))}.")
    return "\n".join([*lines, *(f"- {printable(note)}" for note in notes)]) + "\n"


def _draw_recommendation(
    table: Table, columns: Sequence[Recommendation], notes: Sequence[str], console: "Console"
) -> None:
    _draw_title(_title(table), console)
    decimals = table.spec.decimals
    if ranked := [column for column in columns if column.ranked]:
        bests = [_best(column, decimals, "\n") for column in ranked]
        taken = len("batch") + max(len(line) for best in bests for line in best.splitlines())
        width = max(20, console.width - taken - 6)  # two spaces beside each column
        lines = []
        for column, best in zip(ranked, bests, strict=True):
            others = [
                line for text in verdict_texts(column, decimals) for line in _wrap(text, width)
            ]
            lines.append([str(column.batch), best, "\n".join(others)])
        side = "higher" if ranked[0].lower_is_better else "lower"
        head = ["batch", ranked[0].best_mean, f"others: how much {side} than the best"]
        _draw_grid(head, lines, console)
    _draw_notes(notes, console)


def _wrap(text: str, width: int, first: str = "") -> list[str]:
    """Return a text in lines with a hanging indent; commands and comparisons are not cut."""
    joined = _UNBROKEN.sub(lambda part: part[0].replace(" ", _JOINED), printable(text))
    lines = wrap(
        joined, width, initial_indent=first, subsequent_indent="  ",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    return [line.replace(_JOINED, " ") for line in lines]


def _draw_table(table: Table, console: "Console") -> None:
    _draw_title(table.heading, console)
    header, body = table.grid()
    if _width(header, body) > console.width:
        # The number of seeds and the paper's number below the mean, not wherever a line is full.
        body = [[label, *(re.sub(r" (?=[(\[])", "\n", e) for e in line)] for label, *line in body]
    _draw_grid(header, body, console)
    _draw_notes(footnotes(table), console)


def _width(header: Sequence[str], body: Sequence[Sequence[str]]) -> int:
    """Return the width of a grid with two spaces between columns."""
    columns = zip(header, *body, strict=True)
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    return sum(widths) + 2 * len(widths)


def _draw_title(title: str, console: "Console") -> None:
    from rich.text import Text

    console.print()
    console.print(Text("\n".join(wrap(printable(title), console.width)), "bold"))
    console.print()


def _draw_grid(header: Sequence[str], body: Sequence[Sequence[str]], console: "Console") -> None:
    # Imported here: piped output needs no rich.
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    space = int(_width(header, body) <= console.width)  # beside the space that parts columns
    grid = Grid(box=SIMPLE_HEAD, padding=(0, space, 0, 0), pad_edge=False, show_edge=False)
    labels = max(len(line[0]) for line in (header, *body))
    for index, word in enumerate(header):
        width = None if index else min(labels, LABELS)
        grid.add_column(Text(printable(word)), overflow="fold", min_width=width)
    for line in body:
        # As Text: brackets are no markup, and names have no control characters.
        grid.add_row(*(Text("\n".join(map(_line, cell.split("\n")))) for cell in line))
    console.print(grid)
    console.print()


def _line(text: str) -> str:
    """Return a line of a cell without control characters, its indentation kept."""
    return " " * (len(text) - len(text.lstrip())) + printable(text)


def _draw_notes(notes: Sequence[str], console: "Console") -> None:
    from rich.text import Text

    for note in notes:
        # With soft_wrap a command that is wider than the terminal can be copied as one line.
        console.print(Text("\n".join(_wrap(note, console.width, "- "))), soft_wrap=True)
