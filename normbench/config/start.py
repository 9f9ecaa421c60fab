"""The run that another one begins with: `init_from=RUN@EPOCH`.

RUN is the id of a run, or describes it by the options that differ from those of the run that is
typed, each as KEY:VALUE. So this run continues one with soft ratios that is the same otherwise:

    python -m normbench norm=sn norm.hard=true init_from=norm.hard:false@30

The described run is composed like any other, and its id takes the place of the words. An option
that is added to both runs leaves the description as it is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normbench.errors import BadInput

EXAMPLE = "init_from=0123456789ab@30 or init_from=norm.hard:false@30"
#: Keys of a run's start, which a description leaves out: the described run has none.
START = ("init_from", "init_only")


@dataclass(frozen=True)
class Start:
    """A run that another one begins with, as it was described."""

    title: str
    differs: Mapping[str, str | int]  # options in which it differs from the one that begins


def split_start(value: object) -> tuple[str, str]:
    """Return the two parts of `init_from`: an id or a description, and the epoch or "last".

    Raises:
        BadInput: it has other parts.
    """
    run, _, epoch = str(value).rpartition("@")
    described = all(":" in word and "=" not in word for word in run.split()) and run.split()
    if Path(str(value)).suffix in (".pt", ".pth", ".safetensors"):
        raise BadInput(
            f"init_from={value}: it takes runs of normbench; a network of timm takes weights of a "
            "file by +model.arguments.pretrained=true and "
            f'"+model.arguments.pretrained_cfg_overlay={{file:{value}}}"'
        )
    if not (is_id(run) or described) or not re.fullmatch("[1-9][0-9]*|last", epoch):
        raise BadInput(
            f"init_from={value} is not RUN@EPOCH: RUN is a run's id (12 hex digits) or the options "
            "in which it differs, as KEY:VALUE, and EPOCH one of its checkpoint.epochs or last; "
            f"use {EXAMPLE}"
        )
    return run, epoch


def is_id(run: str) -> bool:
    """Return True if `run` is the id of a run."""
    return re.fullmatch("[0-9a-f]{12}", run) is not None


def described_run(
    typed: Sequence[str], numbers: Mapping[str, int], description: str
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the words of the described run, and its plain numbers.

    The words are those `typed`, with the changes of `description`. Cells that differ in plain
    numbers alone have equal words. A group in the description also removes the options that were
    typed for it.

    Args:
        typed: words of the run that begins with the described one.
        numbers: of its keys that take plain numbers; they replace those in `typed`.
        description: KEY:VALUE, separated by spaces.
    """
    changes = described_options(description)
    replaced = {*numbers, *changes, *START}
    unchanged = [
        word for word in typed if not {_key(word), _key(word).partition(".")[0]} & replaced
    ]
    starts = [f"{key}=null" for key in START if key not in changes]
    words = (*unchanged, *(f"{key}={value}" for key, value in changes.items()), *starts)
    return words, {key: number for key, number in numbers.items() if key not in changes}


def described_options(description: str) -> dict[str, str | int]:
    """Return the options in a description; whole numbers as int."""
    options: dict[str, str | int] = {}
    for word in description.split():
        key, _, value = word.partition(":")
        options[key] = int(value) if value.isdecimal() else value
    return options


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")
