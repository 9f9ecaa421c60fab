"""Checks of the yaml files of reports: keys, types, and what else is wrong in one sentence."""

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from normbench.errors import choose_from, one_line

Types = Mapping[str, type | tuple[type, ...]]  # that the values of keys can have
#: What the content of a file can raise where it is not as it should be.
INVALID = (TypeError, ValueError, AttributeError, LookupError, OverflowError, RecursionError)


def reason(error: BaseException) -> str:
    """Return why a file is invalid, in one sentence."""
    if isinstance(error, RecursionError):
        return "a value contains itself"
    return str(error) if isinstance(error, ValueError) else one_line(error)


def check_keys(
    raw: Mapping[str, Any], kind: str, required: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Refuse unknown and missing keys of a yaml.

    Raises:
        ValueError: with the key and what works.
    """
    keys = {*required, *optional}
    for key in raw:
        if key not in keys:
            raise ValueError(f"{key} is no key of {kind}; {choose_from(str(key), keys)}")
    for key in required:
        if key not in raw:
            raise ValueError(f"{key} is missing")


def check_types(raw: Mapping[str, Any], types: Types) -> None:
    """Refuse values of another type.

    Raises:
        ValueError: with the key, its value and what works.
    """
    for key, kind in types.items():
        # True is no number.
        if key in raw and (
            not isinstance(raw[key], kind) or (isinstance(raw[key], bool) and kind is not bool)
        ):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            works = " or ".join(each.__name__ for each in kinds)
            raise ValueError(f"{key}={reprlib.repr(raw[key])} is no {works}")
