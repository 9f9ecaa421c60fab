"""Failures that a request can meet on purpose, and words of messages."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any


class BadInput(Exception):  # noqa: N818 (a word of the user's, not a defect of the program)
    """The command line cannot be used; the message names option, value and remedy."""


class Impossible(Exception):  # noqa: N818
    """A well-formed cell that cannot work, say batch normalization of a single value."""


class OutOfMemory(Exception):  # noqa: N818 (a result, not an error)
    """A run does not fit into the memory of its device."""


def choose_from(word: str, choices: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown `word`: all choices, and the nearest one."""
    choices = sorted(choices)
    listed = f"known: {', '.join(choices) or 'none'}"
    near = get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"did you mean {near[0]}? ({listed})" if near else listed


def require_one_of(name: str, value: Any, choices: Collection[str]) -> str:
    """Return `value`, one of `choices`.

    Raises:
        BadInput: it is none of them.
    """
    if value not in choices:
        raise BadInput(f"{name}={value} is unknown; {choose_from(str(value), choices)}")
    return str(value)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 file", "2 files"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_line(error: BaseException) -> str:
    """Return an exception as one line for the screen."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
