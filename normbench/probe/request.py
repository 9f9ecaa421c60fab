"""Words of a command line as a request to a probe. Without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from normbench.config.files import FIGURES, load, names, training_probes
from normbench.errors import BadInput, choose_from

OUT = "reports/probes"  # folder of files, unless out= names another
VS = "vs"  # starts another network
FILES = ("out", "name")
INPUT = ("ckpt", "input", "images", "image", "statistics")
#: Options of each kind besides out= and name=. Any other kind of conf/probe/ has those of INPUT.
_OPTIONS = {
    "spp": INPUT,
    "power": (*INPUT, "eps"),
    "ratios": ("ckpt",),
    "example_weight": ("ckpt", "alphas"),
    "speed": ("repeats", "mode"),
    "gains": ("act",),
}
OPTIONS = {
    kind: (*_OPTIONS.get(kind, INPUT), *FILES)
    for kind in dict.fromkeys((*_OPTIONS, *training_probes()))
}
#: All words that are options of a probe and not of a network.
WORDS = frozenset(chain(*OPTIONS.values()))


@dataclass(frozen=True)
class ProbeRequest:
    """A request to a probe.

    Args:
        kind: of the probe.
        networks: label, or "", and words of each network or grid of networks.
        options: of the probe.
        title: of the figure.
        stem: name of the files.
    """

    kind: str
    networks: Sequence[tuple[str, list[str]]]
    options: Mapping[str, str]
    title: str = ""
    stem: str = ""

    def option(self, name: str, default: str = "") -> str:
        """Return the value of an option."""
        return self.options.get(name, default)


@dataclass(frozen=True)
class PaperFigure:
    """A file of reports/figures: the networks and options of a paper's figure."""

    kind: str
    title: str
    words: list[str]
    options: dict[str, str]
    networks: dict[str, list[str]]


def parse_request(kind_or_figure: str, words: Sequence[str]) -> ProbeRequest:
    """Parse the words after a kind of probe or the name of a figure.

    Raises:
        BadInput: there is no such kind or figure, or a word does not go with it.
    """
    options = [word for word in words if _key(word) in WORDS]
    others = [word for word in words if word not in options]
    if kind_or_figure in OPTIONS:
        return _kind_request(kind_or_figure, options, others)
    if kind_or_figure in names(FIGURES):
        return _figure_request(kind_or_figure, options, others)
    choices = choose_from(kind_or_figure, [*OPTIONS, *names(FIGURES)])
    raise BadInput(f"{kind_or_figure} is neither a kind nor a figure; {choices}")


def _kind_request(kind: str, options: Sequence[str], words: Sequence[str]) -> ProbeRequest:
    _require_options(kind, options)
    first, *others = _split(words)
    networks = [("", first), *(("", _override(first, other)) for other in others)]
    return ProbeRequest(kind, networks, _parse_options(options), stem=kind)


def _figure_request(name: str, options: Sequence[str], words: Sequence[str]) -> ProbeRequest:
    figure = _load_figure(name)
    _require_options(figure.kind, options)
    if VS in words:
        raise BadInput(f"{VS}: the networks of {name} are in its file")
    for word in words:
        if any(_key(word) == _key(each) for each in chain(*figure.networks.values())):
            raise BadInput(f"{word}: the networks of {name} differ in this word")
    networks = [
        (label, _replace(_override(figure.words, own_words), words))
        for label, own_words in figure.networks.items()
    ]
    # With other networks or images it is not the paper's figure: the title and the stem say so.
    changes = [*words, *(word for word in options if _key(word) not in FILES)]
    title = f"{figure.title}, but {' '.join(changes)}" if changes else figure.title
    stem = f"{name}-changed" if changes else name
    return ProbeRequest(
        figure.kind, networks, figure.options | _parse_options(options), title, stem
    )


def _require_options(kind: str, options: Sequence[str]) -> None:
    for word in options:
        if _key(word) not in OPTIONS[kind]:
            raise BadInput(
                f"{word}: {kind} has no such option; its options are {', '.join(OPTIONS[kind])}"
            )


def _load_figure(name: str) -> PaperFigure:
    content = load(FIGURES / f"{name}.yaml")
    words = [str(word) for word in content["words"]]
    networks = content["networks"].items()
    return PaperFigure(
        content["kind"],
        f"{content['title']} ({content['source']})",
        [word for word in words if _key(word) not in WORDS],
        _parse_options([word for word in words if _key(word) in WORDS]),
        {str(label): [str(word) for word in own_words or []] for label, own_words in networks},
    )


def _key(word: str) -> str:
    return word.partition("=")[0]


def _parse_options(words: Sequence[str]) -> dict[str, str]:
    return {_key(word): word.partition("=")[2] for word in words}


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
    kept = [w for w in words if not {_key(w), _key(w).partition(".")[0]} & keys]
    return [*kept, *others]


def _replace(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return `words` with those of `others` instead of exactly the same keys."""
    keys = {_key(word) for word in others}
    return [*(word for word in words if _key(word) not in keys), *others]
