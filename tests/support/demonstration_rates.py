"""How often groups of seeds show what the README says of the demonstration.

    PYTHONPATH=tests python -m support.demonstration_rates RUNS [SIZE]

RUNS has the rows of its grid with many seeds. They are split into groups of SIZE seeds (5), in
their order, and each group is judged as if it were the command's own.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from normbench import results
from normbench.report.recommendation import recommendations
from normbench.report.statistics import welch_contrast
from normbench.results import Row
from support.rows import batch_size_tables

FEW, SECOND, MANY = 2, 4, 128


def judge(rows: Sequence[Row]) -> dict[str, bool]:
    """Return which effects a group of seeds shows, each by its 95 % interval."""
    accuracies: dict[int, list[float]] = {}
    for row in rows:
        if row.norm == "bn" and row.test_top1 is not None:
            accuracies.setdefault(row.batch, []).append(row.test_top1)

    def falls(batch: int) -> bool:
        loss = welch_contrast([(1.0, accuracies[MANY]), (-1.0, accuracies[batch])])
        return loss.low is not None and loss.low > 0

    (table,) = batch_size_tables(list(rows))
    at_few = next(column for column in recommendations(table) if column.batch == FEW)
    return {
        f"bn loses accuracy from {MANY} to {FEW} images per worker": falls(FEW),
        f"bn loses accuracy from {MANY} to {SECOND}": falls(SECOND),
        f"bn is significantly worse than evonorm_s0 at {FEW}": [each.name for each in at_few.worse]
        == ["bn"],
    }


def groups(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Return the rows of each group of `size` seeds, as rows of a command with so many seeds."""
    seeds = sorted({row.seed for row in rows})
    parts = [seeds[start : start + size] for start in range(0, len(seeds) - size + 1, size)]
    return [
        [replace(row, command_seeds=size) for row in rows if row.seed in part] for part in parts
    ]


def main(runs: str, size: str = "5") -> None:
    rows = results.read(Path(runs))
    judged = [judge(group) for group in groups(rows, int(size))]
    print(f"{len(judged)} groups of {size} seeds, {len(rows)} rows")
    for effect in judged[0]:
        print(f"{sum(each[effect] for each in judged):4} {effect}")
    failed = [f"{row.norm} batch={row.batch} seed={row.seed}" for row in rows if row.status != "ok"]
    print(f"runs without a result: {', '.join(failed) or 'none'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
