"""Look inside networks, before or after training: the papers' pictures of why.

    python -m normbench.probe KIND [WORDS] [vs WORDS ...]
    python -m normbench.probe FIGURE [WORDS]

    spp             signal propagation over the residual blocks
    power           power of the normalized maps over depth, and channel-wise linearity
    ratios          what switchable normalization learned, by receptive field      (needs ckpt=)
    example_weight  images that count in their own statistics, over alpha          (needs ckpt=)
    speed           steps a second and memory over those of bn, normalizers in turn
    gains           1/sqrt(Var g(u)) of activations, by quadrature and by sampling

WORDS are those of `python -m normbench`, and lists make several networks: norm=bn,gn. Behind vs
stands what another network has otherwise. FIGURE is a figure of a paper; figures are listed below.

    ckpt=RUN           the network of a finished run that kept it (checkpoint=keep); RUN@EPOCH,
                       RUN,RUN or all. Its id says all, so norm= and model= are not typed
    ckpt=FILE          a checkpoint or a state_dict of the network that the other words describe
                       (spp, power)
    input=normal|data  N(0, 1), usual of spp, or training images of data=, usual of power
    images=N           in one forward pass (spp 8, power 256)
    image=N            pixels of a side, of N(0, 1) alone (those of data=)
    statistics=running the running ones, as in evaluation; usual are those of the images at hand
    eps=X              in the place of the layers' own, 0 allowed (power)
    alphas=A,B,...     weights to try, 0 to 1 (example_weight)
    repeats=N          rounds (speed: 7)
    mode=M             training, inference or both (speed)
    act=NAME,...       activations (gains: all), as hardswish or package.module.function
    out=DIR            where files go (reports/probes); those of runs go to their folders, too
    name=STEM          of the files (the kind; a file of that name is replaced)

Written are STEM.csv, STEM.png and STEM.pdf. While a network is trained, probe=KIND looks at it
after epochs (spp, power, ratios): `python -m normbench norm=sn probe=ratios probe.every=2`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path

from normbench.config import cli
from normbench.config.files import FIGURES, headline, load, names
from normbench.errors import BadInput, choose_from
from normbench.probe.request import OUT, Asked
from normbench.run_files import PROBE_KINDS, require_writable

ALL = ("out", "name")
INPUT = ("ckpt", "input", "images", "image", "statistics")
OWN = {
    "spp": (*INPUT, *ALL),
    "power": (*INPUT, "eps", *ALL),
    "ratios": ("ckpt", *ALL),
    "example_weight": ("ckpt", "alphas", *ALL),
    "speed": ("repeats", "mode", *ALL),
    "gains": ("act", *ALL),
}
WORDS = frozenset(word for words in OWN.values() for word in words)
BESIDE = "vs"


def main(arguments: Sequence[str]) -> int:
    """Look; 0, 2 for words that cannot be used, 130 after Ctrl-C."""
    if {"-h", "--help"} & {*arguments} or not arguments:
        print(__doc__)
        print("Figures:")
        for name in names(FIGURES):
            print(f"    {name:<22} {headline(FIGURES / f'{name}.yaml')}")
        return 0
    try:
        asked = _asked(arguments[0], arguments[1:])
        out = asked.option("out", OUT)
        require_writable(Path(out), f"out={out}", "use a writable folder, as out=reports/probes")
        import_module(f"normbench.probe.{asked.kind}").look(asked)
    except BadInput as error:
        print(f"normbench.probe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _asked(what: str, words: Sequence[str]) -> Asked:
    own = [word for word in words if _key(word) in WORDS]
    rest = [word for word in words if word not in own]
    if what in PROBE_KINDS:
        _require_known(what, own)
        first, *others = _split(rest)
        networks = [("", first), *(("", _instead(first, other)) for other in others)]
        return Asked(what, networks, _options(own), stem=what)
    if what not in names(FIGURES):
        known = [*PROBE_KINDS, *names(FIGURES)]
        raise BadInput(f"{what} is neither a kind nor a figure; {choose_from(what, known)}")
    figure = _figure(what)
    _require_known(figure.kind, own)
    if BESIDE in rest:
        raise BadInput(f"{BESIDE}: the networks of {what} are in its file")
    for word in rest:
        if any(_key(word) == _key(each) for each in chain(*figure.networks.values())):
            raise BadInput(f"{word}: it is what tells the networks of {what} from each other")
    networks = [
        (label, _replaced(_instead(figure.words, more), rest))
        for label, more in figure.networks.items()
    ]
    options = _options(own)
    # The picture of other networks, or of other images, is not that of the paper.
    other = [*rest, *(word for word in own if _key(word) not in ALL)]
    title = f"{figure.title}, but {' '.join(other)}" if other else figure.title
    stem = f"{what}-changed" if other else what
    return Asked(figure.kind, networks, figure.options | options, title=title, stem=stem)


def _require_known(kind: str, own: Sequence[str]) -> None:
    for word in own:
        if _key(word) not in OWN[kind]:
            raise BadInput(f"{word}: {kind} has no such word; it has {', '.join(OWN[kind])}")


@dataclass(frozen=True)
class Figure:
    """A file of reports/figures: a paper's figure."""

    kind: str
    title: str
    words: list[str]
    options: dict[str, str]
    networks: dict[str, list[str]]


def _figure(name: str) -> Figure:
    content = load(FIGURES / f"{name}.yaml")
    words = [str(word) for word in content["words"]]
    return Figure(
        content["kind"],
        f"{content['title']} ({content['source']})",
        [word for word in words if _key(word) not in WORDS],
        _options([word for word in words if _key(word) in WORDS]),
        {str(label): [str(w) for w in more or []] for label, more in content["networks"].items()},
    )


def _key(word: str) -> str:
    return word.partition("=")[0]


def _options(words: Sequence[str]) -> dict[str, str]:
    return {_key(word): word.partition("=")[2] for word in words}


def _split(words: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for word in words:
        if word == BESIDE:
            found.append([])
        else:
            found[-1].append(word)
    return found


def _instead(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """`words`, with `others` in the place of those of their keys; a new norm takes its options."""
    said = {_key(word) for word in others}
    kept = [w for w in words if not {_key(w), _key(w).partition(".")[0]} & said]
    return [*kept, *others]


def _replaced(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """`words`, with `others` in the place of those of exactly their keys."""
    said = {_key(word) for word in others}
    return [*(word for word in words if _key(word) not in said), *others]


if __name__ == "__main__":
    cli.run(main)
