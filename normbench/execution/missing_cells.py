"""Cells for the entries without runs of an untested claim, made from runs of the same table.

A cell has the options of a run beside it, and those of its row and column of the table. The pivot
of the report says whether its run will be where it is missing, in the same setting.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from normbench.config.cells import format_value
from normbench.config.compose import compose
from normbench.config.row_words import words_of
from normbench.errors import BadInput
from normbench.execution.additions import Addition
from normbench.records.json_fields import flatten
from normbench.report.claim_results import ClaimResult
from normbench.report.claims import Claim
from normbench.report.pivot import tables
from normbench.report.planned_seeds import configuration
from normbench.report.table import Entry, Table
from normbench.report.table_spec import Header, Position, fits
from normbench.report.verdicts import comparisons, equal_by_construction
from normbench.results import Row

MOST_TRIED = 4  # runs from which a cell is made, until one suits


def missing_places(result: ClaimResult) -> list[Position]:
    """Return the entries without runs of an untested claim, if at least as many have runs.

    [] if runs would not make it testable, or entries are differences of others.
    """
    if result.table is None or result.verdict.outcome != "untested":
        return []
    entries = _entries(result.claim, result.table)
    if any(
        entry.sources
        or entry.failed  # which no other cell makes testable
        or (result.claim.about_row and equal_by_construction(entry))
        for entry in entries.values()
    ):
        return []
    missing = [place for place, entry in entries.items() if not entry.runs]
    return missing if 2 * len(missing) <= len(entries) else []


def _entries(claim: Claim, table: Table) -> dict[Position, Entry]:
    return {
        place: entry for each in comparisons(claim, table) for place, entry in each.entries.items()
    }


def missing_cells(
    result: ClaimResult, places: Sequence[Position], words: Sequence[str]
) -> dict[str, Addition]:
    """Return what fills missing places, with the seeds of the other entry that has most.

    Args:
        result: of the claim.
        places: its entries without runs.
        words: of the command line.

    Raises:
        BadInput: no cell suits one of them.
    """
    assert result.table is not None
    entries = _entries(result.claim, result.table).values()
    seeds = max((frozenset(entry.values) for entry in entries), key=len)
    additions = {}
    for place in places:
        row = _row_at(result.table, place, words)
        additions[configuration(row)] = Addition(row, frozenset(), seeds)
    return additions


def _row_at(table: Table, place: Position, words: Sequence[str]) -> Row:
    """Return a row without results whose run will be at `place`.

    Raises:
        BadInput: no run of the table has the other options of one.
    """
    for template in _templates(table, place)[:MOST_TRIED]:
        try:
            (cell,), _ = compose([*_words_at(table, place, template), *words])
        except BadInput:  # an option of the other normalizer, say
            continue
        row = Row(
            **cell.description(template.sweep), status="ok", devices=template.devices,
            cpu=template.cpu, stacked_seeds=template.stacked_seeds,
        )  # fmt: skip
        for pivoted in tables([table.spec], [*table.runs, row]):
            if row in _entry(pivoted, place).runs and table.runs[0] in pivoted.runs:
                return row
    name = " ".join([*place[0], *place[1]])
    raise BadInput(f"the missing cell {name} of {table.spec.name} does not follow from its runs")


def _templates(table: Table, place: Position) -> list[Row]:
    """Return a run of each configuration of the table, those of the same row and column first."""
    by_distance: list[tuple[int, str, Row]] = []
    for label, entries in table.lines.items():
        for column, entry in zip(table.columns, entries, strict=True):
            if entry.runs:
                distance = (label != place[0]) + (column.label != place[1])
                by_distance.append((distance, entry.runs[0].id, entry.runs[0]))
    return [row for *_, row in sorted(by_distance, key=lambda each: each[:2])]


def _words_at(table: Table, place: Position, template: Row) -> list[str]:
    """Return the words of `template` with the options of the row and the column of `place`."""
    options = flatten(template.config)
    words = {word.partition("=")[0].lstrip("+"): word for word in words_of(template)}
    for key, wanted in _conditions(table, place):
        if fits({key: wanted}, options):
            continue
        if "." not in key:  # another choice, to which the options of the former do not belong
            words = {k: word for k, word in words.items() if not k.startswith(f"{key}.")}
        value = wanted[0] if isinstance(wanted, list) else wanted
        words[key] = f"{key}={format_value(value)}"
    return [*words.values()]


def _conditions(table: Table, place: Position) -> Iterator[tuple[str, Any]]:
    """Yield the options of the row and the column of `place`; choices before their options."""
    headers: list[Header] = [
        header
        for axis, label in zip((table.spec.rows, table.spec.columns), place, strict=True)
        for header in axis
        if header.label == label
    ]
    levels = [level for header in headers for level in header.conditions]
    options = [pair for level in levels for pair in level[min(table.scale, len(level) - 1)].items()]
    yield from sorted(options, key=lambda pair: "." in pair[0])


def _entry(table: Table, place: Position) -> Entry:
    columns = [column.label for column in table.columns]
    return table.lines[place[0]][columns.index(place[1])]
