"""Checks of a normalizer's options, and the number of groups of a layer.

Ranges of a network's and a data set's options are types, which the command line checks. Those of a
normalizer are checked by its constructor, as `swap` takes normalizers that were made in Python.
"""

from dataclasses import field, fields
from typing import Any


def positive(default: float | None) -> Any:
    """Return the field of an option that is above 0, or None where that is the default."""
    return field(default=default, metadata={"check": require_positive})


def share(default: float) -> Any:
    """Return the field of an option that is above 0 and at most 1."""
    return field(default=default, metadata={"check": require_share})


def check_options(options: Any) -> None:
    """Raise ValueError for the first field of a data class whose value its check refuses."""
    for each in fields(options):
        value = getattr(options, each.name)
        if "check" in each.metadata and value is not None:
            each.metadata["check"](**{each.name: value})


def require_positive(**options: float) -> None:
    """Raise ValueError for the first of `options` that is not above 0."""
    for name, value in options.items():
        if value <= 0:
            raise ValueError(f"{name}={value}: it must be above 0")


def require_share(**options: float) -> None:
    """Raise ValueError for the first of `options` that is not above 0 and at most 1."""
    for name, value in options.items():
        if not 0 < value <= 1:
            raise ValueError(f"{name}={value}: it must be above 0 and at most 1")


def largest_divisor(channels: int, groups: int) -> int:
    """Return the largest number of groups up to `groups` that divides `channels`."""
    require_positive(channels=channels, groups=groups)
    return next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)
