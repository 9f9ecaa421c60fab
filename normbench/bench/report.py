"""Time of tables from many rows, and of the whole command when no row is new.

The rows are made up and lie in a folder that goes afterwards: all normalizers at five batches, as
many seeds as it takes. Held against the least that reading them can be: each file opened, and its
JSON read.
"""

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path

from normbench import results
from normbench.bench.measured import Once, in_turn, leave, taken
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.errors import BadInput, counted
from normbench.report.build import specs
from normbench.report.pivot import tables
from normbench.results import Row

OWN = {"rows": "10000", "rounds": "7", "out": ""}
GRID = ("-m", "norm=glob(*)", "batch=2,4,8,32,128", "logger=none")


def bench(words: Sequence[str]) -> None:
    """As the command says."""
    own, rest = taken(words, OWN)
    if rest:
        raise BadInput(f"{rest[0]}: report has no such word; it has {', '.join(OWN)}")
    number, rounds = counted("rows", own["rows"], 1), counted("rounds", own["rounds"], 7)
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder, "runs"), Path(folder, "reports")
        for row in islice(_rows(), number):
            results.write(root / row.sweep / row.id, row)
        command = [sys.executable, "-m", "normbench.report", f"runs={root}", f"out={out}"]
        entries: dict[str, Once] = {
            "JSON alone": partial(_json, root), "tables": partial(_tables, root),
            "command, nothing new": partial(_command, command),
        }  # fmt: skip
        found = in_turn(entries, rounds)
    base = found["JSON alone"].median
    leave(
        own["out"],
        [
            {
                "rows": number, "what": what, **took.over(base), "seconds": took.median,
            }
            for what, took in found.items()
        ],
    )  # fmt: skip


def _rows() -> Iterator[Row]:
    """Seed by seed the rows of a grid, with numbers that could be those of runs."""
    cells, _ = compose([*GRID])
    for seed in count():
        for cell in cells:
            yield _row(replace(cell, seed=seed))


def _row(cell: Cell) -> Row:
    top1 = 90 + int(cell.id, 16) % 1000 / 100
    return Row(
        **cell.description("made_up"), status="ok", train_loss=0.1, train_top1=99.0, val_top1=top1,
        test_top1=top1, test_top5=99.5, test_loss=0.3, params=175_258, macs=1_000_000,
        coverage="norms 15 of 15", seconds=4.0, images_per_second=9_000.0,
        peak_memory=700_000_000, device_memory=24_000_000_000, devices="1 x cpu (x86_64)",
        plan="1 x 1 x 1", threads=1, impl="eager", loader="memory",
        finished="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def _json(root: Path) -> float:
    started = time.perf_counter()
    for path in root.glob("*/*/row.json"):
        json.loads(path.read_bytes())
    return time.perf_counter() - started


def _tables(root: Path) -> float:
    known = specs()
    gc.collect()
    started = time.perf_counter()
    rows = results.read(root)
    made = tables(known, rows, None, empty=True)
    seconds = time.perf_counter() - started
    del rows, made  # a report ends with them, and frees nothing
    return seconds


def _command(words: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
