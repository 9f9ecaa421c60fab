"""A covering sample: few rows in which nevertheless every pair of values of two factors occurs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]


def covering(factors: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Rows, greedily: each starts with a pair that is missing and adds what covers the most."""
    missing = set(pairs(factors))
    rows = []
    while missing:
        row = dict(min(missing))
        for factor in factors:
            if factor not in row:
                places = range(len(factors[factor]))
                row[factor] = max(places, key=lambda place: _gain(row, factor, place, missing))
        missing -= set(_pairs_of(row))
        rows.append({factor: factors[factor][row[factor]] for factor in factors})
    return rows


def pairs(factors: Mapping[str, Sequence[Any]]) -> Iterator[Pair]:
    """Every pair of values, by their places, of every pair of factors."""
    for first, second in combinations(sorted(factors), 2):
        for i in range(len(factors[first])):
            for j in range(len(factors[second])):
                yield (first, i), (second, j)


def _gain(row: Mapping[str, int], factor: str, place: int, missing: set[Pair]) -> int:
    return len(missing & set(_pairs_of({**row, factor: place})))


def _pairs_of(row: Mapping[str, int]) -> Iterator[Pair]:
    for first, second in combinations(sorted(row), 2):
        yield (first, row[first]), (second, row[second])
