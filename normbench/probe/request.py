"""Words of a command line as a request to a probe. Without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normbench.config import cli
from normbench.config.files import FIGURES, groups, load, names
from normbench.config.hydra_errors import PLAIN_KEYS
from normbench.errors import BadInput, DamagedFile, choose_from
from normbench.probe.claims import ProbeClaim, pair_name, parse_claim
from normbench.probe.options import KINDS, WORDS, ProbeOptions
from normbench.report.probe_columns import CHANGE, CHOICES, COLUMNS, Columns
from normbench.report.yaml_checks import INVALID, reason

VS = "vs"  # starts another network


@dataclass(frozen=True)
class ProbeRequest:
    """A request to a probe."""

    kind: str
    networks: Sequence[tuple[str, list[str]]]  # label or "", and words, of each network or grid
    options: Any  # an object of `KINDS[kind]`
    typed: Mapping[str, str]  # options as text, as typed or in the file of a figure
    stem: str  # name of the files
    title: str = ""  # of the figure
    claims: Sequence[ProbeClaim] = ()  # of the paper about the figure


def parse_request(kind_or_figure: str, words: Sequence[str]) -> ProbeRequest:
    """Parse the words after a kind of probe or the name of a figure.

    Raises:
        BadInput: there is no such kind or figure, or a word does not go with it.
    """
    options, others = _separate(words)
    if kind_or_figure in KINDS:
        return _kind_request(kind_or_figure, options, others)
    if kind_or_figure in names(FIGURES):
        return _figure_request(kind_or_figure, options, others)
    choices = choose_from(kind_or_figure, [*KINDS, *names(FIGURES)])
    raise BadInput(f"{kind_or_figure} is neither a kind nor a figure; {choices}")


def _kind_request(kind: str, words: Sequence[str], others: Sequence[str]) -> ProbeRequest:
    options, typed = _parse_options(kind, words)
    for word in others:
        key = _key(word)
        if "=" in word and key.isidentifier() and key not in {*PLAIN_KEYS, *groups(), "sweeps"}:
            known = [*KINDS[kind].__dataclass_fields__, *PLAIN_KEYS, *groups()]
            raise BadInput(f"{key} is unknown to {kind}; {choose_from(key, known)}")
    first, *more = _split(others)
    networks = [("", first), *(("", _override(first, other)) for other in more)]
    return ProbeRequest(kind, networks, options, typed, options.name or kind)


def _figure_request(name: str, words: Sequence[str], others: Sequence[str]) -> ProbeRequest:
    figure = _load_figure(name)
    figure_options, shared = _separate(figure["words"])
    options, typed = _parse_options(figure["kind"], [*figure_options, *words])
    if VS in others:
        raise BadInput(f"{VS}: the networks of {name} are in its file")
    networks = []
    for label, differences in figure["networks"].items():
        for word in others:
            if _key(word) in map(_key, differences):
                raise BadInput(f"{word}: the networks of {name} differ in this word")
        # Not `_override`: with another norm= the figure's options of norms stay.
        changed = {_key(word): word for word in [*_override(shared, differences), *others]}
        networks.append((str(label), [*changed.values()]))
    # With other networks or images it is not the paper's figure: the title and the stem say so.
    files = [*ProbeOptions.__dataclass_fields__, "runs"]
    changes = [*others, *(word for word in words if _key(word) not in files)]
    title = f"{figure['title']} ({figure['source']})"
    return ProbeRequest(
        figure["kind"], networks, options, typed,
        options.name or (f"{name}-changed" if changes else name),
        f"{title}, but {' '.join(changes)}" if changes else title,
        _parse_claims(name, figure),
    )  # fmt: skip


def _load_figure(name: str) -> dict[str, Any]:
    """Read the file of a figure.

    Raises:
        DamagedFile: it is invalid.
    """
    path = FIGURES / f"{name}.yaml"
    figure = load(path)
    types = {"kind": str, "title": str, "source": str, "words": list, "networks": dict}
    for key, kind in types.items():
        if not isinstance(figure.get(key), kind):
            raise DamagedFile(f"{path}: {key} is missing, or no {kind.__name__}")
    for words in (figure["words"], *figure["networks"].values()):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DamagedFile(f"{path}: words are lists of texts, as [norm=bn, batch=4]")
    if figure["kind"] not in KINDS:
        raise DamagedFile(f"{path}: kind={figure['kind']}; {choose_from(figure['kind'], KINDS)}")
    return figure


def _parse_claims(name: str, figure: Mapping[str, Any]) -> list[ProbeClaim]:
    """Parse the claims in the file of a figure.

    Raises:
        DamagedFile: one of them is invalid.
    """
    kind, networks = figure["kind"], [*map(str, figure["networks"])]
    columns = COLUMNS.get("ratios" if kind == "hard_ratios" else kind, Columns((), (), {}))
    quantities = [*columns.places, *columns.numbers, *columns.present]
    if kind == "hard_ratios":
        quantities += CHOICES
    if kind == "ratios":
        quantities.append(CHANGE)
        networks += [pair_name(networks[0], other) for other in networks[1:]]
    conditions = {"epoch": (), **columns.texts}
    try:
        return [
            parse_claim(entry, networks, quantities, conditions)
            for entry in figure.get("claims", ())
        ]
    except INVALID as error:
        raise DamagedFile(f"{FIGURES / f'{name}.yaml'}, claims: {reason(error)}") from error


def _parse_options(kind: str, words: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """Return the options of a probe, and as they were typed."""
    options, _ = cli.parse_options(words, KINDS[kind], owner=kind)
    return options, {_key(word): word.partition("=")[2] for word in words}


def _separate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that are options of probes, and those of networks."""
    return [w for w in words if _key(w) in WORDS], [w for w in words if _key(w) not in WORDS]


def _key(word: str) -> str:
    return word.partition("=")[0]


def _split(words: Sequence[str]) -> list[list[str]]:
    """Split the words at every vs."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word == VS:
            groups.append([])
        else:
            groups[-1].append(word)
    return groups


def _override(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return `words` with those of `others` instead of the same keys; norm= drops norm.*, too."""
    keys = {_key(word) for word in others}
    return [w for w in words if not {_key(w), _key(w).partition(".")[0]} & keys] + [*others]
