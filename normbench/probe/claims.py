"""Claims of papers about quantities inside networks, from the files of reports/figures/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from normbench.records.probes import Record, group_by
from normbench.report.yaml_checks import Types, check_keys, check_types

_KINDS = ("higher", "alike")
_TYPES: Types = {
    "says": str, "place": str, "higher": list, "alike": list, "than": (int, float),
    "bound": (int, float), "mean": bool,
}  # fmt: skip


@dataclass(frozen=True)
class ProbeClaim:
    """A sentence of a paper, stated as a comparison of curves of a figure.

    A curve is a column of the probe's records for one network. Its value is that of the last block
    or layer, or with `mean` the mean over all. The second curve may be a number instead.

        higher  the first is above the second by more than `bound`
        alike   the two differ by at most `bound`

    The bounds are ours: papers draw these curves and print few numbers.
    """

    says: str
    place: str  # section or figure of the paper
    kind: str
    curves: tuple[tuple[str, str], ...]  # network and column of one curve or two
    than: float = 0.0  # the number that one curve is compared with
    bound: float = 0.0
    mean: bool = False

    def effect(self, records: Sequence[Record]) -> float | None:
        """Return the difference that is compared with the bound, in the networks of one seed.

        None if a network has no such numbers, because it does not work on these images.
        """
        curves = [self._numbers(records, *curve) for curve in self.curves]
        if not all(curves):
            return None
        values = [fmean(numbers) if self.mean else numbers[-1] for numbers in curves]
        return values[0] - (values[1] if len(values) > 1 else self.than)

    def holds(self, effect: float | None) -> bool:
        if effect is None:
            return False
        return effect > self.bound if self.kind == "higher" else abs(effect) <= self.bound

    def _numbers(self, records: Sequence[Record], network: str, column: str) -> list[float]:
        return [
            float(record[column])
            for record in records
            if record["network"] == network and record[column] is not None
        ]


def parse_claim(
    entry: Mapping[str, Any], networks: Sequence[str], columns: Sequence[str]
) -> ProbeClaim:
    """Parse a claim of the file of a figure with these networks, whose records have `columns`.

    Raises:
        ValueError: it is invalid; the message names the key and what works.
    """
    check_keys(entry, "a claim about a figure", ("says", "place"), (*_TYPES,))
    check_types(entry, _TYPES)
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        raise ValueError(f"a claim about a figure needs exactly one of {', '.join(_KINDS)}")
    curves = tuple((str(network), str(column)) for network, column in entry[kinds[0]])
    if len(curves) not in (1, 2):
        raise ValueError(f"{kinds[0]} compares one curve with a number, or two curves")
    for network, column in curves:
        if network not in networks:
            raise ValueError(f"{network} is no network of the figure; {', '.join(networks)} are")
        if column not in columns:
            raise ValueError(f"{column} is no quantity of the probe; {', '.join(columns)} are")
    options = {key: entry[key] for key in ("than", "bound", "mean") if key in entry}
    return ProbeClaim(entry["says"], entry["place"], kinds[0], curves, **options)


def judge_claims(claims: Sequence[ProbeClaim], records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return each claim with its effect by seed and whether it holds with every seed."""
    by_seed = group_by(records, "seed")
    judged = []
    for claim in claims:
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
