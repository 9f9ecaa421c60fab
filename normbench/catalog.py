"""Names in conf/ become objects here, and nowhere else.

    python -m normbench.catalog norms|models|data|recipes|regs|protocols|trainers|loggers|sweeps

lists the names with what each is; of normalizers also the parameters per channel and whether images
are independent of each other (docs/normalizers.md says all of them). A yaml's `_target_` names a
class; its other keys are arguments of that class, and an argument that the class does not know, or
of another type, is an error.
"""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from math import isfinite
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from normbench.data.dataset import Dataset
from normbench.errors import BadInput, choose_from
from normbench.home import CONF, SWEEPS, headline, load, names
from normbench.norms.layer import Normalizer

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
    """The sorted names of all normalizers."""
    return names(CONF / "norm")


def normalizer(name: str, **overrides: Any) -> Normalizer:
    """The normalizer `name` with the options of its yaml, some of them overridden."""
    made: Normalizer = build("norm", options("norm", name, overrides))
    return made


def models() -> list[str]:
    """The sorted names of all architectures of our own."""
    return names(CONF / "model")


def model(
    name: str, *, norm: Normalizer, num_classes: int, in_chans: int = 3, **overrides: Any
) -> nn.Module:
    """The architecture `name` with `norm` in it: (N, in_chans, H, W) -> (N, num_classes)."""
    chosen = options("model", name, overrides)
    made: nn.Module = build("model", chosen, norm=norm, num_classes=num_classes, in_chans=in_chans)
    return made


def datasets() -> list[str]:
    """The sorted names of all data sets."""
    return names(CONF / "data")


def dataset(name: str, **overrides: Any) -> Dataset:
    """The data set `name`; its files are read when its splits are asked for."""
    made: Dataset = build("data", options("data", name, overrides))
    return made


def options(group: str, name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What conf/<group>/<name>.yaml says, with `overrides`.

    Raises:
        BadInput: there is no such yaml, or it has no such option.
    """
    known = names(CONF / group)
    if name not in known:
        raise BadInput(f"{group}={name} is unknown; {choose_from(name, known)}")
    chosen = load(CONF / group / f"{name}.yaml")
    for key in overrides:
        if key not in chosen:
            own = [option for option in chosen if option != "_target_"]
            raise BadInput(f"{group}.{key} is no option of {name}; {choose_from(key, own)}")
    return {**chosen, **overrides}


def build(group: str, chosen: Mapping[str, Any], **given: Any) -> Any:
    """The object that `chosen` describes: its `_target_`, called with its other keys and `given`.

    Raises:
        BadInput: an option is unknown to the target or its value does not fit; `group` is named.
    """
    target = _target(group, chosen.get("_target_"))
    accepted = inspect.signature(target).parameters.keys() - given.keys()
    hints = get_type_hints(target.__init__)
    arguments = {key: value for key, value in chosen.items() if key != "_target_"}
    for key, value in arguments.items():
        if key not in accepted:
            raise BadInput(f"{group}.{key} is unknown; {choose_from(key, accepted)}")
        arguments[key] = _fitted(f"{group}.{key}", value, hints[key])
    try:
        return target(**arguments, **given)
    except ValueError as error:
        raise BadInput(f"{group}.{error}") from error


def _target(group: str, path: Any) -> Any:
    """What the yaml names: the only place where a name becomes code."""
    module, _, attribute = str(path).rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"{group}._target_={path} cannot be imported ({error}); it is module.Class, as in "
            "normbench.norms.batch.BatchNorm, found from the folders of PYTHONPATH"
        ) from error


def _fitted(option: str, value: Any, hint: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        raise BadInput(f"{option}={value}: it must be a finite number")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        wish = error.errors()[0]["msg"].replace("a valid tuple", "a list, as [a,b]")
        raise BadInput(f"{option}={value}: {wish[:1].lower()}{wish[1:]}") from None


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


def main(arguments: list[str]) -> int:
    """Print the names of one list, each with the headline of its yaml."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if len(arguments) != 1 or arguments[0] not in LISTS:
        given = " ".join(arguments) or "nothing"
        print(f"normbench.catalog: {given} is no list; known: {', '.join(LISTS)}", file=sys.stderr)
        return 2
    folder = LISTS[arguments[0]]
    for name in names(folder):
        text = headline(folder / f"{name}.yaml")
        print(line(facts(name)) if arguments == ["norms"] else f"{name:<20} {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
