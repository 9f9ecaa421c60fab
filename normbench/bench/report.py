"""Time of tables from many rows, and of the whole command when no row is new.

The rows are made up, in a temporary folder: all normalizers at five batches, with as many seeds as
needed. The base is the least that reading can take: each file is opened and its JSON parsed.
"""

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path

from normbench import results
from normbench.bench.measure import compare, measure_in_turn, save
from normbench.bench.options import BenchReportOptions
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.report import build
from normbench.report.pivot import tables
from normbench.results import Row

GRID = ("-m", "norm=glob(*)", "batch=2,4,8,32,128", "logger=none")


def bench_report(options: BenchReportOptions, _: Sequence[str]) -> None:
    """Time reading and tables of made-up rows."""
    specs = build.specs()
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder, "runs"), Path(folder, "reports")
        for row in islice(_made_up_rows(), options.rows):
            results.write(root / row.sweep / row.id, row)
        command = [sys.executable, "-m", "normbench.report", f"runs={root}", f"reports={out}"]
        works: dict[str, Callable[[], object]] = {
            "JSON alone": partial(_parse_json, root),
            "tables": lambda: tables(specs, results.read(root), None, empty=True),
            "command, nothing new": lambda: subprocess.run(
                command, check=True, stdout=subprocess.DEVNULL
            ),
        }
        entries = {name: partial(_seconds, work) for name, work in works.items()}
        timings = measure_in_turn(entries, options.rounds)
    save(options.out, compare(timings, "what", "seconds", rows=options.rows))


def _made_up_rows() -> Iterator[Row]:
    """Yield the rows of a grid, seed by seed, with made-up numbers."""
    cells, _ = compose([*GRID])
    for seed in count():
        for cell in cells:
            yield _made_up_row(replace(cell, seed=seed))


def _made_up_row(cell: Cell) -> Row:
    # Another accuracy for each id, so that entries differ and have deviations.
    top1 = 90 + int(cell.id, 16) % 1000 / 100
    return Row(
        **cell.description("made_up"), status="ok", train_loss=0.1, train_top1=99.0, val_top1=top1,
        test_top1=top1, test_top5=99.5, test_loss=0.3, params=175_258, macs=1_000_000,
        coverage="norms 15 of 15", seconds=4.0, images_per_second=9_000.0,
        peak_memory=700_000_000, device_memory=24_000_000_000, devices="1 x cpu (x86_64)",
        plan="1 x 1 x 1", threads=1, impl="eager", loader="memory",
        finished="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def _parse_json(root: Path) -> None:
    for path in root.glob("*/*/row.json"):
        json.loads(path.read_bytes())


def _seconds(work: Callable[[], object]) -> float:
    # What earlier work has left is not collected within this time.
    gc.collect()
    started = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - started
    del result  # outside the time, as a report ends without freeing its rows
    return seconds
