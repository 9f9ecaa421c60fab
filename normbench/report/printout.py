"""Printout of a command: which normalizer, then the tables.

On a terminal rich draws it to the terminal's width. Elsewhere it is Markdown.
"""

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from normbench.config.files import as_typed, default_choices
from normbench.errors import printable
from normbench.report.exports import table_markdown
from normbench.report.footnotes import footnotes
from normbench.report.markdown import escape_markdown
from normbench.report.recommendation import Advice, Candidate, comparisons
from normbench.report.statistics import MINUS
from normbench.report.table import Table

if TYPE_CHECKING:
    from rich.console import Console

ONE_SEED = "No ranking{}: with one seed, differences may be due to chance; seed=0,1,2 trains three."
INTERVALS = (
    "In brackets the interval of the difference to the best; those of one batch hold for all pairs "
    'together with 95 %. "Not significantly worse": it contains 0, and its upper end says how much '
    "lower the mean may be."
)
TIME = (
    "Time is not compared, because runs that train beside others slow each other down; "
    "`{}` measures it."
)
MOST_NORMS = 4  # in the command that measures time
LABELS = 24  # letters of labels that are not broken on a narrow terminal
_JOINED = "\N{NO-BREAK SPACE}"  # where a line must not end
_UNBROKEN = re.compile(r"`[^`]*`|(?<=[;:] )[^;:]+ by \S+ \[[^\]]*\]")  # a command, a comparison


def print_tables(tables: Sequence[Table], console: "Console | None") -> None:
    """Print the answer of each table that compares normalizers, then all tables.

    `console` draws on a terminal; without one the output is Markdown.
    """
    print_answers(tables, console)
    for table in tables:
        if console is None:
            print(f"\n{table_markdown(table)}")
        else:
            _draw_table(table, console)


def print_answers(tables: Sequence[Table], console: "Console | None") -> None:
    """Print for each table that compares normalizers the best ones at every batch."""
    answered = [(table, advised) for table in tables if (advised := comparisons(table))]
    for index, (table, advised) in enumerate(answered):
        notes = [*_notes(table, advised, explain=index == 0)]
        if console is None:
            print(f"\n{_answer_markdown(table, advised, notes)}")
        else:
            _draw_answer(table, advised, notes, console)


def _title(table: Table) -> str:
    return f"Which normalizer, by {table.spec.metric.label}: {table.setting_text}"


def _best(column: Advice, decimals: int) -> str:
    """Return the best normalizer and its mean, in two lines."""
    if not column.good:
        return "none has a result\nfor every seed"
    best = column.good[0]
    return f"{best.name}\n{best.mean_text(decimals)} ({best.seeds}){_memory(best)}"


def _others(column: Advice, decimals: int) -> list[str]:
    """Return how the other normalizers compare with the best, a line for each verdict."""
    lower = {
        "Not significantly worse": [_lower(each, decimals) for each in column.good[1:]],
        "Significantly worse": [_lower(each, decimals) for each in column.worse],
        "Not testable with one seed or equal results": [
            f"{each.name} {each.mean:.{decimals}f}" for each in column.unsure
        ],
        "Unstable over seeds": [
            each.name for each in (*column.good, *column.worse) if each.unstable
        ],
        "Without a result": column.failed,
    }
    return [f"{verdict}: {'; '.join(names)}" for verdict, names in lower.items() if names]


def _lower(candidate: Candidate, decimals: int) -> str:
    """Return how much lower than the best it is, as "bn by 3.4 [1.1, 5.7]"."""
    effect = candidate.lower
    assert effect is not None
    numbers = (effect.value, effect.low, effect.high)
    value, low, high = (f"{each:.{decimals}f}".replace("-", MINUS) for each in numbers)
    return f"{candidate.name} by {value} [{low}, {high}]{_memory(candidate)}"


def _memory(candidate: Candidate) -> str:
    return "" if candidate.memory is None else f", {candidate.memory:.2f}x memory"


def _notes(table: Table, advised: Sequence[Advice], *, explain: bool) -> Iterator[str]:
    """Yield what must be known to read the answer, and how to get what it lacks.

    `explain` what the intervals are; the first of several answers does.
    """
    ranked = [column for column in advised if column.ranked]
    compared = [
        each for column in ranked for each in (*column.good, *column.worse) if each.lower
    ]  # fmt: skip
    if compared and explain:
        yield INTERVALS
    if not all(each.planned for each in compared):
        names = ", ".join(dict.fromkeys(each.name for each in compared if not each.planned))
        yield f"With 99.9 %, because the number of seeds is not the planned one: {names}."
    if unranked := [str(column.batch) for column in advised if not column.ranked]:
        yield ONE_SEED.format(f" with {', '.join(unranked)} images per worker" if ranked else "")
    if ranked:
        yield TIME.format(_speed_command(table, advised))


def _speed_command(table: Table, advised: Sequence[Advice]) -> str:
    """Return the command that measures the time of the best normalizers in this network."""
    names = dict.fromkeys(name.split(" ")[0] for column in advised for name in column.tested[:1])
    names |= dict.fromkeys(name.split(" ")[0] for column in advised for name in column.tested)
    words = [f"norm={','.join([*names][:MOST_NORMS])}", f"batch={advised[0].batch}"]
    defaults = default_choices()
    words += [
        as_typed(key, value)
        for key in ("model", "data")
        if (value := table.setting.get(key, defaults[key])) != defaults[key]
    ]
    options = str(table.setting.get("options", "")).split()
    words += [word for word in options if word.startswith("model.")]
    return " ".join(["python -m normbench.probe speed", *words])


def _answer_markdown(table: Table, advised: Sequence[Advice], notes: Sequence[str]) -> str:
    lines = [f"**{escape_markdown(_title(table))}**", ""]
    for column in (each for each in advised if each.ranked):
        best = _best(column, table.spec.decimals).replace("\n", " ")
        parts = [f"batch={column.batch}: best {best}", *_others(column, table.spec.decimals)]
        lines.append(f"- {escape_markdown('. '.join(parts))}.")
    return "\n".join([*lines, *(f"- {printable(note)}" for note in notes)]) + "\n"


def _draw_answer(
    table: Table, advised: Sequence[Advice], notes: Sequence[str], console: "Console"
) -> None:
    _draw_title(_title(table), console)
    decimals = table.spec.decimals
    if ranked := [column for column in advised if column.ranked]:
        bests = [_best(column, decimals) for column in ranked]
        taken = len("batch") + max(len(line) for best in bests for line in best.splitlines())
        width = max(20, console.width - taken - 6)  # two spaces beside each column
        lines = []
        for column, best in zip(ranked, bests, strict=True):
            others = [line for text in _others(column, decimals) for line in _wrap(text, width)]
            lines.append([str(column.batch), best, "\n".join(others)])
        _draw_grid(["batch", "best", "others: how much lower than the best"], lines, console)
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
