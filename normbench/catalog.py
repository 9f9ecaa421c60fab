"""Normalizers, networks and data sets by the names of their yamls in conf/, and a list of them.

    python -m normbench.catalog                     the lists
    python -m normbench.catalog LIST                norms, models, data, recipes, sweeps ...
    python -m normbench.catalog LIST NAME,NAME

A list has the names, each with its description. For normalizers it adds the parameters per channel
and whether a layer is batch-independent; docs/reference/normalizers.md has their formulas. With a
NAME its yaml is printed: options with their values and comments. Models and recipes are measured
instead.

In Python, `normalizer`, `model`, `swap` and `dataset` take the same names, with options of the yaml
as keywords. An unknown option, or a value of another type, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import yaml

from normbench.config import cli
from normbench.config.build import build, options
from normbench.config.files import (
    CONF,
    LISTS,
    choose_name,
    comment,
    default_choices,
    headline,
    names,
    sizes_line,
    unverified,
)
from normbench.errors import BadInput, Impossible, choose_from

if TYPE_CHECKING:  # torch takes seconds to import, and most lists need none
    from torch import nn

    from normbench.data.dataset import Dataset
    from normbench.models.network_info import NetworkInfo
    from normbench.norms.base.layer import Normalizer
    from normbench.training.recipe import Recipe

# Channels of the layer whose parameters are counted: a size that nothing else in a layer has.
_CHANNELS = 64


def normalizers() -> list[str]:
    """Return the sorted names of all normalizers."""
    return names(CONF / "norm")


def normalizer(name: str, **overrides: Any) -> Normalizer:
    """Return the normalizer `name`, with `overrides` of the options of its yaml."""
    norm: Normalizer = build("norm", options("norm", name, overrides))
    return norm


def models() -> list[str]:
    """Return the sorted names of all architectures in conf/model."""
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
    library, _, model_name = name.rpartition("/")
    if library:
        overrides = {"name": model_name, **overrides}
    network: nn.Module = build(
        "model",
        options("model", library or name, overrides),
        norm=_resolve(norm),
        num_classes=num_classes,
        in_chans=in_chans,
    )
    return network


def swap(network: nn.Module, norm: Normalizer | str, **options: Any) -> nn.Module:
    """Return `network` with `norm`, a normalizer or its name, in place of its normalizations.

    Args:
        network: a network of timm or torchvision, or any that torch.fx can trace.
        norm: a normalizer, or its name.
        options: `image=(C, H, W)`, (3, 224, 224) unless given, of an image on which the network
            runs, and `allow_left`, of `normbench.models.swap.swap`.

    Raises:
        TypeError: `network` is no module.
        Impossible: the network cannot be traced or cannot use the normalizer.
    """
    from torch import nn as torch_nn

    from normbench.models import swap as models_swap

    if not isinstance(network, torch_nn.Module):
        raise TypeError(
            f"network={network!r} is no module of torch; timm.create_model makes one from its name"
        )
    return models_swap.swap(network, _resolve(norm), **options)


def _resolve(norm: Normalizer | str) -> Normalizer:
    return normalizer(norm) if isinstance(norm, str) else norm


def datasets() -> list[str]:
    """Return the sorted names of all data sets."""
    return names(CONF / "data")


def dataset(name: str, **overrides: Any) -> Dataset:
    """Return the data set `name`; its files are read when its splits are asked for."""
    data: Dataset = build("data", options("data", name, overrides))
    return data


def count_parameters(norm: Normalizer) -> str:
    """Count parameters per channel, of a whole layer, and per channel of a convolution."""
    import torch
    from torch import nn

    with torch.device("meta"):  # shapes without memory
        layer = norm.layer(_CHANNELS)
        plain = nn.Conv2d(1, _CHANNELS, 3, bias=norm.conv_bias)
        conv = plain if norm.conv is None else norm.conv.apply(plain)
    sizes = [parameter.numel() for parameter in layer.parameters()]
    text = str(sizes.count(_CHANNELS))
    if rest := sum(size for size in sizes if size != _CHANNELS):
        text += f" + {rest} a layer"
    beside_weights = sum(p.numel() for p in conv.parameters()) - plain.weight.numel()
    return text + (f", conv {beside_weights // _CHANNELS}" if beside_weights else "")


def network_info(name: str, norm: str, classes: int, image: int) -> NetworkInfo:
    """Build an architecture with a normalizer on the meta device, and run it in training.

    Raises:
        Impossible: the two do not go together, or not at images of that size.
    """
    import torch

    from normbench.models.network_info import NetworkInfo

    layers, shape = normalizer(norm), (3, image, image)
    with torch.device("meta"):
        network = model(name, norm=layers, num_classes=classes)
        info = NetworkInfo(network, layers, shape, shape)
        info.try_training(workers=1, global_batch=8)  # of which ghost_bn makes several sets
    return info


@dataclass(frozen=True)
class NoOptions:
    """Options of lists whose names are printed as their yamls."""


@dataclass(frozen=True)
class ModelOptions:
    """Print parameters and multiply-adds of a network with a normalizer, and which layers that
    replaces. NAME may be timm/ and a name of timm. Several of either print a line per pair.
    """

    norm: str = cli.option("bn", "normalizers, separated by commas, or all")
    classes: int = cli.option(1000, "logits of an image")
    image: int = cli.option(224, "side of an image in pixels")


@dataclass(frozen=True)
class RecipeOptions:
    """Print the schedule of a recipe, and the options whose values no source gives."""

    images: int | None = cli.option(
        None, "training images (those of the data that the recipe's yaml names)"
    )
    global_batch: int | None = cli.option(
        None, "images of an optimizer step (those for which the yaml gives the learning rate)"
    )


def _parse(
    kind: str, words: Sequence[str], options_of: type[cli.Options]
) -> tuple[list[str], cli.Options]:
    """Return the names and the options among `words`."""
    chosen, others = cli.parse_options(words, options_of, owner=kind)
    if len(others) != 1:
        raise BadInput(f"{' '.join(words)}: one name of the {kind}, or several as NAME,NAME")
    return others[0].split(","), chosen


def _print_models(words: Sequence[str]) -> None:
    """Measure architectures with normalizers; print one pair in full, several in a line each."""
    architectures, chosen = _parse("models", words, ModelOptions)
    norms = normalizers() if chosen.norm == "all" else chosen.norm.split(",")
    pairs = [(name, norm) for name in architectures for norm in norms]
    for name, norm in pairs:
        try:
            info = network_info(name, norm, chosen.classes, chosen.image)
        except Impossible as reason:
            if len(pairs) == 1:
                raise BadInput(f"{name} norm={norm} cannot work: {reason}") from None
            print(f"{name:<28} {norm:<18} n/a  {reason}")
            continue
        if len(pairs) > 1:
            counts = f"{info.params:>11,} parameters; {info.macs:,} multiply-adds; {info.coverage}"
            print(f"{name:<28} {norm:<18} ok   {counts}")
            continue
        size = f"3x{chosen.image}x{chosen.image}"
        print(f"{name} with norm={norm}, {chosen.classes} classes, an image of {size}\n")
        sizes = [("parameters", f"{info.params:,}"), ("multiply-adds", f"{info.macs:,}")]
        for label, value in sizes + info.coverage.counts() + info.coverage.kinds():
            print(f"{label:<36} {value:>14}")


def _training_images(recipe: str) -> tuple[int, str]:
    """Return how many images a recipe trains on, and which: of the data that its yaml names."""
    text = comment(CONF / "recipe" / f"{recipe}.yaml")
    named = re.search(r"\bdata=(\w+)", text)
    name = named[1] if named else default_choices()["data"]
    words = dict(re.findall(r"\bdata\.(\w+)=([\w.]*\w)", text))
    data = dataset(name, **{key: yaml.safe_load(value) for key, value in words.items()})
    options = "".join(f" data.{key}={value}" for key, value in words.items())
    source = (
        ""
        if named
        else " (the default, as the recipe names no data; images=N takes another number)"
    )
    return data.sizes[0], f" of data={name}{options}{source}"


def _print_recipes(words: Sequence[str]) -> None:
    """Print the schedules of recipes."""
    from normbench.training.schedule_preview import format_schedule

    recipes, chosen = _parse("recipes", words, RecipeOptions)
    for name in recipes:
        recipe: Recipe = build("recipe", options("recipe", name, {}))
        path = CONF / "recipe" / f"{name}.yaml"
        images, source = (chosen.images, "") if chosen.images else _training_images(name)
        batch = chosen.global_batch or max(recipe.rates, default=recipe.lr_batch)
        if batch > images:
            raise BadInput(f"global_batch={batch}: there are {images} images")
        print(f"{name}: {headline(path)}")
        print(f"{images:,} training images{source}, global batch {batch}\n")
        try:
            print(format_schedule(recipe, images, batch))
        except ValueError as error:
            raise BadInput(f"global_batch={batch}: {name} {error}") from None
        if without_source := ", ".join(sorted(unverified(path))):
            print(f"unverified, no source gives them: {without_source}")
        print()


def _print_yamls(kind: str, words: Sequence[str]) -> None:
    chosen, _ = _parse(kind, words, NoOptions)
    known = names(LISTS[kind])
    for name in chosen:  # before anything is printed
        if name not in known:
            choices = choose_name(name, LISTS[kind])
            raise BadInput(f"{name or repr(name)} is none of the {kind}; {choices}")
    for name in chosen:
        print((LISTS[kind] / f"{name}.yaml").read_text())


def _print_lists() -> None:
    """Print the lists, each with the key that takes its names, and with the first of them."""
    for kind, folder in LISTS.items():
        known = names(folder)
        head = f"{kind:<12} {folder.name + '=NAME':<16} {len(known):>3}  "
        print(head + shorten(", ".join(known), cli.WIDTH - len(head), placeholder=" ..."))
    print("\n`python -m normbench.catalog LIST` describes each name; --help lists more options")


def _print_names(kind: str) -> None:
    width = max(map(len, names(LISTS[kind]))) + 2
    for name in names(LISTS[kind]):
        path = LISTS[kind] / f"{name}.yaml"
        if kind == "norms":
            norm = normalizer(name)
            parameters = f"parameters per channel {count_parameters(norm)}"
            independent = "batch-independent" if norm.batch_independent else "batch-dependent"
            print(f"{name:<18} {parameters:<36} {independent:<18} {headline(path)}")
        else:
            print(f"{name:<{width}}{headline(path)}")
        if kind == "models":
            print(f"{'':<{width}}{sizes_line(path)}")


def _help() -> str:
    models = cli.describe_kind("models NAME", ModelOptions, NoOptions)
    return f"{__doc__}\n{models}\n{cli.describe_kind('recipes NAME', RecipeOptions, NoOptions)}"


@cli.command("normbench.catalog", _help)
def main(arguments: Sequence[str]) -> int:
    """Print the lists, or the names of one, or some of them in full."""
    if not arguments:
        _print_lists()
        return 0
    kind, *words = arguments
    if kind not in LISTS:
        raise BadInput(f"{' '.join(arguments)} is no list; {choose_from(kind, LISTS)}")
    if not words:
        _print_names(kind)
    elif kind == "models":
        _print_models(words)
    elif kind == "recipes":
        _print_recipes(words)
    else:
        _print_yamls(kind, words)
    return 0


if __name__ == "__main__":
    cli.run(main)
