"""Tables as LaTeX, in the way of journals."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from normbench.report.latex import latex_document, table_latex
from support.rows import batch_size_tables, runs

RUNS = [
    *runs("bn", 4, [80.0, 82.0, 84.0]),
    *runs("bn", 128, [90.0, 91.0, 92.0]),
    *runs("gn", 4, [88.0, 89.0, None]),
    *runs("gn_ws", 4, [None]),
]


def test_a_table_is_as_journals_want_it() -> None:
    (table,) = batch_size_tables(RUNS)
    tex = table_latex(table)
    order = [r"\caption{", r"\label{tab:batch_size:", r"\begin{tabular}", r"\begin{tablenotes}"]
    assert sorted(order, key=tex.index) == order
    (caption,) = re.findall(r"\\caption\{(.*)\}", tex)
    assert len(caption) < 100
    assert "resizebox" not in tex
    assert r"\begin{tabular}{l S[table-format=2.1(2)] S[table-format=2.1(2)]}" in tex
    assert r"bn & 82.0 +- 2.0 & 91.0 +- 1.0 \\" in tex
    assert r"gn\_ws & {div.} & {--} \\" in tex
    assert r"\item Number of seeds: 3; gn, 4: 2 (1 div.)." in tex


def test_a_document_is_set_without_warnings(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None or not shutil.which("kpsewhich"):
        pytest.skip("no LaTeX here")
    found = subprocess.run(["kpsewhich", "siunitx.sty"], capture_output=True, check=False)
    if not found.stdout:
        pytest.skip("no siunitx here")
    (tmp_path / "x.tex").write_text(latex_document(batch_size_tables(RUNS)))
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert (tmp_path / "x.pdf").exists()
