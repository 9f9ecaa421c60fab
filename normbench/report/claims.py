"""Claims of papers, read from reports/claims/: each compares entries of a table."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise, product
from typing import Any

from normbench.errors import DamagedFile, choose_from
from normbench.report.metrics import METRICS, Metric
from normbench.report.table_spec import Label, Position, TableSpec
from normbench.report.yaml_checks import INVALID, Types, check_keys, check_types, reason

#: Kinds of claims, and how many entries each compares; () is any number.
KINDS: Mapping[str, Sequence[int]] = {
    "higher": (1, 2), "not_lower": (1, 2), "alike": (1, 2), "spread": (), "deviation": (1,),
    "more": (4,), "rises": (), "falls": (),
}  # fmt: skip
_OPTIONAL = (*KINDS, "bound", "average", "metric")
_TYPES: Types = {
    "place": str, "says": str, "tables": list, "bound": (int, float), "average": bool,
    "metric": str,
}  # fmt: skip
UNSIGNED = ("spread", "deviation")  # kinds whose effect is never negative


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, stated as a comparison of entries of a table.

    Its kind is the comparison:

        higher     the first is above the second (or above 0) by more than `bound`
        not_lower  the first is below the second by at most `bound`
        alike      two differ by at most `bound`
        more       first minus second exceeds third minus fourth by more than `bound`
        spread     largest and smallest mean of a row differ by at most `bound`
        deviation  the standard deviation over seeds is at most `bound`
        rises      from each number of images per worker to the next larger one, the entry grows
                   by more than `bound`
        falls      likewise, it shrinks
    """

    name: str  # key in its file
    paper: str  # authors and year
    place: str  # section, table or figure of the paper
    says: str
    tables: tuple[str, ...]  # in which it is judged, each table alone
    kind: str
    picks: tuple[Position, ...]  # a word with * stands for several entries; the claim is about each
    bound: float = 0.0  # in the unit of the metric
    average: bool = False  # with *, the claim is about the mean and not about each
    metric: Metric | None = None  # that is compared, if it is not the table's

    @property
    def sentence(self) -> str:
        """The sentence of the paper and the bound that makes it precise."""
        return self.says + (f" (bound {self.bound:g})" if self.bound else "")

    @property
    def about_row(self) -> bool:
        """True if the claim is about the shape of a row of the table: flat, rising or falling."""
        return self.kind == "spread" or self.trend

    @property
    def trend(self) -> bool:
        """True if the claim is about growing or shrinking with the images per worker."""
        return self.kind in ("rises", "falls")

    @property
    def two_sided(self) -> bool:
        """True if the bound limits the size of the effect, whatever its sign."""
        return self.kind in ("alike", *UNSIGNED)


def claims(file: str, raw: Mapping[str, Any], specs: Mapping[str, TableSpec]) -> list[Claim]:
    """Parse the content of a file of reports/claims/; `specs` are all tables by name.

    Raises:
        DamagedFile: a claim is invalid or about a table, row or column that does not exist.
    """
    parsed = []
    # For the message: the claim at which parsing has arrived.
    name = ""
    try:
        check_keys(raw, "a file of claims", required=("paper", "claims"))
        check_types(raw, {"paper": str, "claims": dict})
        for name, entry in raw["claims"].items():
            claim = _claim(name, str(raw["paper"]), entry)
            for table in claim.tables:
                if table not in specs:
                    raise ValueError(f"table {table} is unknown; {choose_from(table, specs)}")
                list(claim_alternatives(claim, specs[table]))
            parsed.append(claim)
    except INVALID as error:
        place = f", {name}" if name else ""
        raise DamagedFile(f"reports/claims/{file}.yaml{place}: {reason(error)}") from error
    return parsed


def _claim(name: str, paper: str, entry: Mapping[str, Any]) -> Claim:
    if not isinstance(entry, dict):
        raise ValueError("a claim has keys, as `says: ...`")
    check_keys(entry, "a claim", ("place", "says", "tables"), _OPTIONAL)
    check_types(entry, _TYPES)
    kind = find_kind(entry, KINDS, "a claim", "entries")
    picks = tuple((_label(row), _label(column)) for row, column in entry[kind])
    if kind in ("rises", "falls") and entry.get("average"):
        # In the mean of all steps only the two ends would count.
        raise ValueError(f"{kind} is about every step; leave out average")
    metric = entry.get("metric")
    if metric is not None and metric not in METRICS:
        raise ValueError(f"metric={metric} is unknown; {choose_from(metric, METRICS)}")
    return Claim(
        name, paper, entry["place"], entry["says"], tuple(entry["tables"]), kind, picks,
        float(entry.get("bound", 0.0)), entry.get("average", False),
        METRICS[metric] if metric else None,
    )  # fmt: skip


