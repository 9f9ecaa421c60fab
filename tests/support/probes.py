"""Files that the probe command writes, and words of small networks for it."""

from pathlib import Path

from normbench.records.probes import Record, read_records
from support.cells import SHORT

#: The network of the NF paper's figures with an eighth of the depth and a quarter of the width.
SMALLER = ("model.depths=[6,6,6,6]", "model.width=24", "image=128", "images=2", "trainer=cpu")
#: Four epochs of three steps, of a run that keeps its network.
KEPT = (
    *SHORT, "checkpoint=keep", "data=digits", "data.fraction=0.32", "recipe.images=1536",
)  # fmt: skip


def lines(name: str) -> list[Record]:
    """Return the records of a file in the default folder."""
    return read_records(Path("runs/reports/probes") / f"{name}.csv")


def values(blocks: list[Record], measure: str, stage: int | None = None) -> list[float]:
    """Return a column of the blocks, of one stage or of all."""
    return [b[measure] for b in blocks if stage is None or b["stage"] == stage]


def report_page() -> str:
    """Write the report of all runs; return its page."""
    from normbench.report.__main__ import main

    assert main(["reports=whole"]) == 0
    return Path("whole/index.html").read_text()
