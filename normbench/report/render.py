"""A table as Markdown, CSV, LaTeX and HTML."""

import csv
import html
import io

from tabulate import tabulate

from normbench.report.notes import MARK, notes, one_computation
from normbench.report.table import Table

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{heading}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
table {{ border-collapse: collapse }}
th, td {{ padding: .3rem .8rem; text-align: left; border-bottom: 1px solid #ccc }}
img {{ max-width: 100% }}
</style>
<h1>{heading}</h1>
{table}
{figure}
<ul>
{notes}
</ul>
</html>
"""


def markdown(table: Table) -> str:
    """Heading, table and notes."""
    body = _tabulated(table, "pipe")
    listed = "\n".join(f"- {note}" for note in notes(table))
    return f"**{table.heading}**\n\n{body}\n\n{listed}\n"


def latex(table: Table) -> str:
    """A table environment with rules of booktabs and the notes in its caption."""
    body = _tabulated(table, "latex_booktabs")
    caption = _latex_text(f"{table.heading}. {' '.join(notes(table))}")
    return f"\\begin{{table}}\n\\centering\n{body}\n\\caption{{{caption}}}\n\\end{{table}}\n"


def page(table: Table) -> str:
    """A page that needs no other file than the figure beside it."""
    return _PAGE.format(
        heading=html.escape(table.heading),
        table=_tabulated(table, "html"),
        figure=f'<p><img src="{table.slug}.png" alt="figure"></p>' if table.drawable else "",
        notes="\n".join(f"<li>{html.escape(note)}" for note in notes(table)),
    )


def numbers(table: Table) -> str:
    """CSV, one line a run: what the other forms were computed from."""
    out = io.StringIO()
    columns = ("norm", "batch", "seed", "status", table.spec.metric, "options", "id", "commit")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([getattr(row, column) for column in columns] for row in table.runs)
    return out.getvalue()


def _tabulated(table: Table, form: str) -> str:
    header, body = table.grid()
    same = one_computation(table)
    marked = [[f"{line[0]} {MARK}" if line[0] in same else line[0], *line[1:]] for line in body]
    return tabulate(marked, header, tablefmt=form, disable_numparse=True)


def _latex_text(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text
