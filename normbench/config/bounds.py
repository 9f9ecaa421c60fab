"""Bounds of the numbers on a command line, in one table.

They are far above any real use. Beyond them a check would take hours, or torch would end the
process: it starts as many threads as it is told.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from normbench.errors import BadInput


@dataclass(frozen=True)
class Bound:
    """The least and the largest value of a whole number, what it counts, and why not more."""

    least: int
    most: int
    meaning: str
    reason: str = ""


BOUNDS = {
    "batch": Bound(1, 10**6, "the number of images per worker"),
    "workers": Bound(1, 10**6, "under protocol=fixed_workers the number of workers"),
    "global_batch": Bound(1, 10**10, "the number of images of an optimizer step"),
    "task.global_batch": Bound(1, 10**10, "the number of images of an optimizer step"),
    "seed": Bound(0, 2**32 - 1, "the seed", "numpy takes seeds below 2**32"),
    "jobs": Bound(1, 1024, "the number of runs at the same time"),
    "trainer.devices": Bound(1, 4096, "the largest number of devices of a run"),
    "trainer.per_forward": Bound(
        1, 10**6, "the largest number of workers in one forward pass"
    ),
    "trainer.threads": Bound(
        1, 1024, "the number of CPU threads of a run",
        "torch starts so many threads, and ends the process where there is no room; use at most "
        "1,024, as a rule the cores of this machine or less",
    ),
    "trainer.chunk": Bound(1, 10**6, "the number of optimizer steps of a chunk"),
    "trainer.log_every": Bound(1, 10**9, "the number of steps between two records of the curve"),
    "trainer.readers": Bound(0, 1024, "the number of processes that read images"),
    "checkpoint.epochs": Bound(1, 10**6, "an epoch after which a checkpoint is kept"),
    "probe.every": Bound(1, 10**6, "the number of epochs between two measurements"),
    "probe.images": Bound(2, 10**6, "the number of training images that probes measure"),
}  # fmt: skip

MOST_SECONDS = 10**9  # between two checkpoints

#: Largest numbers in the options of a group, and of single options: layers are built one by one,
#: and augmented images have the sizes of the options.
LARGEST = {
    "norm": 2**63 - 1,  # of a whole number in torch
    "norm.groups": 10**9,
    "model": 10**6,
    "model.depth": 10_000,
    "model.depths": 10_000,
    "model.widths": 10**5,
    "model.width": 10**5,
    "data": 10**9,
    "data.size": 10**4,
    "data.padding": 10**4,
    "reg": 10**6,
    "recipe": 10**12,
    "task": 10**10,
    "recipe.epochs": 10**6,
    "recipe.lr": 10**38,  # of float32; such a run diverges, which is a result
    "recipe.crop": 10**4,
}


def require_whole(name: str, value: Any, bound: Bound | None = None) -> int:
    """Return `value`, a whole number within its bounds.

    Raises:
        BadInput: it is none.
    """
    bound = bound or BOUNDS[name]
    least = bound.least
    if isinstance(value, bool) or not isinstance(value, int) or value < least:  # True is an int
        raise BadInput(
            f"{name}={value}: {bound.meaning} must be a whole number of at least {least}, "
            f"as in {name}={8 if least else 0}"
        )
    if value > bound.most:
        reason = bound.reason or f"{bound.meaning} may be at most {bound.most:,}"
        raise BadInput(f"{name}={value}: {reason}")
    return value


def require_usable(group: str, options: Mapping[str, Any]) -> None:
    """Refuse numbers in the options of a group that are not finite or too large.

    Raises:
        BadInput: there is such a number, or a value that JSON has not.
    """
    for key, value in options.items():
        option = f"{group}.{key}"
        most = LARGEST.get(option, LARGEST[group])
        for each in _leaves(option, value):
            if isinstance(each, int | float) and not isfinite(each):
                raise BadInput(f"{option}={each}: it must be a finite number")
            if isinstance(each, int | float) and abs(each) > most:
                raise BadInput(f"{option}={each}: it may be at most {most:,}")
            if not isinstance(each, str | int | float | None):
                raise BadInput(
                    f"{option}={each!r}: a {type(each).__name__} is no value of an option"
                )


def _leaves(option: str, value: Any) -> Iterator[Any]:
    """Yield the plain values in lists and mappings, and the keys of the mappings."""
    if isinstance(value, Mapping):
        if len({isinstance(key, str) for key in value}) > 1:  # no order, and so no id
            raise BadInput(f"{option}={value}: its keys are all names or all numbers")
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _leaves(option, each)
    elif not isinstance(value, Mapping):
        yield value
