"""Tables as LaTeX: a short caption above, numbers aligned at the point, notes below."""

from collections.abc import Iterable, Iterator, Sequence

from normbench.errors import printable
from normbench.report.best import best_of_ours, best_published
from normbench.report.footnotes import footnotes
from normbench.report.repeats import distinct
from normbench.report.table import DAGGER, DOUBLE_DAGGER, Entry, Table
from normbench.report.table_spec import Label, PublishedNumber
from normbench.report.titles import comparison_title, table_title

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": r"$-$", "–": "--", DAGGER: r"\dag{}", DOUBLE_DAGGER: r"\ddag{}",
    "β": r"$\beta$", "γ": r"$\gamma$", "Ω": r"$\Omega$", "μ": r"$\mu$", "σ": r"$\sigma$",
    "×": r"$\times$", "λ": r"$\lambda$", "α": r"$\alpha$", "≤": r"$\le$", "≥": r"$\ge$",
    "<": r"$<$", ">": r"$>$",
})  # fmt: skip
#: What a document with these tables needs.
PREAMBLE = r"""\usepackage{booktabs,threeparttable,siunitx}
\sisetup{uncertainty-mode=separate, table-align-uncertainty, mode=text, reset-text-series=false,
  retain-zero-uncertainty}"""


def table_latex(table: Table) -> str:
    """Return a table environment of LaTeX; the document needs `PREAMBLE`.

    The paper's numbers have lines of their own. In bold are the best of ours in a column and those
    not distinguishable from it, and apart from them the best of the paper's.
    """
    stubs = max(len(label) for label in table.lines)
    lines = list(_lines(table, stubs))
    formats = [_format([line[stubs + place] for line in lines]) for place in _places(table)]
    title = table_title(table) if table.spec.paper else comparison_title(table)
    notes = [f"Setting: {table.setting_text}.", *footnotes(table), *_remarks(table)]
    return "\n".join([
        r"\begin{table}[p]", r"\centering", r"\begin{threeparttable}",
        rf"\caption{{{escape_latex(title)}}}",
        rf"\label{{tab:{table.spec.name}:{_label(table.slug)}}}",
        rf"\begin{{tabular}}{{{'l' * stubs} {' '.join(formats)}}}",
        r"\toprule", *_head(table, stubs), r"\midrule",
        *(" & ".join(line) + r" \\" for line in lines),
        r"\bottomrule", r"\end{tabular}", r"\begin{tablenotes}\footnotesize",
        *(rf"\item {escape_latex(note)}" for note in notes),
        r"\end{tablenotes}", r"\end{threeparttable}", r"\end{table}", "",
    ])  # fmt: skip


def latex_document(tables: Sequence[Table]) -> str:
    """Return a LaTeX document of `tables`, without those that only repeat others."""
    pages = "\n".join(table_latex(table) + "\\clearpage\n" for table in distinct(tables))
    return rf"""\documentclass{{article}}
\usepackage[utf8]{{inputenc}}
\usepackage[a3paper,landscape,margin=2cm]{{geometry}}
{PREAMBLE}
\begin{{document}}
{pages}
\end{{document}}
"""


def escape_latex(text: str) -> str:
    """Replace the special characters of LaTeX."""
    return printable(text).translate(_LATEX)


def _label(slug: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in slug)


def _places(table: Table) -> range:
    return range(len(table.columns))


def _head(table: Table, stubs: int) -> Iterator[str]:
    """Yield a line for each level of the column labels."""
    levels = table.header_levels()
    for level in levels:
        corner = escape_latex(table.corner) if level is levels[-1] else ""
        entries, rules, start = [corner, *[""] * (stubs - 1)], "", stubs + 1
        for word, width in level:
            if width == 1:
                entries.append(f"{{{escape_latex(word)}}}")  # in braces it is no number
            else:
                entries.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(word)}}}")
                rules += rf"\cmidrule(lr){{{start}-{start + width - 1}}}"
            start += width
        yield " & ".join(entries) + r" \\"
        if rules:
            yield rules


