"""Tables as Markdown, CSV and LaTeX; claims as Markdown and CSV."""

import csv
import io
from collections.abc import Sequence
from itertools import groupby

from tabulate import tabulate

from normbench.report.claims import Claim
from normbench.report.footnotes import (
    DAGGER,
    DOUBLE_DAGGER,
    footnotes,
    shared_entries,
    single_computation_rows,
)
from normbench.report.table import Table
from normbench.report.table_spec import Label
from normbench.report.verdicts import (
    METHOD,
    ClaimResult,
    count_verdicts,
    group_by_claim,
)

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": r"$-$", "–": "--", DAGGER: r"\dag{}", DOUBLE_DAGGER: r"\ddag{}",
    "β": r"$\beta$", "γ": r"$\gamma$", "Ω": r"$\Omega$", "μ": r"$\mu$", "σ": r"$\sigma$",
    "×": r"$\times$", "λ": r"$\lambda$", "α": r"$\alpha$", "≤": r"$\le$", "≥": r"$\ge$",
    "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def table_markdown(table: Table) -> str:
    """Return a table in Markdown: heading, entries, footnotes."""
    header, body = table.grid()
    single = single_computation_rows(table)
    shared = shared_entries(table)
    marked = [
        [
            f"{words} {DAGGER}" if label in single else words,
            *(
                f"{entry} {DOUBLE_DAGGER}" if (label, index) in shared else entry
                for index, entry in enumerate(entries)
            ),
        ]
        for label, (words, *entries) in zip(table.lines, body, strict=True)
    ]
    grid = tabulate(marked, header, tablefmt="pipe", disable_numparse=True)
    below = "\n".join(f"- {note}" for note in footnotes(table))
    return f"**{table.heading}**\n\n{grid}\n\n{below}\n"


def table_csv(table: Table) -> str:
    """Return a table as CSV: a line for each run of an entry and each number of the paper."""
    out = io.StringIO()
    plain = ("norm", "batch", "seed", "status")
    last = ("options", "id", "sweep", "commit")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "column", *plain, "metric", "value", "error", *last])
    for label, entries in table.lines.items():
        for column, entry in zip(table.columns, entries, strict=True):
            place = (" ".join(label), str(column))
            name = entry.metric.label
            for run in entry.runs:
                values = [getattr(run, key) for key in plain]
                origin = [getattr(run, key) for key in last]
                writer.writerow([*place, *values, name, entry.metric.of(run), "", *origin])
            if entry.published:
                number = entry.published
                source = f"{table.spec.source}{' (unverified)' if number.unverified else ''}"
                value = number.word if number.value is None else number.value
                error = "" if number.error is None else number.error
                writer.writerow(
                    [*place, "", "", "", "published", name, value, error, "", "", source, ""]
                )
    return out.getvalue()


