"""Build objects from the names in conf/; nowhere else does a name become code.

A yaml's `_target_` names a class or a function; its other keys are its arguments, and an argument
that it does not know, or of another type, is an error.
"""

from collections.abc import Mapping
from importlib import import_module
from inspect import isclass, signature
from math import isfinite
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from normbench.config.files import CONF, load_options, names
from normbench.errors import BadInput, choose_from, require_one_of


def options(group: str, name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of conf/<group>/<name>.yaml with `overrides`.

    Raises:
        BadInput: there is no such yaml, or it has no such option.
    """
    require_one_of(group, name, names(CONF / group))
    defaults = load_options(CONF / group / f"{name}.yaml")
    for key in overrides:
        if key not in defaults:
            choices = choose_from(key, defaults.keys() - {"_target_"})
            raise BadInput(f"{group}.{key} is no option of {name}; {choices}")
    return {**defaults, **overrides}


def build(group: str, options: Mapping[str, Any], **context: Any) -> Any:
    """Call the `_target_` of `options` with its other keys and `context`; return the result.

    Raises:
        BadInput: an option is unknown to the target or its value does not fit; `group` is named.
    """
    target = _import(group, options.get("_target_"))
    accepted = arguments(group, options) - context.keys()  # no yaml may set the context
    hints = get_type_hints(target.__init__ if isclass(target) else target, include_extras=True)
    values = {}
    for key, value in options.items():
        if key == "_target_":
            continue
        if key not in accepted:
            raise BadInput(f"{group}.{key} is unknown; {choose_from(key, accepted)}")
        values[key] = _convert(f"{group}.{key}", value, hints[key])
    try:
        return target(**values, **context)
    except ValueError as error:  # of the target's own checks; it begins with the option
        raise BadInput(f"{group}.{error}") from error


def arguments(group: str, options: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the arguments that the `_target_` of `options` takes."""
    return frozenset(signature(_import(group, options.get("_target_"))).parameters)


def _import(group: str, path: Any) -> Any:
    module, _, attribute = str(path).rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"{group}._target_={path} cannot be imported ({error}); it is module.Class, as in "
            "normbench.norms.batch.BatchNorm, found from the folders of PYTHONPATH"
        ) from error


def _convert(option: str, value: Any, hint: Any) -> Any:
    """Return `value` as the type `hint`, as pydantic converts it."""
    if isinstance(value, float) and not isfinite(value):  # pydantic takes nan and inf
        raise BadInput(f"{option}={value}: it must be a finite number")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"].replace("a valid tuple", "a list, as [a,b]")
        raise BadInput(f"{option}={value}: {message[:1].lower()}{message[1:]}") from None
