"""Normalizers, networks and data sets by the names of their yamls in conf/, and a list of them.

    python -m normbench.catalog norms|models|data|recipes|regs|protocols|trainers|loggers|sweeps

lists the names, each with its description. For normalizers it adds the parameters per channel and
whether a layer is batch-independent; docs/reference/normalizers.md has their formulas and options.

    python -m normbench.catalog models NAME [norm=bn] [classes=1000] [image=224]

prints the parameters and multiply-adds of a network with a normalizer, and which of its layers the
normalizer replaces. NAME is a name of the list, or timm/ and the name of a model of timm. Several
names, separated by commas, or norm=all print one line per network and normalizer.

    python -m normbench.catalog recipes NAME [images=1281167] [global_batch=256]

prints the learning rate over the training, for this number of training images and this global
batch, and which of the recipe's numbers no source gives.

    python -m normbench.catalog data|regs|norms|... NAME

prints the yaml of NAME: its options with their values and comments.

A yaml's `_target_` names a class or a function; its other keys are the arguments. An unknown
argument, or a value of another type, is an error.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normbench.config import cli
from normbench.config.build import build, options
from normbench.config.files import CONF, SWEEPS, headline, names, sizes_line, unverified
from normbench.data.dataset import Dataset
from normbench.errors import BadInput, Impossible, choose_from, parse_count
from normbench.models import swap as models_swap
from normbench.models.network_info import NetworkInfo
from normbench.norms.base.layer import Normalizer
from normbench.training.recipe import Recipe
from normbench.training.schedule_preview import format_schedule

LISTS = {
    "norms": CONF / "norm",
    "models": CONF / "model",
    "data": CONF / "data",
    "recipes": CONF / "recipe",
    "regs": CONF / "reg",
    "protocols": CONF / "protocol",
    "trainers": CONF / "trainer",
    "loggers": CONF / "logger",
    "sweeps": SWEEPS,
}
_CHANNELS = 64  # of a layer to be measured; any number that it has of nothing else


def normalizers() -> list[str]:
    """Return the sorted names of all normalizers."""
    return names(CONF / "norm")


def normalizer(name: str, **overrides: Any) -> Normalizer:
    """Return the normalizer `name` with the options of its yaml and `overrides`."""
    made: Normalizer = build("norm", options("norm", name, overrides))
    return made


def models() -> list[str]:
    """Return the sorted names of all yamls in conf/model/."""
    return names(CONF / "model")


def model(
    name: str, *, norm: Normalizer | str, num_classes: int, in_chans: int = 3, **overrides: Any
) -> nn.Module:
    """Return the architecture `name` with `norm`: (N, in_chans, H, W) -> (N, num_classes).

    Args:
        name: a yaml of conf/model, or timm/ and the name of a model of timm.
        norm: a normalizer, or its name.
        num_classes: logits of an image.
        in_chans: channels of an image.
        overrides: options of the yaml.
    """
    library, _, own = name.rpartition("/")
    chosen = options("model", library or name, {**({"name": own} if library else {}), **overrides})
    network: nn.Module = build(
        "model", chosen, norm=_resolve(norm), num_classes=num_classes, in_chans=in_chans
    )
    return network


def swap(network: nn.Module, norm: Normalizer | str, **options: Any) -> nn.Module:
    """Return `network` with `norm`, a normalizer or its name; see `normbench.models.swap.swap`."""
    return models_swap.swap(network, _resolve(norm), **options)


def _resolve(norm: Normalizer | str) -> Normalizer:
    return normalizer(norm) if isinstance(norm, str) else norm


def datasets() -> list[str]:
    """Return the sorted names of all data sets."""
    return names(CONF / "data")


def dataset(name: str, **overrides: Any) -> Dataset:
    """The data set `name`; its files are read when its splits are asked for."""
    made: Dataset = build("data", options("data", name, overrides))
    return made


@dataclass(frozen=True)
class Facts:
    """What is known of a normalizer without its equations."""

    name: str
    headline: str
    parameters: str
    batch_independent: bool
    conv: str
    residual: str


def facts(name: str) -> Facts:
    """Measured on a layer of `name`."""
    norm = normalizer(name)
    return Facts(
        name,
        headline(CONF / "norm" / f"{name}.yaml"),
        parameters(norm),
        norm.batch_independent,
        "" if norm.conv is None else str(norm.conv),
        "" if norm.residual.kind == "plain" else str(norm.residual),
    )


def parameters(norm: Normalizer) -> str:
    """How many a layer has: per channel, those of the whole layer, and those of a convolution."""
    with torch.device("meta"):
        layer = norm.layer(_CHANNELS)
        plain = nn.Conv2d(1, _CHANNELS, 3, bias=norm.conv_bias)
        conv = plain if norm.conv is None else norm.conv.convert(plain)
    sizes = [parameter.numel() for parameter in layer.parameters()]
    per_channel, rest = sizes.count(_CHANNELS), sum(s for s in sizes if s != _CHANNELS)
    of_conv = (sum(p.numel() for p in conv.parameters()) - plain.weight.numel()) // _CHANNELS
    text = f"{per_channel}"
    if rest:
        text += f" + {rest} a layer"
    return text + (f", conv {of_conv}" if of_conv else "")


def line(found: Facts) -> str:
    """Facts for the terminal."""
    independent = "batch-independent" if found.batch_independent else "batch-dependent"
    parameters = f"parameters per channel {found.parameters}"
    return f"{found.name:<18} {parameters:<36} {independent:<18} {found.headline}"


def network_info(name: str, norm: str, classes: int, image: int) -> NetworkInfo:
    """Build an architecture with a normalizer on the meta device, and run it in training.

    Raises:
        Impossible: the two do not go together, or not at images of that size.
    """
    made, shape = normalizer(norm), (3, image, image)
    with torch.device("meta"):  # shapes are computed and no numbers
        info = NetworkInfo(model(name, norm=made, num_classes=classes), made, shape, shape)
        info.try_training(workers=1, global_batch=8)  # more images than a ghost has
    return info


def _chosen(kind: str, words: list[str], usual: Mapping[str, str]) -> dict[str, str]:
    """The options of a list: `usual` with what the words say."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if unknown := [word for word in words if word.partition("=")[0] not in usual]:
        known = ", ".join(f"{key}=" for key in usual) or "none"
        raise BadInput(f"{unknown[0]} is no option of {kind}; known: {known}")
    return {**usual, **given}


