"""The words of a search as a request to its workers. Without torch."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from normbench.config import cli
from normbench.config.cells import Cell, Settings
from normbench.config.compose import compose
from normbench.errors import BadInput, DamagedFile
from normbench.execution.provenance import commit, processor, versions
from normbench.records.json_fields import JsonFields
from normbench.run_files import open_locked, read_json, require_file_name, write_json
from normbench.search.options import SearchOptions

_OPTIONS = [each.name for each in fields(SearchOptions)]
SWEEP = "search"  # the trainings of a candidate unless the words name others
#: Words that say where trainings run; a search does not keep them.
_OF_MACHINES = ("runs=", "jobs=", "hydra/", "hydra.")


@dataclass(frozen=True)
class SearchRequest:
    """A search as its workers get it.

    Args:
        folder: of the search.
        cells: the trainings of a candidate, with norm=graph.
        options: of the search.
        words: that describe the trainings, as typed.
    """

    folder: Path
    cells: tuple[Cell, ...]
    options: SearchOptions
    words: tuple[str, ...] = ()


def parse_request(name: str, words: Sequence[str]) -> tuple[SearchRequest, Settings]:
    """Parse the words of a search, and compare them with those it began with.

    Raises:
        BadInput: a word cannot be used, or the search began with others.
    """
    require_file_name("NAME", name)
    options, others = cli.parse_options(words, SearchOptions, owner="search", pass_on=True)
    for word in others:
        if similar := get_close_matches(word.partition("=")[0], _OPTIONS, cutoff=0.8):
            raise BadInput(f"{word} is unknown; did you mean {similar[0]}?")
    cells, settings = compose_trainings(others)
    if settings.jobs and settings.jobs > options.in_flight:
        raise BadInput(
            f"jobs={settings.jobs} exceeds in_flight={options.in_flight}; use jobs="
            f"{options.in_flight}, or begin a new search with in_flight={settings.jobs}"
        )
    folder = Path(settings.runs) / name
    of_trainings = tuple(word for word in others if not word.startswith(_OF_MACHINES))
    request = SearchRequest(folder, tuple(cells), options, of_trainings)
    _require_same(request)
    return request, settings


def compose_trainings(
    words: Sequence[str], norm: Sequence[str] = ()
) -> tuple[list[Cell], Settings]:
    """Return the trainings that `words` of the command line describe.

    Args:
        words: as typed; unless one is sweeps=NAME, they change the trainings of sweeps=search.
        norm: words that choose another normalizer than the formula of a candidate.

    Raises:
        BadInput: they describe none, or trainings that cannot score a formula.
    """
    for word in words:
        if word.startswith(("norm=", "norm.formula=")):
            raise BadInput(
                f"{word}: the search chooses the normalizer; leave the word out. `evaluate "
                "norm=NAME` scores a normalizer, `evaluate 'FORMULA'` a formula"
            )
        if word == "--cfg" or word.startswith("--cfg="):
            raise BadInput(
                f"{word} prints no search; the file sweeps/{SWEEP}.yaml has its trainings"
            )
    named = any(word.startswith("sweeps=") for word in words)
    cells, settings = compose(["-m", *([] if named else [f"sweeps={SWEEP}"]), *words, *norm])
    if settings is None:  # Hydra has answered, as to --info
        raise BadInput(f"{' '.join(words)}: these words describe no training")
    if not norm and (wrong := [cell for cell in cells if cell.norm.name != "graph"]):
        raise BadInput(
            f"norm={wrong[0].norm.name}: a search needs trainings with norm=graph, as those of "
            f"sweeps={SWEEP}"
        )
    if wrong := [cell for cell in cells if cell.task.name != "classify"]:
        raise BadInput(f"{wrong[0].title}: a search compares accuracies; use task=classify")
    for cell in cells:
        _refuse_unsupported_options(cell)
    return cells, settings


def _refuse_unsupported_options(cell: Cell) -> None:
    """Refuse options that the trainings of candidates do not have.

    Raises:
        BadInput: the cell sets one.
    """
    refused = {
        f"init_from={cell.init_from}": cell.init_from is not None,
        f"trainer.devices={cell.trainer.devices}": cell.trainer.devices > 1,
        f"trainer.per_forward={cell.trainer.per_forward}": cell.trainer.per_forward is not None,
        f"recipe.example_weight={cell.recipe.options.get('example_weight')}": (
            cell.recipe.options.get("example_weight") is not None
        ),
    }
    for word, is_set in refused.items():
        if is_set:
            raise BadInput(
                f"{word}: candidates are trained from scratch, on one device; leave it out"
            )


@dataclass(frozen=True)
class SearchFile:
    """Options and trainings with which a search began, in its folder."""

    options: dict[str, Any]
    trainings: list[str]  # ids of the cells, and options that change the last digits
    titles: list[str]  # of the cells
    words: list[str]  # that describe the trainings, as typed
    origin: dict[str, str]  # commit, processor and versions of the latest command


_FIELDS = JsonFields(SearchFile)
_REPAIR = "remove this file alone, and repeat the command that began the search: candidates stay"


def read_search_file(folder: Path) -> SearchFile:
    """Return what the search in a folder began with.

    Raises:
        FileNotFoundError: there is no search.
        BadInput: its file is damaged.
    """
    path = folder / "search.json"
    try:
        raw = read_json(path)
        if not (problem := _FIELDS.problem(raw)):
            return SearchFile(**raw)
    except DamagedFile as damage:
        raise BadInput(f"{damage}; {_REPAIR}") from None
    raise BadInput(f"{path} {problem}; {_REPAIR}")


def write_search_file(request: SearchRequest) -> None:
    """Write what is searched for; a search never gets fewer candidates than before.

    Raises:
        BadInput: another command has begun another search of that name meanwhile.
    """
    with open_locked(request.folder / "lock", wait=True):
        _require_same(request)
        _write(request)


def _write(request: SearchRequest) -> None:
    options = asdict(request.options)
    with suppress(FileNotFoundError):
        before = read_search_file(request.folder).options.get("candidates", 0)
        options["candidates"] = max(options["candidates"], before)
    content = SearchFile(
        options, _identities(request.cells), [cell.title for cell in request.cells],
        list(request.words), {"commit": commit(), "cpu": processor(), **versions()},
    )  # fmt: skip
    write_json(request.folder / "search.json", asdict(content))


def _identities(cells: Sequence[Cell]) -> list[str]:
    """Return what decides every digit of a score, beside the processor.

    The order of sums is part of it, and where chunks of steps end, after which a layer can be
    rejected.
    """
    options = ("threads", "impl", "chunk", "log_every")
    return [
        " ".join([cell.id, *(f"{each}={getattr(cell.trainer, each)}" for each in options)])
        for cell in cells
    ]


def _require_same(request: SearchRequest) -> None:
    """Refuse options and trainings that are not those with which the search began."""
    name, options = request.folder.name, asdict(request.options)
    try:
        began = read_search_file(request.folder)
    except FileNotFoundError:
        return
    if began.options.keys() != options.keys():
        raise BadInput(
            f"{request.folder} has a search of another version of normbench; choose another NAME"
        )
    for key, value in began.options.items():
        if key != "candidates" and value != options.get(key):
            raise BadInput(
                f"{key}={options.get(key)}: the search {name} began with {key}={value}; continue "
                "it with that, or choose another NAME"
            )
    if began.trainings != _identities(request.cells):
        raise BadInput(
            f"the search {name} began with other trainings ({', '.join(began.titles)}); repeat its "
            f"words ({' '.join(began.words) or 'none'}), or choose another NAME"
        )