def _lines(table: Table, stubs: int) -> Iterator[list[str]]:
    """Yield the lines of the body: for each row ours, the paper's numbers and the differences."""
    ours_best, paper_best = best_of_ours(table), best_published(table)
    before: Label = ("",) * stubs
    for label, entries in table.lines.items():
        # A word that stands in the line above is not repeated.
        repeated = [label[: level + 1] == before[: level + 1] for level in range(len(label) - 1)]
        words = ["" if same else word for word, same in zip(label, [*repeated, False], strict=True)]
        words[-1] += table.row_mark(label)
        before = label
        stub = [escape_latex(word) for word in (*words, *[""] * (stubs - len(label)))]
        ours = [
            _bold(_ours(table, label, entry), (label, place) in ours_best)
            for place, entry in enumerate(entries)
        ]
        printed = [
            _bold(_printed(entry.published), (label, place) in paper_best)
            for place, entry in enumerate(entries)
        ]
        if table.runs or not any(printed):
            yield [*stub, *ours]
            stub = [*[""] * (stubs - 1), r"\quad paper"]
        if any(printed):
            yield [*stub, *printed]
        if any(deltas := [table.delta(entry).replace("−", "-") for entry in entries]):
            yield [*[""] * (stubs - 1), r"\quad difference", *deltas]


def _bold(number: str, best: bool) -> str:
    return rf"\bfseries {number}" if best else number


def _ours(table: Table, label: Label, entry: Entry) -> str:
    if not entry.values:
        return f"{{{escape_latex(entry.text(0))}}}"
    decimals, (center, std) = table.decimals(entry), entry.summary
    sign = "" if entry.differences is None else "+"
    number = f"{center:{sign}.{decimals}f}" + ("" if std is None else f" +- {std:.{decimals}f}")
    mark = table.mark(label, entry).strip()
    return number + (rf" {{\tnote{{{escape_latex(mark)}}}}}" if mark else "")


def _printed(number: PublishedNumber | None) -> str:
    if number is None:
        return ""
    if number.value is None:
        return f"{{{escape_latex(str(number))}}}"
    return number.text.replace("±", "+-") + (" {?}" if number.unverified else "")


def _format(cells: Iterable[str]) -> str:
    """Return the column type of siunitx that has room for all numbers in `cells`."""
    whole = decimals = deviation = 0
    signed = False
    for cell in cells:
        number = cell.removeprefix(r"\bfseries ").partition(" {")[0]
        value, _, error = number.partition(" +- ")
        if not value or value.startswith("{"):
            continue
        signed |= value[0] in "+-"
        before, _, after = value.lstrip("+-").partition(".")
        whole, decimals = max(whole, len(before)), max(decimals, len(after))
        deviation = max(deviation, len(error.replace(".", "").lstrip("0")), int(bool(error)))
    uncertainty = f"({deviation})" if deviation else ""
    return f"S[table-format={'+' if signed else ''}{whole or 1}.{decimals}{uncertainty}]"


def _remarks(table: Table) -> Iterator[str]:
    """Yield the number of seeds behind the numbers, and the entries that differ."""
    entries = [
        (f"{' '.join(label)}, {column}", entry)
        for label, line in table.lines.items()
        for column, entry in zip(table.columns, line, strict=True)
        if entry.values
    ]
    counts = [len(entry.values) for _, entry in entries]
    if not counts:
        return
    usual = max(set(counts), key=counts.count)
    differing = [
        f"{place}: {len(entry.values)}" + (f" ({', '.join(lost)})" if lost else "")
        for place, entry in entries
        if (lost := [f"{n} {word}" for word, n in entry.failures.items()])
        or len(entry.values) != usual
    ]
    yield f"Number of seeds: {'; '.join([str(usual), *differing])}."
