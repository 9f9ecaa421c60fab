"""Tables as Markdown, CSV and LaTeX; claims as Markdown and CSV."""

from collections.abc import Iterable, Sequence
from typing import Any

from tabulate import tabulate

from normbench.errors import printable
from normbench.records.probes import csv_text, plain_cell
from normbench.report.claim_results import (
    METHOD,
    ClaimResult,
    count_verdicts,
    expect_by_chance,
    group_claims,
)  # fmt: skip
from normbench.report.footnotes import footnotes
from normbench.report.markdown import escape_markdown
from normbench.report.table import DAGGER, DOUBLE_DAGGER, Table
from normbench.report.table_spec import Label

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": r"$-$", "–": "--", DAGGER: r"\dag{}", DOUBLE_DAGGER: r"\ddag{}",
    "β": r"$\beta$", "γ": r"$\gamma$", "Ω": r"$\Omega$", "μ": r"$\mu$", "σ": r"$\sigma$",
    "×": r"$\times$", "λ": r"$\lambda$", "α": r"$\alpha$", "≤": r"$\le$", "≥": r"$\ge$",
    "<": r"$<$", ">": r"$>$",
})  # fmt: skip


def table_markdown(table: Table) -> str:
    """Return a table in Markdown: heading, entries, footnotes."""
    header, body = table.grid()
    below = "\n".join(f"- {escape_markdown(note)}" for note in footnotes(table))
    return f"**{escape_markdown(table.heading)}**\n\n{_markdown(body, header)}\n\n{below}\n"


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
            place, name = (" ".join(label), column), entry.metric.label
            for run in entry.runs:
                values, origin = ([getattr(run, key) for key in keys] for keys in (plain, last))
                lines.append((*place, *values, name, entry.metric.of(run), "", *origin))
            if number := entry.published:
                value = number.text if number.value is None else number.value
                source = f"{table.spec.source}{' (unverified)' if number.unverified else ''}"
                paper = (name, value, number.error, "", "", source, "")
                lines.append((*place, "", "", "", "published", *paper))
    return csv_text(map(plain_cell, line) for line in lines)


def table_latex(table: Table) -> str:
    r"""Return a table environment of LaTeX, with the best number of each column in bold.

    The document needs \usepackage{booktabs}.
    """
    stubs = max(len(label) for label in table.lines)
    head, body = ("\n".join(each(table, stubs)) for each in (_latex_head, _latex_lines))
    caption = escape_latex(f"{table.heading}. {' '.join(footnotes(table))}")
    return rf"""\begin{{table}}
\centering
\begin{{tabular}}{{{"l" * stubs}{"r" * len(table.columns)}}}
\toprule
{head}
\midrule
{body}
\bottomrule
\end{{tabular}}
\caption{{{caption}}}
\end{{table}}
"""


def latex_document(tables: Iterable[Table]) -> str:
    """Return a LaTeX document of tables; tables wider than the page are scaled down."""
    fit = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" + "\n"
    pages = "\n".join(
        table_latex(table)
        .replace(r"\begin{tabular}", fit + r"\begin{tabular}")
        .replace(r"\end{tabular}", r"\end{tabular}}")
        .replace(r"\begin{table}", r"\begin{table}[p]")
        + r"\clearpage"
        for table in tables
    )
    return rf"""\documentclass[a4paper,landscape]{{article}}
\usepackage[utf8]{{inputenc}}
\usepackage[margin=2cm]{{geometry}}
\usepackage{{booktabs,graphicx}}
\begin{{document}}
{pages}
\end{{document}}
"""


def escape_latex(text: str) -> str:
    """Replace the special characters of LaTeX."""
    return printable(text).translate(_LATEX)


def _latex_head(table: Table, stubs: int) -> list[str]:
    """Return a line for each level of the column labels."""
    lines = []
    levels = table.header_levels()
    for level in levels:
        corner = escape_latex(table.corner) if level is levels[-1] else ""
        entries, rules, start = [corner, *[""] * (stubs - 1)], "", stubs + 1
        for word, width in level:
            if width == 1:
                entries.append(escape_latex(word))
            else:
                entries.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(word)}}}")
                rules += rf"\cmidrule(lr){{{start}-{start + width - 1}}}"
            start += width
        lines.append(" & ".join(entries) + r" \\")
        lines += [rules] if rules else []
    return lines


def _latex_lines(table: Table, stubs: int) -> list[str]:
    best = table.best()
    lines = []
    before: Label = ("",) * stubs
    for label, entries in table.lines.items():
        # A word that stands in the line above is not repeated.
        repeated = [label[: level + 1] == before[: level + 1] for level in range(len(label) - 1)]
        words = ["" if same else word for word, same in zip(label, [*repeated, False], strict=True)]
        words[-1] += table.row_mark(label)
        line = [escape_latex(word) for word in (*words, *[""] * (stubs - len(label)))]
        for index, entry in enumerate(entries):
            number = escape_latex(table.text(entry) + table.mark(label, entry))
            line.append(rf"\textbf{{{number}}}" if (label, index) in best else number)
        lines.append(" & ".join(line) + r" \\")
        before = label
    return lines


def claims_markdown(results: Sequence[ClaimResult]) -> str:
    """Return the claims of each paper as a table in Markdown."""
    columns = ("claim", "place", "as published", "setting", "verdict", "effect [interval]", "n")
    counts = f"{count_verdicts(results)}. {expect_by_chance(results)}"
    parts = ["# The papers' claims, tested\n", f"{counts}\n", f"{METHOD}\n"]
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


def _claim_line(result: ClaimResult) -> list[str]:
    claim, verdict = result.claim, result.verdict
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return [
        claim.sentence, f"{claim.place} ({result.spec.name})", result.evidence, result.setting,
        verdict.outcome + reason, result.effect, result.seeds,
    ]  # fmt: skip


def claims_csv(results: Sequence[ClaimResult]) -> str:
    """Return the claims as CSV, a line for each claim and table."""
    lines: list[Sequence[Any]] = [
        ("claim", "paper", "place", "says", "table", "published", "published_effect",
         "published_unverified", "setting", "verdict", "effect", "low", "high", "n", "reason",
         "low_images", "high_images")
    ]  # fmt: skip
    for result in results:
        effect, paper, claim = result.verdict.effect, result.published, result.claim
        images = result.verdict.over_images
        published = (paper.holds, paper.effect, paper.unverified) if paper else ("",) * 3
        numbers = (effect.value, effect.low, effect.high, effect.seeds) if effect else ("",) * 4
        lines.append(
            (claim.name, claim.paper, claim.place, claim.says, result.spec.name, *published,
             result.setting, result.verdict.outcome, *numbers, result.verdict.reason,
             *((images.low, images.high) if images else ("", "")))
        )  # fmt: skip
    return csv_text(map(plain_cell, line) for line in lines)
