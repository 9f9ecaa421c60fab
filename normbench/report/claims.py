"""A file of reports/claims/: sentences of a paper, each a comparison of cells of a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from math import log2
from statistics import fmean
from typing import Any

from normbench.errors import BadInput, choose_from
from normbench.report.metrics import METRICS, Metric
from normbench.report.table_spec import Label, Spec

KINDS = ("higher", "not_lower", "alike", "spread", "deviation", "more", "rises", "falls")
UNSIGNED = ("spread", "deviation")  # of these effects both ends are at least 0
Pick = tuple[Label, Label]  # row and column of a cell


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and the comparison that it stands for.

    Args:
        name: in its file.
        paper: who claims it.
        place: where in the paper.
        says: the sentence.
        tables: whose cells are compared, each table by itself.
        kind: higher and not_lower compare the first cell with the second (or with 0), `more` the
            difference of two cells with that of two others; alike asks for a difference of at most
            `bound`, spread that a row of cells lies within `bound`, deviation that the standard
            deviation over the seeds of a cell is at most `bound`; rises and falls ask for the sign
            of the slope over the logarithm of the images per worker.
        picks: the cells; a word with * stands for several rows or columns, and the claim for each.
        bound: in the unit of the metric.
        average: over what * stands for, the mean is meant and not each of them.
        metric: that is compared, if it is not what the table prints.
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
    def flat(self) -> bool:
        """Whether it is about a row being flat, which one computation is by construction."""
        return self.kind in ("spread", "rises", "falls")


def claims(file: str, raw: Mapping[str, Any], specs: Mapping[str, Spec]) -> list[Claim]:
    """The claims of a file of reports/claims/.

    Args:
        file: its name.
        raw: its content.
        specs: all tables by name.

    Raises:
        BadInput: a claim is about something that is not there.
    """
    found = []
    for name, entry in raw["claims"].items():
        try:
            claim = _claim(name, str(raw["paper"]), dict(entry))
            for table in claim.tables:
                if table not in specs:
                    raise ValueError(f"table {table} is unknown; {choose_from(table, specs)}")
                for picks in alternatives_of(claim, specs[table]):
                    weights_of(claim, specs[table], picks)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"reports/claims/{file}.yaml, {name}: {error}") from error
        found.append(claim)
    return found


def _claim(name: str, paper: str, entry: dict[str, Any]) -> Claim:
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise ValueError(f"a claim has one of {', '.join(KINDS)}")
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
        raise ValueError(f"{kinds[0]} compares {' or '.join(map(str, wanted))} cells")
    return found


def _label(words: Any) -> Label:
    return tuple(map(str, words)) if isinstance(words, list) else (str(words),)


def alternatives_of(claim: Claim, spec: Spec) -> Iterator[tuple[Pick, ...]]:
    """The cells of a claim with every word that * can stand for, the same one in all cells.

    For kinds that take a row of cells these are one alternative.

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
            raise ValueError(f"{spec.name} has no cell {' '.join(pick[0])}, {' '.join(pick[1])}")
    if claim.flat:
        yield tuple(cell for found in matching for cell in found)
        return
    several = [len(found) for found in matching if len(found) > 1]
    if len(set(several)) > 1:
        raise ValueError("* stands for different numbers of cells")
    for index in range(several[0] if several else 1):
        yield tuple(found[index] if len(found) > 1 else found[0] for found in matching)


def _matches(wanted: Label, label: Label) -> bool:
    if wanted == ("*",):
        return True
    return len(wanted) == len(label) and all(
        fnmatchcase(own, word) for word, own in zip(wanted, label, strict=True)
    )


def weights_of(claim: Claim, spec: Spec, picks: Sequence[Pick]) -> list[float]:
    """What each cell counts in the effect."""
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


def _batch(spec: Spec, pick: Pick) -> int:
    """Images per worker of a cell, which its row or its column says.

    Raises:
        ValueError: neither does.
    """
    assert spec.fixed is not None
    for axis, label in zip(spec.fixed, pick, strict=True):
        for place in axis:
            if place.label == label and place.batch is not None:
                return place.batch
    raise ValueError(f"{' '.join(pick[0])}, {' '.join(pick[1])} is not about images per worker")
