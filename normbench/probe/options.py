"""Options of every kind of probe. Imports no torch, so that --help is quick."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from normbench.config.cli import option
from normbench.config.files import CONF, names, training_probes
from normbench.errors import choose_from
from normbench.records.probes import PROBES
from normbench.results import REPORTS
from normbench.run_files import require_file_name

RUN = (
    "the network of a finished run with checkpoint=keep: its id, RUN@EPOCH, RUN,RUN or all. Its "
    "norm= and model= are those of the run"
)
FILE = "a checkpoint or a state_dict of the network that the other words describe"


def _parse_alphas(text: str) -> tuple[float, ...]:
    with suppress(ValueError):
        alphas = tuple(map(float, text.split(",")))
        if all(0 <= alpha <= 1 for alpha in alphas):
            return alphas
    raise ValueError("weights from 0 to 1, as alphas=0,0.1,0.5,1")


def _parse_epochs(text: str) -> tuple[int, ...]:
    with suppress(ValueError):
        epochs = tuple(map(int, text.split(",")))
        if all(epoch >= 0 for epoch in epochs):
            return epochs
    raise ValueError("whole numbers of at least 0, as epochs=30,60,90")


def _parse_per_worker(text: str) -> tuple[int, ...]:
    with suppress(ValueError):
        numbers = tuple(map(int, text.split(",")))
        if min(numbers) > 0 and not any(max(numbers) % number for number in numbers):
            return tuple(sorted({*numbers}))
    raise ValueError("whole numbers above 0 that divide the largest of them, as per_worker=2,8,32")


def _parse_norms(text: str) -> tuple[str, ...]:
    norms = tuple(dict.fromkeys(text.split(",")))
    for norm in norms:
        if norm not in (normalizers := names(CONF / "norm")):
            raise ValueError(f"names of conf/norm; {choose_from(norm, normalizers)}")
    return norms


def _numbers_from(least: int, example: str) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of different whole numbers of at least `least`, in ascending order."""

    def parse(text: str) -> tuple[int, ...]:
        with suppress(ValueError):
            numbers = sorted({*map(int, text.split(","))})
            if numbers[0] >= least:
                return tuple(numbers)
        raise ValueError(f"whole numbers of at least {least}, as {example}")

    return parse


