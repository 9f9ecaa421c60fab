"""How often groups of seeds show what the README says of the demonstration.

    PYTHONPATH=tests python -m support.demonstration_rates RUNS [SIZE]

RUNS has the rows of its grid with many seeds. They are split into groups of SIZE seeds (5), in
their order, and each group is judged as if it were the command's own.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from normbench import results
from normbench.report.recommendation import recommendations
from normbench.report.statistics import welch_contrast
from normbench.results import Row
from support.rows import batch_size_tables

MANY = 128


def judge(rows: Sequence[Row]) -> dict[str, bool]:
    """Return which effects a group of seeds shows, each by its 95 % interval."""
    effects = {}
    (table,) = batch_size_tables(list(rows))
    for column in recommendations(table):
        if column.batch == MANY:
            continue
        samples = [
            [row.test_top1 or 0.0 for row in rows if row.norm == "bn" and row.batch == batch]
            for batch in (MANY, column.batch)
        ]
        loss = welch_contrast([(1.0, samples[0]), (-1.0, samples[1])])
        effects[f"bn loses accuracy from {MANY} to {column.batch} images per worker"] = (
            loss.low is not None and loss.low > 0
        )
        effects[f"bn is significantly worse than evonorm_s0 at {column.batch}"] = "bn" in [
            each.name for each in column.worse
        ]
    return effects


def groups(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Return the rows of each group of `size` seeds, as rows of a command with so many seeds.

    Seeds whose grid is not complete are left out.
    """
    cells: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for row in rows:
        cells[row.seed].add((row.norm, row.batch))
    norms, batches = ({place[axis] for each in cells.values() for place in each} for axis in (0, 1))
    complete = [seed for seed in sorted(cells) if len(cells[seed]) == len(norms) * len(batches)]
    parts = [complete[start : start + size] for start in range(0, len(complete), size)]
    return [
        [replace(row, command_seeds=size) for row in rows if row.seed in part]
        for part in parts
        if len(part) == size
    ]


def main(runs: str, size: str = "5") -> None:
    rows = results.read(Path(runs))
    judged = [judge(group) for group in groups(rows, int(size))]
    print(f"{len(judged)} groups of {size} seeds, {len(rows)} rows")
    for effect in dict.fromkeys(effect for each in judged for effect in each):
        seen = [each[effect] for each in judged if effect in each]
        print(f"{sum(seen):4} of {len(seen)}: {effect}")
    failed = [f"{row.norm} batch={row.batch} seed={row.seed}" for row in rows if row.status != "ok"]
    print(f"runs without a result: {', '.join(failed) or 'none'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
