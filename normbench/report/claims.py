"""Claims of papers, read from reports/claims/: each compares entries of a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from math import log2
from statistics import fmean
from typing import Any

from normbench.errors import BadInput, choose_from
from normbench.report.metrics import METRICS, Metric
from normbench.report.table_spec import Label, TableSpec

KINDS = ("higher", "not_lower", "alike", "spread", "deviation", "more", "rises", "falls")
UNSIGNED = ("spread", "deviation")  # kinds whose effect is never negative
Pick = tuple[Label, Label]  # row and column of an entry


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, stated as a comparison of entries of a table.

    Args:
        name: key in its file.
        paper: that makes the claim.
        place: section, table or figure of the paper.
        says: the sentence.
        tables: in which it is judged, each table alone.
        kind: comparison of the entries:
            higher: the first is above the second (or above 0) by more than `bound`;
            not_lower: the first is below the second by at most `bound`;
            alike: two differ by at most `bound`;
            more: first minus second exceeds third minus fourth by more than `bound`;
            spread: largest and smallest mean of a row differ by at most `bound`;
            deviation: the standard deviation over seeds is at most `bound`;
            rises, falls: sign of the slope over log2 of the images per worker.
        picks: the entries; a word with * stands for several rows or columns, and the claim is about
            each of them.
        bound: in the unit of the metric.
        average: with *, the claim is about the mean and not about each.
        metric: that is compared, if it is not the table's.
    """

    name: str
    paper: str
    place: str
    says: str
    tables: tuple[str, ...]
    kind: str
    picks: tuple[Pick, ...]
    bound: float = 0.0
    average: bool = False
    metric: Metric | None = None

    @property
    def sentence(self) -> str:
        """Return the sentence of the paper and the bound that makes it precise."""
        return self.says + (f" (bound {self.bound:g})" if self.bound else "")

    @property
    def flat(self) -> bool:
        """Return whether the claim is about the shape of a row."""
        return self.kind in ("spread", "rises", "falls")


def claims(file: str, raw: Mapping[str, Any], specs: Mapping[str, TableSpec]) -> list[Claim]:
    """Parse a file of reports/claims/.

    Args:
        file: its name.
        raw: its content.
        specs: all tables by name.

    Raises:
        BadInput: a claim is invalid or about a table, row or column that does not exist.
    """
    found = []
    for name, entry in raw["claims"].items():
        try:
            claim = _claim(name, str(raw["paper"]), dict(entry))
            for table in claim.tables:
                if table not in specs:
                    raise ValueError(f"table {table} is unknown; {choose_from(table, specs)}")
                for picks in claim_alternatives(claim, specs[table]):
                    claim_weights(claim, specs[table], picks)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"reports/claims/{file}.yaml, {name}: {error}") from error
        found.append(claim)
    return found


def _claim(name: str, paper: str, entry: dict[str, Any]) -> Claim:
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise ValueError(f"a claim needs exactly one of {', '.join(KINDS)}")
    picks = tuple((_label(row), _label(column)) for row, column in entry.pop(kinds[0]))
    metric = entry.pop("metric", None)
    if metric is not None and metric not in METRICS:
        raise ValueError(f"metric={metric} is unknown; {choose_from(metric, METRICS)}")
    found = Claim(
        name=name,
        paper=paper,
        place=entry.pop("place"),
        says=entry.pop("says"),
        tables=tuple(entry.pop("tables")),
        kind=kinds[0],
        picks=picks,
        bound=float(entry.pop("bound", 0.0)),
        average=entry.pop("average", False),
        metric=METRICS[metric] if metric else None,
    )
    for key in entry:
        known = [*Claim.__dataclass_fields__, *KINDS]
        raise ValueError(f"{key} is no key of a claim; {choose_from(key, known)}")
    wanted = {
        "higher": (1, 2),
        "not_lower": (1, 2),
        "alike": (1, 2),
        "deviation": (1,),
        "more": (4,),
    }.get(kinds[0])
    if wanted and len(picks) not in wanted:
        raise ValueError(f"{kinds[0]} compares {' or '.join(map(str, wanted))} entries")
    return found


def _label(words: Any) -> Label:
    return tuple(map(str, words)) if isinstance(words, list) else (str(words),)


def claim_alternatives(claim: Claim, spec: TableSpec) -> Iterator[tuple[Pick, ...]]:
    """Yield the entries of a claim for each value of *, the same value in all entries.

    Kinds about a whole row yield all entries at once.

    Raises:
        ValueError: the table has no such row or column.
    """
    assert spec.fixed is not None
    rows, columns = ([place.label for place in axis] for axis in spec.fixed)
    matching = [
        [
            (row, column)
            for row, column in product(rows, columns)
            if _matches(pick[0], row) and _matches(pick[1], column)
        ]
        for pick in claim.picks
    ]
    for pick, found in zip(claim.picks, matching, strict=True):
        if not found:
            raise ValueError(f"{spec.name} has no entry {' '.join(pick[0])}, {' '.join(pick[1])}")
    if claim.flat:
        yield tuple(entry for found in matching for entry in found)
        return
    several = [len(found) for found in matching if len(found) > 1]
    if len(set(several)) > 1:
        raise ValueError("* stands for different numbers of entries")
    for index in range(several[0] if several else 1):
        yield tuple(found[index] if len(found) > 1 else found[0] for found in matching)


def _matches(wanted: Label, label: Label) -> bool:
    if wanted == ("*",):
        return True
    return len(wanted) == len(label) and all(
        fnmatchcase(own, word) for word, own in zip(wanted, label, strict=True)
    )


def claim_weights(claim: Claim, spec: TableSpec, picks: Sequence[Pick]) -> list[float]:
    """Return the weight of each entry in the effect."""
    if claim.kind == "more":
        return [1.0, -1.0, -1.0, 1.0]
    if claim.kind in UNSIGNED:
        return [1.0] * len(picks)
    if claim.kind not in ("rises", "falls"):
        return [1.0, -1.0][: len(picks)]
    x = [log2(_batch(spec, pick)) for pick in picks]
    center = fmean(x)
    total = sum((each - center) ** 2 for each in x)
    sign = 1.0 if claim.kind == "rises" else -1.0
    return [sign * (each - center) / total for each in x]


def _batch(spec: TableSpec, pick: Pick) -> int:
    """Return the images per worker of an entry, from its row or column.

    Raises:
        ValueError: neither has images per worker.
    """
    assert spec.fixed is not None
    for axis, label in zip(spec.fixed, pick, strict=True):
        for place in axis:
            if place.label == label and place.batch is not None:
                return place.batch
    raise ValueError(f"{' '.join(pick[0])}, {' '.join(pick[1])} has no images per worker")
