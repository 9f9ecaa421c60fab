"""Rows as trainings would leave them."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normbench import results
from normbench.report import build
from normbench.report.pivot import tables
from normbench.report.table import Table
from normbench.results import Row

#: Fields of a row that a clock, the memory or the working directory decide.
MEASURED = (
    "seconds", "images_per_second", "peak_memory", "finished", "resumed", "wandb", "wandb_failure",
    "commit",
)  # fmt: skip

counter = itertools.count()


def row(**changes: Any) -> Row:
    """Return a row as a run of bn would leave it."""
    values: dict[str, Any] = {
        "id": "0123456789ab", "sweep": "default", "norm": "bn", "batch": 4, "workers": 32,
        "global_batch": 128, "protocol": "fixed_global_batch", "model": "resnet14",
        "data": "digits", "reg": "none", "recipe": "demo", "seed": 0, "precision": "32-true",
        "options": "", "status": "ok", "test_top1": 90.0,
    }  # fmt: skip
    values |= changes
    return Row(**{"config": config(values), **values})


def config(values: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration that belongs to the plain values of a row."""
    groups = ("norm", "model", "data", "reg", "recipe")
    plain = ("batch", "workers", "global_batch", "protocol", "seed", "precision")
    name = values.get("task", "classify")
    task = {} if name == "classify" else {"task": {"name": name}}
    return (
        {group: {"name": values[group]} for group in groups}
        | task
        | {key: values[key] for key in plain}
    )


def write_row(root: Path, sweep: str = "default", **changes: Any) -> Path:
    """Write a row below `root` and return its folder."""
    written = row(sweep=sweep, **changes)
    folder = root / sweep / written.id
    results.write(folder, written)
    return folder


def numbers(row: Row) -> dict[str, Any]:
    """Return the fields of a row that another run of the same cell must repeat."""
    return {name: value for name, value in vars(row).items() if name not in MEASURED}


def run(norm: str, batch: int, seed: int, top1: float | None, **changes: Any) -> Row:
    """Return a row of its own id, with 128 images in the global batch."""
    values = {
        "id": f"{next(counter):012d}", "norm": norm, "batch": batch, "workers": 128 // batch,
        "seed": seed, "test_top1": top1, "batch_independent": norm != "bn", **changes,
    }  # fmt: skip
    return row(**values)


def dense(norm: str, batch: int, numbers: list[float], task: str, metric: str) -> list[Row]:
    """Return a row of a dense task for each of its main numbers."""
    return [
        run(
            norm, batch, seed, None, status="ok", reason="", task=task, metric=metric,
            metrics={metric: number}, data="scattered_digits",
        )
        for seed, number in enumerate(numbers)
    ]  # fmt: skip


def runs(norm: str, batch: int, values: Sequence[float | None], **changes: Any) -> list[Row]:
    """Return a row of 8 workers for each test accuracy; None is one that diverged."""
    workers = {"protocol": "fixed_workers", "workers": 8, "global_batch": 8 * batch}
    shared = {"norm": norm, "batch": batch, "batch_independent": norm != "bn", **workers, **changes}
    statuses = ["diverged" if value is None else "ok" for value in values]
    return [
        row(
            id=f"{next(counter):012d}", seed=seed, test_top1=value,
            **{"status": status} | shared,
        )
        for seed, (value, status) in enumerate(zip(values, statuses, strict=True))
    ]  # fmt: skip


def batch_size_tables(rows: list[Row]) -> list[Table]:
    """Return the tables that reports/tables/batch_size.yaml makes of `rows`."""
    return tables(build.specs(["batch_size"]), rows, None)


#: Two normalizers at two batch sizes, two or three seeds each.
RUNS = [
    *(run("bn", 4, seed, top1) for seed, top1 in enumerate([80.0, 84.0, 82.0])),
    *(run("bn", 128, seed, top1) for seed, top1 in enumerate([90.0, 92.0, 94.0])),
    *(run("gn", batch, seed, 88.0 + seed) for batch in (4, 128) for seed in (0, 1)),
]
#: bn at a small and a large batch, far apart.
FAR = [*runs("bn", 4, [70.0, 70.5, 71.0]), *runs("bn", 64, [80.0, 80.2, 80.4])]
