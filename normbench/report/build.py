"""Table files in, rows in; tables and figures out. What did not change is not written again."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normbench.errors import BadInput, choose_from
from normbench.home import TABLES, load, names
from normbench.report import render
from normbench.report.table import Spec, Table


def specs(wanted: Sequence[str] = ()) -> list[Spec]:
    """The tables of reports/tables/, all or those that are `wanted`.

    Raises:
        BadInput: one of them does not exist.
    """
    known = names(TABLES)
    for name in wanted:
        if name not in known:
            raise BadInput(f"table {name} is unknown; {choose_from(name, known)}")
    chosen = wanted or known
    return [Spec(name=name, **_fields(name)) for name in chosen]


def forms(table: Table) -> list[str]:
    """The endings of the files that a table is written to."""
    drawn = [".png", ".pdf"] if table.drawable else []
    return [".md", ".csv", ".tex", ".html", *drawn]


def write(tables: Sequence[Table], root: Path) -> list[Path]:
    """Write each table below `root` in all forms, with its figure; what is new or changed."""
    changed = []
    for table in tables:
        stem = root / table.spec.name / table.slug
        texts = {
            ".md": render.markdown(table),
            ".tex": render.latex(table),
            ".html": render.page(table),
            ".csv": render.numbers(table),
        }
        written = [path for end, text in texts.items() if (path := _put(stem, end, text.encode()))]
        if table.drawable and (written or not _beside(stem, ".png").exists()):
            # matplotlib takes half a second to import, which a report without news should not pay.
            from normbench.report.figure import draw

            drawn = [_put(stem, f".{form}", draw(table, form)) for form in ("png", "pdf")]
            written += [path for path in drawn if path]
        changed += written
    return changed


def _put(stem: Path, end: str, content: bytes) -> Path | None:
    path = _beside(stem, end)
    if path.exists() and path.read_bytes() == content:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    # In one piece: two sweeps may end at the same moment.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path


def _beside(stem: Path, end: str) -> Path:
    return stem.with_name(stem.name + end)  # with_suffix would take "seed=0.1" apart


def _fields(name: str) -> dict[str, Any]:
    return load(TABLES / f"{name}.yaml")
