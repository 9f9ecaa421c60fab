"""Claims of papers about quantities inside networks, from the files of reports/figures/."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from normbench.errors import choose_from
from normbench.records.probes import Record, group_by
from normbench.report import claims as of_tables
from normbench.report.yaml_checks import Types, check_keys, check_types

#: Kinds of claims, two of those of reports/claims/, and how many curves each compares.
KINDS: Mapping[str, Sequence[int]] = {kind: of_tables.KINDS[kind] for kind in ("higher", "alike")}
EACH = "*"  # stands for each value of a column
_TYPES: Types = {
    "says": str, "place": str, "higher": list, "alike": list, "than": (int, float),
    "bound": (int, float), "mean": bool,
}  # fmt: skip


def pair_name(first: str, other: str) -> str:
    """Return the name that the divergences between two networks have in their records."""
    return f"{first} || {other}"


class Curve(NamedTuple):
    """A column of a probe's records, of one network."""

    network: str
    column: str
    where: Mapping[str, Any]  # values of other columns


@dataclass(frozen=True)
class ProbeClaim:
    """A sentence of a paper, stated as a comparison of curves of a figure.

    A curve is a column of the probe's records for one network, at the last epoch unless `where`
    names one. Its value is that of the last block or layer, or with `mean` the mean over all. The
    second curve may be a number instead.

        higher  the first is above the second by more than `bound`
        alike   the two differ by at most `bound`

    A column that is * in `where` stands for each of its values, the same one in both curves; the
    claim is about each. The bounds are ours: papers draw these curves and print few numbers.
    """

    says: str
    place: str  # section or figure of the paper
    kind: str
    curves: tuple[Curve, ...]  # one or two
    than: float = 0.0  # the number that one curve is compared with
    bound: float = 0.0
    mean: bool = False

    def effect(self, records: Sequence[Record]) -> float | None:
        """Return the difference that is compared with the bound, in the networks of one seed.

        With * it is the least favourable one to the claim. None if a network has no
        such numbers, because it does not work on these images.
        """
        effects: list[float] = []
        for values in self._alternatives(records):
            curves = [_numbers(records, curve, values) for curve in self.curves]
            if not all(curves):
                return None
            means = [fmean(numbers) if self.mean else numbers[-1] for numbers in curves]
            effects.append(means[0] - (means[1] if len(means) > 1 else self.than))
        if not effects:
            return None
        return min(effects) if self.kind == "higher" else max(effects, key=abs)

    def holds(self, effect: float | None) -> bool:
        if effect is None:
            return False
        return effect > self.bound if self.kind == "higher" else abs(effect) <= self.bound

    def _alternatives(self, records: Sequence[Record]) -> Iterator[Mapping[str, Any]]:
        """Yield the values of the columns that are *."""
        first = self.curves[0]
        columns = _starred(first)
        combinations = [
            tuple(each[name] for name in columns) for each in _records(records, first, {})
        ]
        for values in dict.fromkeys(combinations):
            yield dict(zip(columns, values, strict=True))


def _records(records: Sequence[Record], curve: Curve, values: Mapping[str, Any]) -> list[Record]:
    """Return the records of a curve, with these `values` of the columns that are *."""
    where = {name: value for name, value in {**curve.where, **values}.items() if value != EACH}
    chosen = [
        record
        for record in records
        if record["network"] == curve.network
        and record.get(curve.column) is not None
        and all(record.get(name) == value for name, value in where.items())
    ]
    epochs = [record["epoch"] for record in chosen if record.get("epoch") is not None]
    if epochs and "epoch" not in curve.where:
        chosen = [record for record in chosen if record["epoch"] == max(epochs)]
    return chosen


def _numbers(records: Sequence[Record], curve: Curve, values: Mapping[str, Any]) -> list[float]:
    return [float(record[curve.column]) for record in _records(records, curve, values)]


def parse_claim(
    entry: Mapping[str, Any],
    networks: Sequence[str],
    columns: Sequence[str],
    conditions: Mapping[str, Sequence[str]] = {},
) -> ProbeClaim:
    """Parse a claim of the file of a figure.

    Args:
        entry: of the file.
        networks: of the figure.
        columns: of its records, with numbers.
        conditions: columns of its records that `where` can name, with their values; (): any.

    Raises:
        ValueError: it is invalid; the message names the key and what works.
    """
    check_keys(entry, "a claim about a figure", ("says", "place"), (*_TYPES,))
    check_types(entry, _TYPES)
    kind = of_tables.find_kind(entry, KINDS, "a claim about a figure", "curves")
    curves = []
    for network, column, *rest in entry[kind]:
        curve = Curve(str(network), str(column), *(rest or [{}]))
        check_keys(curve.where, "a curve", (), (*conditions,))
        for name, value in curve.where.items():
            if (values := conditions[name]) and value not in (EACH, *values):
                raise ValueError(f"{name}: {value} is unknown; {choose_from(str(value), values)}")
        if curve.network not in networks:
            raise ValueError(f"{network} is no network of the figure; {', '.join(networks)} are")
        if curve.column not in columns:
            raise ValueError(f"{column} is no quantity of the probe; {', '.join(columns)} are")
        curves.append(curve)
    if len({frozenset(_starred(curve)) for curve in curves}) > 1:
        raise ValueError(f"{EACH} stands for the same value in both curves; name it in both")
    options = {key: entry[key] for key in ("than", "bound", "mean") if key in entry}
    return ProbeClaim(entry["says"], entry["place"], kind, tuple(curves), **options)


def _starred(curve: Curve) -> list[str]:
    return [column for column, value in curve.where.items() if value == EACH]


def judge_claims(claims: Sequence[ProbeClaim], records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return each claim with its effect by seed and whether it holds with every seed.

    The networks of a figure may differ in their seeds: those of a claim count.
    """
    judged = []
    for claim in claims:
        networks = {curve.network for curve in claim.curves}
        of_claim = [record for record in records if record["network"] in networks]
        by_seed = group_by(of_claim, "seed") or {None: []}
        effects = {seed: claim.effect(of_seed) for seed, of_seed in by_seed.items()}
        holds = all(map(claim.holds, effects.values()))
        judged.append(
            {"says": claim.says, "place": claim.place, "holds": holds, "effects": effects}
        )
    return judged


def describe_verdicts(judged: Sequence[Mapping[str, Any]]) -> str:
    """Return the verdicts as lines for the screen."""
    lines = []
    for verdict in judged:
        numbers = [*verdict["effects"].values()]
        effects = ["no numbers" if effect is None else f"{effect:.3g}" for effect in numbers]
        untested = "untested" if None in numbers else "does not hold"
        word = "holds" if verdict["holds"] else untested
        lines.append(f"{word}: {verdict['says']} ({verdict['place']}; {', '.join(effects)})")
    return "\n".join(lines)
