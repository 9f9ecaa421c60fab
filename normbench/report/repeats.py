"""Tables that show nothing that another table does not show."""

from collections.abc import Sequence

from normbench.report.table import Entry, Table


def repeats(tables: Sequence[Table], *, published: bool = True) -> list[tuple[Table, Table]]:
    """Return each table that can be left out, and the table that shows all that it shows.

    A paper prints some tables twice, the second time with deviations, and its runs are also those
    of our own tables. Without `published` the paper's numbers do not count, but our own alone.
    """
    shown: list[Table] = []
    left_out: list[tuple[Table, Table]] = []
    # A table with more comes first, so that it covers the others.
    for table in sorted(tables, key=_content, reverse=True):
        covering = next((other for other in shown if _covers(other, table, published)), None)
        if covering is None:
            shown.append(table)
        else:
            left_out.append((table, covering))
    return left_out


def distinct(tables: Sequence[Table]) -> list[Table]:
    """Return `tables` without those whose numbers all stand in others of them."""
    covered = covered_by_papers(tables)
    rest = [table for table in tables if table not in covered]
    repeated = [table for table, _ in repeats(rest)]
    return [table for table in rest if table not in repeated]


def covered_by_papers(tables: Sequence[Table]) -> list[Table]:
    """Return each table of our own whose numbers all stand in one or several papers' tables."""
    in_papers = {number for table in tables if table.spec.paper for number in _numbers(table)}
    return [table for table in tables if not table.spec.paper and _numbers(table) <= in_papers]


def _numbers(table: Table) -> set[tuple[str, str]]:
    """Return the id of each run whose number an entry shows, with the metric."""
    return {(run.id, entry.metric.label) for entry in table.entries for run in entry.runs}


def _content(table: Table) -> tuple[int, int]:
    published = [entry.published for entry in table.entries if entry.published]
    deviations = sum(number.error is not None for number in published)
    return sum(bool(entry.source_runs) for entry in table.entries), len(published) + deviations


def _covers(table: Table, other: Table, published: bool) -> bool:
    """Return True if each entry of `other` is in `table`, with the paper's number if it has one."""
    return all(
        any(_shows(entry, repeated, published) for entry in table.entries)
        for repeated in other.entries
        if repeated.source_runs or (published and repeated.published)
    )


def _shows(entry: Entry, repeated: Entry, published: bool) -> bool:
    runs, runs_again = ([run.id for run in each.source_runs] for each in (entry, repeated))
    if runs != runs_again or entry.metric.label != repeated.metric.label:
        return False
    printed, again = entry.published, repeated.published
    if not published or again is None:
        return True
    return (
        printed is not None
        and printed.value == again.value
        and again.error in (None, printed.error)
    )
