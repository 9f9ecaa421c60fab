"""Normalizers, networks and data sets by the names of their yamls in conf/, and a list of them.

    python -m normbench.catalog LIST

lists the names, each with its description. For normalizers it adds the parameters per channel and
whether a layer is batch-independent; docs/reference/normalizers.md has their formulas and options.
LIST is norms, models, data, recipes, regs, protocols, trainers, loggers or sweeps.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normbench.config import cli
from normbench.config.build import build, options
from normbench.config.files import CONF, SWEEPS, headline, names, sizes_line, unverified
from normbench.data.dataset import Dataset
from normbench.errors import BadInput, Impossible, choose_from
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


@dataclass(frozen=True)
class Options:
    """Options of lists but models and recipes: none."""


@dataclass(frozen=True)
class ModelOptions(Options):
    """Options of `models NAME`."""

    norm: tuple[str, ...] = cli.option(("bn",), "normalizers, or all")
    classes: int = cli.option(1000, "logits of an image")
    image: int = cli.option(224, "pixels of a side")


@dataclass(frozen=True)
class RecipeOptions(Options):
    """Options of `recipes NAME`."""

    images: int = cli.option(1_281_167, "training images, of CIFAR 50000")
    global_batch: int = cli.option(256, "images of an optimizer step")


OPTIONS: dict[str, type[Options]] = {"models": ModelOptions, "recipes": RecipeOptions}


def tell_models(wanted: Sequence[str], chosen: ModelOptions) -> None:
    """Print what is known of architectures with normalizers, in full of one pair of them."""
    classes, image = chosen.classes, chosen.image
    norms = normalizers() if chosen.norm == ("all",) else chosen.norm
    pairs = [(name, norm) for name in wanted for norm in norms]
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


def tell_recipes(wanted: Sequence[str], chosen: RecipeOptions) -> None:
    """Print the course of a training under each of the recipes named."""
    images, batch = chosen.images, chosen.global_batch
    if batch > images:
        raise BadInput(f"global_batch={batch}: there are {images} images")
    for name in wanted:
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


def _show(kind: str, wanted: Sequence[str]) -> None:
    """Print the yaml of each of the names `wanted`."""
    known = names(LISTS[kind])
    for name in wanted:
        if name not in known:
            raise BadInput(f"{name} is none of the {kind}; {choose_from(name, known)}")
    for name in wanted:
        print((LISTS[kind] / f"{name}.yaml").read_text())


def _help() -> str:
    lists = (f"Of {kind} NAME:\n{cli.describe(of)}" for kind, of in OPTIONS.items())
    return "\n\n".join([__doc__.rstrip(), *lists])


@cli.command("normbench.catalog", _help)
def main(arguments: Sequence[str]) -> int:
    """Print the names of one list, each with the headline of its yaml, or one of them in full."""
    kind, *words = arguments or ["nothing"]
    if kind not in LISTS:
        raise BadInput(f"{' '.join(arguments) or kind} is no list; {choose_from(kind, LISTS)}")
    chosen, asked = cli.parse_options(words, OPTIONS.get(kind, Options), owner=kind)
    wanted = asked[0].split(",") if asked else []
    if not wanted:
        _list(kind)
    elif isinstance(chosen, ModelOptions):
        tell_models(wanted, chosen)
    elif isinstance(chosen, RecipeOptions):
        tell_recipes(wanted, chosen)
    else:
        _show(kind, wanted)
    return 0


def _list(kind: str) -> None:
    """Print the names of a list, each with the headline of its yaml."""
    width = max(map(len, names(LISTS[kind]))) + 2
    for name in names(LISTS[kind]):
        path = LISTS[kind] / f"{name}.yaml"
        text = headline(path)
        print(line(facts(name)) if kind == "norms" else f"{name:<{width}}{text}")
        if kind == "models":
            print(f"{'':<{width}}{sizes_line(path)}")


if __name__ == "__main__":
    cli.run(main)
