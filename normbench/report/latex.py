"""A table in LaTeX, with the rules of booktabs and the best number of a column in bold."""

from collections.abc import Sequence
from itertools import groupby

from normbench.report.footnotes import MARK, SHARED, notes, one_computation, shared_cells
from normbench.report.table import Table
from normbench.report.table_spec import Label

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": r"$-$", "–": "--", MARK: r"\dag{}", SHARED: r"\ddag{}", "β": r"$\beta$",
    "γ": r"$\gamma$", "Ω": r"$\Omega$", "μ": r"$\mu$", "σ": r"$\sigma$", "×": r"$\times$",
    "λ": r"$\lambda$", "α": r"$\alpha$", "≤": r"$\le$", "≥": r"$\ge$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def latex(table: Table) -> str:
    """A table environment; it needs \\usepackage{booktabs}."""
    stubs = max(len(label) for label in table.lines)
    layout = "l" * stubs + "r" * len(table.columns)
    body = "\n".join(
        [
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            *_head([column.label for column in table.columns], stubs, table.corner),
            r"\midrule",
            *_lines(table, stubs),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )
    caption = text(f"{table.heading}. {' '.join(notes(table))}")
    return f"\\begin{{table}}\n\\centering\n{body}\n\\caption{{{caption}}}\n\\end{{table}}\n"


def document(tables: Sequence[str]) -> str:
    """A whole document of tables, wide ones made to fit, that pdflatex takes."""
    fit = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" + "\n"
    fitted = (
        each.replace(r"\begin{tabular}", fit + r"\begin{tabular}")
        .replace(r"\end{tabular}", r"\end{tabular}}")
        .replace(r"\begin{table}", r"\begin{table}[p]")
        for each in tables
    )
    return "\n".join(
        [
            r"\documentclass[a4paper,landscape]{article}",
            r"\usepackage[utf8]{inputenc}",
            r"\usepackage[margin=2cm]{geometry}",
            r"\usepackage{booktabs,graphicx}",
            r"\begin{document}",
            *(rf"{each}\clearpage" for each in fitted),
            r"\end{document}",
            "",
        ]
    )


def text(words: str) -> str:
    """`words` with everything that TeX would take for a command of its own."""
    return "".join(_SPECIAL.get(character, character) for character in words)


def _head(labels: Sequence[Label], stubs: int, above_rows: str) -> list[str]:
    """A line a level of the columns; a word that several columns share stands above all of them."""
    lines = []
    for level in range(len(labels[0])):
        last = level == len(labels[0]) - 1
        corner = text(above_rows) if last else ""
        cells, rules, at = [corner, *[""] * (stubs - 1)], [], stubs + 1
        # Alike only below the same words of the levels above.
        for above, group in groupby(labels, key=lambda label: label[: level + 1]):
            width = len(list(group))
            word = text(above[-1])
            alone = last or width == 1
            cells.append(word if alone else rf"\multicolumn{{{width}}}{{c}}{{{word}}}")
            cells += [""] * (width - 1) if alone else []
            rules += [] if alone else [rf"\cmidrule(lr){{{at}-{at + width - 1}}}"]
            at += width
        lines.append(" & ".join(cells) + r" \\")
        lines += ["".join(rules)] if rules else []
    return lines


def _lines(table: Table, stubs: int) -> list[str]:
    best, same, shared = table.best(), one_computation(table), shared_cells(table)
    lines = []
    before: Label = ("",) * stubs
    for label, cells in table.lines.items():
        words = [text(word) for word in label]
        if label in same:
            words[-1] += rf" {text(MARK)}"
        # A word that the line above has too is not said again.
        repeated = [stubs > 1 and label[: k + 1] == before[: k + 1] for k in range(len(label) - 1)]
        shown = [
            "" if again else word for again, word in zip([*repeated, False], words, strict=True)
        ]
        line = [*shown, *[""] * (stubs - len(label))]
        for index, cell in enumerate(cells):
            number = text(table.text(cell)) + (text(SHARED) if (label, index) in shared else "")
            line.append(rf"\textbf{{{number}}}" if (label, index) in best else number)
        lines.append(" & ".join(line) + r" \\")
        before = label
    return lines