def table_latex(table: Table) -> str:
    r"""Return a table environment of LaTeX, with the best number of each column in bold.

    The document needs \usepackage{booktabs}.
    """
    stubs = max(len(label) for label in table.lines)
    layout = "l" * stubs + "r" * len(table.columns)
    body = "\n".join(
        [
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            *_latex_head([column.label for column in table.columns], stubs, table.corner),
            r"\midrule",
            *_latex_lines(table, stubs),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )
    caption = escape_latex(f"{table.heading}. {' '.join(footnotes(table))}")
    return f"\\begin{{table}}\n\\centering\n{body}\n\\caption{{{caption}}}\n\\end{{table}}\n"


def latex_document(tables: Sequence[str]) -> str:
    """Return a LaTeX document of tables; tables wider than the page are scaled down."""
    fit = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" + "\n"
    fitted = (
        table.replace(r"\begin{tabular}", fit + r"\begin{tabular}")
        .replace(r"\end{tabular}", r"\end{tabular}}")
        .replace(r"\begin{table}", r"\begin{table}[p]")
        for table in tables
    )
    return "\n".join(
        [
            r"\documentclass[a4paper,landscape]{article}",
            r"\usepackage[utf8]{inputenc}",
            r"\usepackage[margin=2cm]{geometry}",
            r"\usepackage{booktabs,graphicx}",
            r"\begin{document}",
            *(rf"{table}\clearpage" for table in fitted),
            r"\end{document}",
            "",
        ]
    )


def escape_latex(text: str) -> str:
    """Replace the special characters of LaTeX."""
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_head(labels: Sequence[Label], stubs: int, corner: str) -> list[str]:
    """Return a line for each level of the column labels; equal neighbours become one."""
    lines = []
    for level in range(len(labels[0])):
        last = level == len(labels[0]) - 1
        entries = [escape_latex(corner) if last else "", *[""] * (stubs - 1)]
        rules, start = [], stubs + 1
        # Grouped by all words so far: equal words below different ones stay apart.
        for above, group in groupby(labels, key=lambda label: label[: level + 1]):
            width = len(list(group))
            word = escape_latex(above[-1])
            if last or width == 1:
                entries += [word, *[""] * (width - 1)]
            else:
                entries.append(rf"\multicolumn{{{width}}}{{c}}{{{word}}}")
                rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
            start += width
        lines.append(" & ".join(entries) + r" \\")
        lines += ["".join(rules)] if rules else []
    return lines


def _latex_lines(table: Table, stubs: int) -> list[str]:
    best = table.best()
    single, shared = single_computation_rows(table), shared_entries(table)
    lines = []
    before: Label = ("",) * stubs
    for label, entries in table.lines.items():
        words = [escape_latex(word) for word in label]
        if label in single:
            words[-1] += rf" {_LATEX[DAGGER]}"
        # A word that stands in the line above is not repeated.
        for level in range(len(label) - 1):
            if label[: level + 1] == before[: level + 1]:
                words[level] = ""
        line = [*words, *[""] * (stubs - len(label))]
        for index, entry in enumerate(entries):
            number = escape_latex(table.text(entry))
            number += _LATEX[DOUBLE_DAGGER] if (label, index) in shared else ""
            line.append(rf"\textbf{{{number}}}" if (label, index) in best else number)
        lines.append(" & ".join(line) + r" \\")
        before = label
    return lines


_COLUMNS = ("claim", "place", "as published", "setting", "verdict", "effect [95 %]", "n")
_UNTESTED_COLUMNS = ("claim", "place", "as published")


def claims_markdown(results: Sequence[ClaimResult]) -> str:
    """Return the claims of each paper as a table in Markdown."""
    parts = ["# The papers' claims, tested\n", f"{count_verdicts(results)}.\n", f"{METHOD}\n"]
    for paper in dict.fromkeys(result.claim.paper for result in results):
        of_paper = [result for result in results if result.claim.paper == paper]
        parts.append(f"\n## {paper}\n")
        if body := [_claim_line(result) for result in of_paper if result.table]:
            parts.append(tabulate(body, _COLUMNS, tablefmt="pipe", disable_numparse=True))
        untested = group_by_claim([result for result in of_paper if not result.table])
        if body := [_untested_line(claim, group) for claim, group in untested]:
            parts.append("\nUntested, because their tables have no runs:\n")
            parts.append(tabulate(body, _UNTESTED_COLUMNS, tablefmt="pipe", disable_numparse=True))
    return "\n".join(parts) + "\n"


def claims_csv(results: Sequence[ClaimResult]) -> str:
    """Return the claims as CSV, a line for each claim and table."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["claim", "paper", "place", "says", "table", "published", "published_effect",
         "published_unverified", "setting", "verdict", "effect", "low", "high", "n", "reason"]
    )  # fmt: skip
    for result in results:
        effect, paper, claim = result.verdict.effect, result.published, result.claim
        published = (paper.holds, paper.effect, paper.unverified) if paper else ("",) * 3
        numbers = (effect.value, effect.low, effect.high, effect.seeds) if effect else ("",) * 4
        writer.writerow(
            [claim.name, claim.paper, claim.place, claim.says, result.spec.name, *published,
             result.setting, result.verdict.outcome, *numbers, result.verdict.reason]
        )  # fmt: skip
    return out.getvalue()


def _claim_line(result: ClaimResult) -> list[str]:
    verdict: str = result.verdict.outcome
    if result.verdict.reason:
        verdict += f" ({result.verdict.reason})"
    place = f"{result.claim.place} ({result.spec.name})"
    sentence = result.claim.sentence
    return [
        sentence, place, result.evidence, result.setting, verdict, result.effect, result.seeds
    ]  # fmt: skip


def _untested_line(claim: Claim, results: Sequence[ClaimResult]) -> list[str]:
    evidence = "; ".join(f"{result.spec.name} {result.evidence}" for result in results)
    return [claim.sentence, claim.place, evidence]
