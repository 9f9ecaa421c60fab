"""Names in conf/ become objects here, and nowhere else.

A yaml's `_target_` names a class or a function; its other keys are its arguments, and an argument
that it does not know, or of another type, is an error.
"""

from collections.abc import Mapping
from importlib import import_module
from inspect import isclass, signature
from math import isfinite
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from normbench.config.files import CONF, load, names
from normbench.errors import BadInput, choose_from


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
    accepted = arguments(group, chosen) - given.keys()
    hints = get_type_hints(target.__init__ if isclass(target) else target, include_extras=True)
    told = {key: value for key, value in chosen.items() if key != "_target_"}
    for key, value in told.items():
        if key not in accepted:
            raise BadInput(f"{group}.{key} is unknown; {choose_from(key, accepted)}")
        told[key] = _fitted(f"{group}.{key}", value, hints[key])
    try:
        return target(**told, **given)
    except ValueError as error:
        raise BadInput(f"{group}.{error}") from error


def arguments(group: str, chosen: Mapping[str, Any]) -> frozenset[str]:
    """What the `_target_` of `chosen` can be told."""
    return frozenset(signature(_target(group, chosen.get("_target_"))).parameters)


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
