"""Results of a search: read from its folder, and printed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normbench.errors import BadInput, count
from normbench.execution.progress import print_line
from normbench.search.candidates import Candidate, Records, best, read_baselines
from normbench.search.request import SearchFile, read_search_file

TOP = 10  # layers in tables, as in the paper's appendix D


@dataclass(frozen=True)
class Search:
    """A search and its records."""

    name: str
    began: SearchFile
    candidates: Sequence[Candidate]
    baselines: dict[str, Candidate]

    @property
    def titles(self) -> Sequence[str]:
        """The trainings of a candidate."""
        return self.began.titles

    @property
    def winner(self) -> Candidate:
        return best(self.candidates, 1)[0]

    def ancestors(self, candidate: Candidate) -> list[Candidate]:
        """Return a candidate, its parent, and so on to a random layer."""
        by_number = {each.number: each for each in self.candidates}
        chain = [candidate]
        while (parent := chain[-1].parent) is not None:
            chain.append(by_number[parent])
        return chain


def read_search(folder: Path) -> Search:
    """Return the search in a folder.

    Raises:
        BadInput: there is none, or none of its candidates was trained.
    """
    try:
        began = read_search_file(folder)
    except FileNotFoundError:
        raise BadInput(
            f"{folder} has no search; `python -m normbench.search run {folder.name} "
            f"runs={folder.parent}` begins one"
        ) from None
    candidates = Records(folder).all()
    if not best(candidates, 1):
        raise BadInput(
            f"{folder} has no trained candidate among {count(len(candidates), 'candidate')}; the "
            "command that began the search continues it, with a larger candidates=N if it is done"
        )
    return Search(folder.name, began, candidates, read_baselines(folder))


def print_best(folder: Path) -> None:
    """Print the best layers of a search, if there are any."""
    try:
        print_search(read_search(folder), TOP)
    except BadInput as reason:
        print_line(str(reason))


def print_search(search: Search, top: int) -> None:
    """Print how many candidates a search has evaluated, and the best layers beside baselines."""
    print_line("")
    print_line(f"{search.name}: {summarize(search.candidates)}")
    print_line("validation accuracy in percent: " + "; ".join(search.titles))
    print_line(f"{'':>10} {'mean':>6} {'scores':<{6 * len(search.titles)}}  norm.formula")
    for place, candidate in enumerate(best(search.candidates, top), 1):
        print_line(_line(f"{place}", candidate))
    for name, candidate in search.baselines.items():
        if candidate.scores:
            print_line(_line(name, candidate))


def _line(name: str, candidate: Candidate) -> str:
    scores = "".join(f"{score:6.1f}" for score in candidate.scores)
    return f"{name:>10} {candidate.mean_score:6.1f} {scores}  {candidate.formula}"


def summarize(candidates: Sequence[Candidate]) -> str:
    """Return numbers of candidates by their verdicts, and the time of a worker for one."""
    numbers = Counter(candidate.verdict for candidate in candidates)
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in numbers.most_common())
    seconds = sum(candidate.seconds for candidate in candidates)
    per_minute = 60 * len(candidates) / seconds if seconds else 0.0
    return (
        f"{count(len(candidates), 'candidate')} ({verdicts}), {per_minute:.1f} per minute of a "
        "worker"
    )