def find_kind(
    entry: Mapping[str, Any], kinds: Mapping[str, Sequence[int]], what: str, compared: str
) -> str:
    """Return the key of a claim that is its kind, and compares as many things as `kinds` says.

    Raises:
        ValueError: there is none, or several; or it compares another number of things.
    """
    present = [kind for kind in kinds if kind in entry]
    if len(present) != 1:
        raise ValueError(f"{what} needs exactly one of {', '.join(kinds)}")
    (kind,) = present
    if kinds[kind] and len(entry[kind]) not in kinds[kind]:
        raise ValueError(f"{kind} compares {' or '.join(map(str, kinds[kind]))} {compared}")
    return kind


def _label(words: Any) -> Label:
    return tuple(map(str, words)) if isinstance(words, list) else (str(words),)


def claim_alternatives(claim: Claim, spec: TableSpec) -> Iterator[tuple[Position, ...]]:
    """Yield the entries of a claim for each value of *, the same value in all entries.

    A spread yields all entries at once; a trend yields neighbours, the larger value first.

    Raises:
        ValueError: the table has no such row or column, or a trend is claimed of entries without
            different numbers of images per worker.
    """
    places = [(row.label, column.label) for row, column in product(spec.rows, spec.columns)]
    matching = []
    for row, column in claim.picks:
        matches = [place for place in places if _fits(row, place[0]) and _fits(column, place[1])]
        if not matches:
            raise ValueError(f"{spec.name} has no entry {' '.join(row)}, {' '.join(column)}")
        matching.append(matches)
    if claim.about_row:
        entries = [place for matches in matching for place in matches]
        yield from _neighbours(claim, spec, entries) if claim.trend else [tuple(entries)]
        return
    counts = {len(matches) for matches in matching} - {1}
    if len(counts) > 1:
        raise ValueError("* stands for different numbers of entries")
    # A pick without * has one match, which is compared with every match of the others.
    for index in range(max(counts, default=1)):
        yield tuple(matches[index % len(matches)] for matches in matching)


def _neighbours(
    claim: Claim, spec: TableSpec, entries: Sequence[Position]
) -> Iterator[tuple[Position, Position]]:
    """Yield neighbours in the order of images per worker, first the one that is claimed higher."""
    batches = {_batch(spec, entry): entry for entry in entries}
    if len(batches) < len(entries) or len(batches) < 2:
        raise ValueError(f"{claim.kind} compares entries with different images per worker")
    for fewer, more in pairwise(sorted(batches)):
        pair = batches[more], batches[fewer]
        yield pair if claim.kind == "rises" else pair[::-1]


def _fits(wanted: Label, label: Label) -> bool:
    if wanted == ("*",):
        return True
    return len(wanted) == len(label) and all(map(fnmatchcase, label, wanted))


def claim_weights(claim: Claim, picks: Sequence[Position]) -> list[float]:
    """Return the weight of each entry in the effect."""
    if claim.kind == "more":
        # (first - second) - (third - fourth)
        return [1.0, -1.0, -1.0, 1.0]
    if claim.kind in UNSIGNED:
        return [1.0] * len(picks)
    return [1.0, -1.0][: len(picks)]


def claim_comparisons(claim: Claim, spec: TableSpec) -> list[dict[Position, float]]:
    """Return the weight of each entry in each comparison of a claim, all of which have to hold."""
    alternatives = list(claim_alternatives(claim, spec))
    comparisons = [alternatives] if claim.average else [[picks] for picks in alternatives]
    return [_mean_weights(claim, picks) for picks in comparisons]


def _mean_weights(
    claim: Claim, alternatives: Sequence[Sequence[Position]]
) -> dict[Position, float]:
    """Return the weight of each entry in the mean of comparisons; a repeated entry has one."""
    total: dict[Position, float] = defaultdict(float)
    for picks in alternatives:
        for pick, weight in zip(picks, claim_weights(claim, picks), strict=True):
            total[pick] += weight / len(alternatives)
    return dict(total)


def _batch(spec: TableSpec, pick: Position) -> int:
    """Return the images per worker of an entry, from its row or column."""
    for axis, label in zip((spec.rows, spec.columns), pick, strict=True):
        for header in axis:
            if header.label == label and header.batch is not None:
                return header.batch
    raise ValueError(f"{' '.join(pick[0])}, {' '.join(pick[1])} has no images per worker")