def tell_models(arguments: list[str]) -> int:
    """Print what is known of architectures with normalizers, in full of one pair of them."""
    usual = {"norm": "bn", "classes": "1000", "image": "224"}
    chosen = _chosen("models", arguments[1:], usual)
    classes, image = (parse_count(key, chosen[key], 32) for key in ("classes", "image"))
    norms = normalizers() if chosen["norm"] == "all" else chosen["norm"].split(",")
    pairs = [(name, norm) for name in arguments[0].split(",") for norm in norms]
    for name, norm in pairs:
        try:
            info = network_info(name, norm, classes, image)
        except Impossible as reason:
            if len(pairs) == 1:
                raise BadInput(f"{name} norm={norm} cannot work: {reason}") from None
            print(f"{name:<28} {norm:<18} n/a  {reason}")
            continue
        if len(pairs) > 1:
            counts = f"{info.params:>11,} parameters; {info.macs:,} multiply-adds; {info.coverage}"
            print(f"{name:<28} {norm:<18} ok   {counts}")
            continue
        print(f"{name} with norm={norm}, {classes} classes, an image of 3x{image}x{image}\n")
        measured = [("parameters", f"{info.params:,}"), ("multiply-adds", f"{info.macs:,}")]
        for what, value in measured + info.coverage.counts() + info.coverage.kinds():
            print(f"{what:<36} {value:>14}")
    return 0


def tell_recipes(arguments: list[str]) -> int:
    """Print the course of a training under each of the recipes named."""
    chosen = _chosen("recipes", arguments[1:], {"images": "1281167", "global_batch": "256"})
    images, batch = (parse_count(key, chosen[key], 256) for key in ("images", "global_batch"))
    if batch > images:
        raise BadInput(f"global_batch={batch}: there are {images} images")
    for name in arguments[0].split(","):
        recipe: Recipe = build("recipe", options("recipe", name, {}))
        path = CONF / "recipe" / f"{name}.yaml"
        print(f"{name}: {headline(path)}")
        print(f"{images:,} training images, global batch {batch}\n")
        try:
            print(format_schedule(recipe, images, batch))
        except ValueError as error:
            raise BadInput(f"global_batch={batch}: {name} {error}") from None
        if ours := ", ".join(sorted(unverified(path))):
            print(f"unverified, no source gives them: {ours}")
        print()
    return 0


def _show(kind: str, asked: list[str]) -> int:
    """Print the yaml of each of the names asked for."""
    wanted, known = asked[0].split(","), names(LISTS[kind])
    for name in wanted:
        if name not in known:
            raise BadInput(f"{name} is none of the {kind}; {choose_from(name, known)}")
    _chosen(kind, asked[1:], {})
    for name in wanted:
        print((LISTS[kind] / f"{name}.yaml").read_text())
    return 0


def main(arguments: Sequence[str]) -> int:
    """Print the names of one list, each with the headline of its yaml, or one of them in full."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    kind, *more = arguments or ["nothing"]
    told = {"models": tell_models, "recipes": tell_recipes}
    if kind not in LISTS:
        given = " ".join(arguments) or "nothing"
        print(f"normbench.catalog: {given} is no list; {choose_from(kind, LISTS)}", file=sys.stderr)
        return 2
    if more:
        try:
            return told[kind](more) if kind in told else _show(kind, more)
        except BadInput as error:
            print(f"normbench.catalog: {error}", file=sys.stderr)
            return 2
    width = max(map(len, names(LISTS[kind]))) + 2
    for name in names(LISTS[kind]):
        path = LISTS[kind] / f"{name}.yaml"
        text = headline(path)
        print(line(facts(name)) if kind == "norms" else f"{name:<{width}}{text}")
        if kind == "models":
            print(f"{'':<{width}}{sizes_line(path)}")
    return 0


if __name__ == "__main__":
    cli.run(main)
