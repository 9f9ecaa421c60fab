"""Records of a search, one file per candidate, in a folder that all its workers share.

<runs>/<search>/search.json            options and trainings that the search began with
<runs>/<search>/candidates/000012.json a candidate, written once, atomically
<runs>/<search>/baselines/bn.json      BN under the same trainings
<runs>/<search>/locks/000012           held by the worker that evaluates it
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from normbench.errors import DamagedFile
from normbench.records.json_fields import JsonFields
from normbench.run_files import read_json, write_json
from normbench.search.space import Genotype

#: trained, duplicate    it has scores: its own, or those of an equal layer. One that equals a
#:                       rejected layer has the verdict of that.
#: constant, nonfinite   rejected for its values on random maps, before any training
#: diverged              a loss of a training was not finite
#: low_accuracy          its accuracy after `min_accuracy_steps` is below `min_accuracy`
#: unstable              the norm of its gradient exceeds `max_gradient` under adversarial weights
#: unsupported           a network refuses it, or it does not fit into memory
Verdict = Literal[
    "trained", "duplicate", "constant", "nonfinite", "diverged", "low_accuracy", "unstable",
    "unsupported",
]  # fmt: skip


class Rejected(Exception):  # noqa: N818 (a verdict, not an error)
    """A layer that is not worth further training."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict: Verdict = verdict


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layer that a search has evaluated.

    `scores` are validation accuracies in percent, in the order of the trainings of the search.
    """

    kind: str = "search"
    number: int  # -1: a baseline
    formula: str
    genotype: list[list[Any]] = field(default_factory=list)
    parent: int | None = None  # number of the candidate it was mutated from
    verdict: Verdict
    reason: str = ""
    fingerprint: str = ""
    scores: list[float] = field(default_factory=list)
    cost: float | None = None
    seconds: float = 0.0  # of its evaluation
    train_seconds: list[float] = field(default_factory=list)  # of each training

    @property
    def valid(self) -> bool:
        """True if it was trained, itself or as another one."""
        return bool(self.scores)

    @property
    def mean_score(self) -> float:
        return sum(self.scores) / len(self.scores)

    def to_genotype(self) -> Genotype:
        return Genotype.from_json(self.genotype)


_FIELDS = JsonFields(Candidate)


def candidate_file(folder: Path, number: int) -> Path:
    return folder / "candidates" / f"{number:06}.json"


def baseline_file(folder: Path, name: str) -> Path:
    return folder / "baselines" / f"{name}.json"


def write_candidate(path: Path, candidate: Candidate) -> None:
    """Write a record, atomically."""
    write_json(path, asdict(candidate))


def read_candidate(path: Path) -> Candidate:
    """Return the record in a file.

    Raises:
        FileNotFoundError: there is none.
        DamagedFile: it is no record.
    """
    remedy = "remove it, and the command of the search evaluates this layer again"
    try:
        raw = read_json(path)
    except DamagedFile as damage:
        raise DamagedFile(f"{damage}; {remedy}") from None
    if problem := _FIELDS.problem(raw):
        raise DamagedFile(f"{path} {problem}; {remedy}")
    return Candidate(**raw)


class Records:
    """The candidates of a search in a folder, read once each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[int, Candidate] = {}

    def find(self, number: int) -> Candidate | None:
        """Return a candidate; None if it has not been evaluated yet."""
        if number not in self._read:
            try:
                self._read[number] = read_candidate(candidate_file(self.folder, number))
            except FileNotFoundError:
                return None
        return self._read[number]

    def completed_prefix(self, number: int) -> list[Candidate]:
        """Return candidates 0, 1, ... until the first that is missing, at most `number`."""
        prefix: list[Candidate] = []
        while len(prefix) < number and (candidate := self.find(len(prefix))) is not None:
            prefix.append(candidate)
        return prefix

    def all(self) -> list[Candidate]:
        """Return all candidates by their numbers."""
        numbers = sorted(int(path.stem) for path in self.folder.glob("candidates/[0-9]*.json"))
        return [candidate for each in numbers if (candidate := self.find(each)) is not None]


def read_baselines(folder: Path) -> dict[str, Candidate]:
    """Return the baselines that were evaluated under the trainings of a search."""
    paths = sorted((folder / "baselines").glob("*.json"))
    return {path.stem: read_candidate(path) for path in paths}


def best(candidates: Sequence[Candidate], number: int) -> list[Candidate]:
    """Return the candidates with the highest mean scores; of equal layers the cheapest."""
    layers: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda each: (each.cost or 0.0, each.number)):
        if candidate.valid:
            layers.setdefault(candidate.fingerprint, candidate)
    return sorted(layers.values(), key=lambda each: (-each.mean_score, each.number))[:number]
