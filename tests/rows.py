"""Rows as trainings of several seeds would leave them."""

import itertools
from collections.abc import Sequence
from typing import Any

from test_results import row

from normbench.results import Row

counter = itertools.count()


def runs(norm: str, batch: int, values: Sequence[float | None], **changes: Any) -> list[Row]:
    """A run for each test accuracy, with 8 workers; None is one that diverged."""
    workers = {"protocol": "fixed_workers", "workers": 8, "global_batch": 8 * batch}
    known = {"norm": norm, "batch": batch, "batch_independent": norm != "bn", **workers, **changes}
    fates = ["diverged" if value is None else "ok" for value in values]
    return [
        row(
            id=f"{next(counter):012d}", seed=seed, test_top1=value,
            **{"status": fate} | known,
        )
        for seed, (value, fate) in enumerate(zip(values, fates, strict=True))
    ]  # fmt: skip


FAR = [*runs("bn", 4, [70.0, 70.5, 71.0]), *runs("bn", 64, [80.0, 80.2, 80.4])]
