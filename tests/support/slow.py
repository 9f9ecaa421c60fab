"""The marker `slow` for most cases of a test: a few stay in `make check`."""

from collections.abc import Sequence
from typing import Any

import pytest

#: Normalizers whose expensive tests run every day: statistics of the batch, running statistics
#: that training reads, an activation of its own, a proxy, a mixture.
EVERYDAY_NORMS = ("bn", "batch_renorm", "evonorm_b0", "gn_pn", "sn")


def slow_except(cases: Sequence[Any], everyday: Sequence[Any]) -> list[Any]:
    """Mark the cases of a parametrized test as slow, apart from those in `everyday`.

    A case is a value, or a tuple of values for several arguments.

    Raises:
        ValueError: one of `everyday` is no case.
    """
    if strange := [each for each in everyday if each not in cases]:
        raise ValueError(f"{strange} are no cases of this test")
    return [
        case
        if case in everyday
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def slow_after(number: int, cases: Sequence[Any]) -> list[Any]:
    """Mark all but the first `number` cases of a parametrized test as slow."""
    return slow_except(cases, cases[:number])
