"""The page docs/reference/small_sweeps.md, from the heads of sweeps/ and the rows of a study."""

import re
from collections.abc import Sequence
from pathlib import Path

from markdown_table import markdown_table

from normbench import results
from normbench.config.compose import compose
from normbench.config.files import ROOT, headline
from normbench.results import Row

STUDY = ROOT / "reports" / "studies" / "papers"

_HEAD = """\
# The papers' tables in small

Written by `python docs/build.py` from [sweeps](../../sweeps) and the study
[papers](../../reports/studies/papers), which also has the
[tables](../../reports/studies/papers/tables.md) and the
[verdicts](../../reports/studies/papers/claims.md).

`trained` is how many of the runs are in the study. `steps` are the optimizer steps of a run in the
column with the most images per step, where they are the fewest. The learning rates were chosen by
[small_pilot](../../sweeps/small_pilot.yaml) unless the head of a sweep names another source. The
head also says what was expected and what was seen. `python -m normbench.cost sweeps=NAME` prints
hours, and the power for each claim.
"""


def small_sweeps() -> str:
    """Return the page: a line for each sweep in small."""
    rows = {row.id: row for row in results.read(STUDY)}
    lines = []
    for path in sorted((ROOT / "sweeps").glob("*_small.yaml")):
        cells, _ = compose(["-m", f"sweeps={path.stem}"])
        trained = [rows[cell.id] for cell in cells if cell.id in rows]
        lines.append([
            f"[{path.stem}](../../sweeps/{path.name})", _subject(path), f"{len(cells):,}",
            f"{len(trained):,}", f"{len({cell.seed for cell in cells})}", _fewest_steps(trained),
        ])  # fmt: skip
    head = ["sweep", "", "runs", "trained", "seeds", "steps"]
    return f"{_HEAD}\n{markdown_table(head, lines, 4)}\n"


def _subject(path: Path) -> str:
    """Return the first line of a head without `in small`."""
    return re.sub(",? in small", "", headline(path)).rstrip(".")


def _fewest_steps(rows: Sequence[Row]) -> str:
    """Return the number of optimizer steps of the trained runs with the largest global batch."""
    trained = [row for row in rows if row.status == "ok"]
    largest = max((row.global_batch for row in trained), default=0)
    histories = [
        results.read_run_history(STUDY, row) for row in trained if row.global_batch == largest
    ]
    steps = [int(history[-1]["step"]) for history in histories if history]
    return f"{min(steps):,}" if steps else ""
