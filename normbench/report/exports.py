"""Tables and claims as Markdown and CSV."""

from collections.abc import Sequence
from typing import Any, get_args

from tabulate import tabulate

from normbench.records.probes import csv_text, plain_cell
from normbench.report.claim_results import (
    MEANINGS,
    METHOD,
    METHOD_TABLE,
    ClaimResult,
    Outcome,
    count_verdicts,
    expect_by_chance,
    group_claims,
)  # fmt: skip
from normbench.report.footnotes import footnotes
from normbench.report.markdown import escape_markdown
from normbench.report.repeats import distinct
from normbench.report.table import Table


def table_markdown(table: Table) -> str:
    """Return a table in Markdown: heading, entries, footnotes."""
    header, body = table.grid()
    below = "\n".join(f"- {escape_markdown(note)}" for note in footnotes(table))
    return f"**{escape_markdown(table.heading)}**\n\n{_markdown(body, header)}\n\n{below}\n"


def tables_markdown(tables: Sequence[Table]) -> str:
    """Return all tables as one document in Markdown, without those that only repeat others."""
    return "\n\n".join(["# Tables", *map(table_markdown, distinct(tables))])


def _markdown(body: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    # As text: tabulate would print 76.0 as 76 and align columns of numbers at the point.
    head, *lines = ([*map(escape_markdown, line)] for line in (header, *body))
    return tabulate(lines, head, tablefmt="pipe", disable_numparse=True)


def table_csv(table: Table) -> str:
    """Return a table as CSV: a line for each run of an entry and each number of the paper."""
    plain = ("norm", "batch", "seed", "status")
    last = ("options", "id", "sweep", "commit")
    lines: list[Sequence[Any]] = [("row", "column", *plain, "metric", "value", "error", *last)]
    for label, entries in table.lines.items():
        for column, entry in zip(table.columns, entries, strict=True):
            place, name = (" ".join(label), str(column)), entry.metric.label
            for run in entry.runs:
                values, origin = ([getattr(run, key) for key in keys] for keys in (plain, last))
                lines.append((*place, *values, name, entry.metric.of(run), "", *origin))
            if number := entry.published:
                value = number.text if number.value is None else number.value
                source = f"{table.spec.source}{' (unverified)' if number.unverified else ''}"
                paper = (name, value, number.error, "", "", source, "")
                lines.append((*place, "", "", "", "published", *paper))
    return csv_text(map(plain_cell, line) for line in lines)


def claims_markdown(results: Sequence[ClaimResult]) -> str:
    """Return the claims of each paper as a table in Markdown."""
    columns = ("claim", "place", "as published", "setting", "verdict", "effect [interval]", "n")
    counts = f"{count_verdicts(results)}. {expect_by_chance(results)}"
    meanings = "\n".join(f"- {word}: {meaning}." for word, meaning in MEANINGS)
    method = _markdown(METHOD_TABLE[1:], METHOD_TABLE[0])
    parts = [
        "# The papers' claims, tested\n", f"{counts}\n", _count_by_table(results), "",
        f"{METHOD}\n", method, "", f"{meanings}\n",
    ]  # fmt: skip
    for paper, claims in group_claims(results).items():
        parts.append(f"\n## {escape_markdown(paper)}\n")
        if body := [_claim_line(each) for group in claims.values() for each in group if each.table]:
            parts.append(_markdown(body, columns))
        without = {claim: [r for r in group if not r.table] for claim, group in claims.items()}
        if body := [
            [claim.sentence, claim.place, "; ".join(f"{r.spec.name} {r.evidence}" for r in group)]
            for claim, group in without.items()
            if group
        ]:
            parts.append("\nUntested, because their tables have no runs:\n")
            parts.append(_markdown(body, columns[:3]))
    return "\n".join(parts) + "\n"


def _count_by_table(results: Sequence[ClaimResult]) -> str:
    """Return how many verdicts of each outcome each table has that has tested ones."""
    outcomes: dict[str, list[Outcome]] = {}
    for result in results:
        outcomes.setdefault(result.spec.name, []).append(result.verdict.outcome)
    words = get_args(Outcome)
    return _markdown(
        [
            [name, *(str(found.count(word) or "") for word in words)]
            for name, found in outcomes.items()
            if {*found} != {"untested"}
        ],
        ("table", *words),
    )


def _claim_line(result: ClaimResult) -> list[str]:
    claim, verdict = result.claim, result.verdict
    reason = f" ({result.reason})" if result.reason else ""
    return [
        claim.sentence, f"{claim.place} ({result.spec.name})", result.evidence, result.setting,
        verdict.outcome + reason, result.effect, result.seeds,
    ]  # fmt: skip


def claims_csv(results: Sequence[ClaimResult]) -> str:
    """Return the claims as CSV, a line for each claim and table."""
    lines: list[Sequence[Any]] = [
        ("claim", "paper", "place", "says", "table", "published", "published_effect",
         "published_unverified", "setting", "verdict", "effect", "low", "high", "n", "reason",
         "low_images", "high_images", "smallest_shown")
    ]  # fmt: skip
    for result in results:
        effect, paper, claim = result.verdict.effect, result.published, result.claim
        images = result.verdict.over_images
        published = (paper.holds, paper.effect, paper.unverified) if paper else ("",) * 3
        numbers = (effect.value, effect.low, effect.high, effect.seeds) if effect else ("",) * 4
        lines.append(
            (claim.name, claim.paper, claim.place, claim.says, result.spec.name, *published,
             result.setting, result.verdict.outcome, *numbers, result.verdict.reason,
             *((images.low, images.high) if images else ("", "")),
             "" if result.smallest_shown is None else result.smallest_shown)
        )  # fmt: skip
    return csv_text(map(plain_cell, line) for line in lines)