def _parse_rate(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise ValueError("a number above 0, as lr=0.02")


def _parse_stem(text: str) -> str:
    return require_file_name("name", text)


def _parse_eps(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < 1:
            return float(text)
    raise ValueError("a number from 0 to below 1, as eps=1e-5")


@dataclass(frozen=True)
class ProbeOptions:
    """Options of all kinds."""

    reports: Path | None = option(
        None,
        "root folder of reports (runs/reports): the files are in DIR/probes; measurements of runs "
        "are in the folders of the runs, too",
    )
    name: str = option(
        "", "name of the files (the kind); existing ones are replaced", "STEM", _parse_stem
    )

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return (self.reports or Path("runs", REPORTS)) / PROBES


@dataclass(frozen=True)
class TrainedNetworkOptions(ProbeOptions):
    """Options of kinds that measure trained networks."""

    ckpt: str = option("", RUN, "RUN")
    runs: Path = option(Path("runs"), "root folder of the runs of ckpt=")

    @property
    def folder(self) -> Path:
        return (self.reports or self.runs / REPORTS) / PROBES


@dataclass(frozen=True)
class ForwardPassOptions(TrainedNetworkOptions):
    """A kind of conf/probe/, measured in one forward pass."""

    ckpt: str = option("", f"{RUN}. Or {FILE}", "RUN|FILE")
    input: Literal["normal", "data"] = option("data", "N(0, 1), or training images")
    images: int = option(256, "images in the forward pass")
    image: int | None = option(None, "pixels of a side with input=normal (those of data=)")
    statistics: Literal["batch", "running"] = option(
        "batch", "statistics of these images, or the running ones of evaluation"
    )


@dataclass(frozen=True)
class SignalPropagationOptions(ForwardPassOptions):
    """Signal propagation over the residual blocks."""

    input: Literal["normal", "data"] = option("normal", "N(0, 1), or training images")
    images: int = option(8, "images in the forward pass")


@dataclass(frozen=True)
class PowerOptions(ForwardPassOptions):
    """Power of the normalized maps over depth, and channel-wise linearity."""

    eps: float | None = option(
        None, "eps that replaces that of the layers; 0 is allowed", "X", _parse_eps
    )


@dataclass(frozen=True)
class RatiosOptions(TrainedNetworkOptions):
    """Ratios that switchable normalization learned, by receptive field. Of the runs of ckpt=, or of
    the finished runs with a checkpoint that the other words describe."""


@dataclass(frozen=True)
class HardRatiosOptions(RatiosOptions):
    """The largest ratio of every layer of switchable normalization in snapshots of a training. Of
    runs as in ratios."""

    epochs: tuple[int, ...] = option(
        (), "epochs of the snapshots (those of kept checkpoints)", "N,N,...", _parse_epochs
    )


@dataclass(frozen=True)
class ExampleWeightOptions(TrainedNetworkOptions):
    """Metrics over the weight alpha of an image in its own statistics. Needs ckpt=."""

    alphas: tuple[float, ...] = option(
        (), "weights from 0 to 1 (20 of them)", "A,B,...", _parse_alphas
    )


@dataclass(frozen=True)
class NoiseOptions(TrainedNetworkOptions):
    """Held-out loss and gradient of a run with other numbers of images per worker, and a predicted
    test loss of runs that are trained with them. Needs ckpt=."""

    per_worker: tuple[int, ...] = option(
        (),
        "numbers of images that share statistics; each divides the largest (2, 4 ... 128, if twice "
        "as many are held out)",
        "N,N,...",
        _parse_per_worker,
    )
    images: int = option(2048, "largest number of held-out images")
    compare: Path | None = option(
        None,
        "folder of runs or of a study whose test losses are shown beside the prediction (runs=)",
    )


@dataclass(frozen=True)
class CorruptionsOptions(TrainedNetworkOptions):
    """Test accuracy under noise, blur and less contrast, with running statistics and with those of
    n test images. Needs ckpt=."""

    per_worker: tuple[int, ...] = option(
        (8, 128),
        "numbers of test images that are tested at a time, with their own statistics",
        "N,N,...",
        _numbers_from(1, "per_worker=8,128"),
    )


@dataclass(frozen=True)
class ConversionOptions(TrainedNetworkOptions):
    """Test accuracy of a finished run whose normalizer is replaced: gains and shifts copied or
    fitted, then distilled from the run. The networks are written, too. Needs ckpt= and to=."""

    to: tuple[str, ...] = option(
        (), "normalizers that replace that of the run", "NORM,...", _parse_norms
    )
    images: int = option(256, "training images to which gains and shifts are fitted")
    steps: tuple[int, ...] = option(
        (0, 20, 200),
        "steps of distillation, of at most 64 training images each, after which it is tested",
        "N,N,...",
        _numbers_from(0, "steps=0,20,200"),
    )
    lr: float = option(
        0.02, "learning rate of the distillation, by SGD with momentum 0.9", "X", _parse_rate
    )


@dataclass(frozen=True)
class SpeedOptions(ProbeOptions):
    """Steps per second and memory of normalizers, compared with bn. Folded: as deployed, with what
    is constant folded into convolutions."""

    repeats: int = option(7, "rounds")
    mode: tuple[Literal["training", "inference", "folded"], ...] = option(
        ("training", "inference", "folded"), "what a step is", "M,..."
    )


@dataclass(frozen=True)
class GainsOptions(ProbeOptions):
    """1/sqrt(Var g(u)) of activations, by quadrature and by sampling."""

    act: tuple[str, ...] = option((), "activations (all), as hardswish or package.module.function")


#: Options of each kind; kinds of conf/probe/ that are not listed have `ForwardPassOptions`.
KINDS: dict[str, type[ProbeOptions]] = {
    **dict.fromkeys(training_probes(), ForwardPassOptions),
    "spp": SignalPropagationOptions,
    "power": PowerOptions,
    "ratios": RatiosOptions,
    "hard_ratios": HardRatiosOptions,
    "example_weight": ExampleWeightOptions,
    "noise": NoiseOptions,
    "corruptions": CorruptionsOptions,
    "conversion": ConversionOptions,
    "speed": SpeedOptions,
    "gains": GainsOptions,
}
#: All words that are options of a probe and not of a network.
WORDS = frozenset(name for kind in KINDS.values() for name in kind.__dataclass_fields__)
