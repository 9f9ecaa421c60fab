"""Build objects from the names in conf/; nowhere else does a name become code.

A yaml's `_target_` names a class or a function; its other keys are its arguments, and an argument
that it does not know, or of another type, is an error.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from inspect import Parameter, isclass, signature
from math import isfinite
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from normbench.config.files import CONF, choose_name, load_options, names
from normbench.errors import BadInput, choose_from


def options(group: str, name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of conf/<group>/<name>.yaml with `overrides`.

    Raises:
        BadInput: there is no such yaml, or it has no such option.
    """
    if name not in names(CONF / group):
        raise BadInput(f"{group}={name} is unknown; {choose_name(name, CONF / group)}")
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
    try:
        _hints(target)
    except (NameError, TypeError) as error:  # of code of the user's own, or no code at all
        raise BadInput(f"{group}._target_={options['_target_']}: {error}") from error
    values = {}
    for key, value in options.items():
        if key == "_target_":
            continue
        if key not in accepted:
            raise BadInput(f"{group}.{key} is unknown; {choose_from(key, accepted)}")
        values[key] = _convert(f"{group}.{key}", value, _adapter(target, key))
    if missing := _required(target) - values.keys() - context.keys():
        raise BadInput(f"{group}.{min(missing)} is missing; its yaml must give a value")
    try:
        return target(**values, **context)
    except ValueError as error:  # of the target's own checks; it begins with the option
        raise BadInput(f"{group}.{error}") from error


def arguments(group: str, options: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the arguments that the `_target_` of `options` takes."""
    target = _import(group, options.get("_target_"))
    try:
        return frozenset(_parameters(target))
    except (TypeError, ValueError):
        raise BadInput(
            f"{group}._target_={options['_target_']} is no class or function with named arguments"
        ) from None


def _import(group: str, path: Any) -> Any:
    if path is None:
        raise BadInput(
            f"{group}._target_ is missing: the yaml of a choice names its class, as "
            "`_target_: normbench.norms.batch.BatchNorm`"
        )
    module, _, attribute = str(path).rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(
            f"{group}._target_={path} cannot be imported ({error}); it is module.Class, as in "
            "normbench.norms.batch.BatchNorm, found from the folders of PYTHONPATH"
        ) from error


@cache
def _parameters(target: Any) -> Mapping[str, Parameter]:
    return signature(target).parameters


@cache
def _hints(target: Any) -> dict[str, Any]:
    return get_type_hints(target.__init__ if isclass(target) else target, include_extras=True)


@cache
def _adapter(target: Any, key: str) -> TypeAdapter[Any]:
    """Return the type of an argument of `target`; to make one takes longer than to use it."""
    return TypeAdapter(_hints(target).get(key, Any))


def _convert(option: str, value: Any, adapter: TypeAdapter[Any]) -> Any:
    """Return `value` as the type of `adapter`, as pydantic converts it."""
    if isinstance(value, float) and not isfinite(value):  # pydantic takes nan and inf
        raise BadInput(f"{option}={value}: it must be a finite number")
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        null = " or null" if _takes_null(adapter) else ""
        raise BadInput(f"{option}={value}: {_describe(error)}{null}") from None


def _takes_null(adapter: TypeAdapter[Any]) -> bool:
    try:
        adapter.validate_python(None)
    except ValidationError:
        return False
    return True


def _describe(error: ValidationError) -> str:
    """Return what pydantic says about a value, in plain words."""
    first = error.errors()[0]
    kinds = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    kinds |= {"string": "a text", "tuple": "a list, as [a,b]", "list": "a list, as [a,b]"}
    kinds |= {"dict": "options with values, as {a:1}"}
    kind = first["type"].partition("_")[0]
    if kind in kinds:
        return f"it must be {kinds[kind]}"
    message = first["msg"].replace("Input should be", "it must be")
    return f"{message[:1].lower()}{message[1:]}"


def _required(target: Any) -> set[str]:
    """Return the arguments of a class or function that have no default."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = _parameters(target).values()
    return {each.name for each in parameters if each.kind in kinds and each.default is each.empty}
