"""The ways in which a request can fail on purpose, and the hint that goes with a misspelt word."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any


class BadInput(Exception):  # noqa: N818 (a word of the user's, not a defect of the program)
    """What was typed cannot be used by any run: one sentence with option, value and remedy."""


class Impossible(Exception):  # noqa: N818
    """A well-formed cell that cannot work, say batch normalization of a single value."""


class OutOfMemory(Exception):  # noqa: N818 (a result, not an error)
    """A run does not fit into the memory of its device."""


def choose_from(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown `word`: the nearest known one, or all of them."""
    known = sorted(known)
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}? (known: {', '.join(known)})"
    return f"known: {', '.join(known)}"


def require_one_of(name: str, value: Any, known: Collection[str]) -> str:
    """Return `value`, one of `known`.

    Raises:
        BadInput: it is none of them.
    """
    if value not in known:
        raise BadInput(f"{name}={value} is unknown; {choose_from(str(value), known)}")
    return str(value)


def counted(name: str, word: str, example: int) -> int:
    """The whole number above 0 that was typed as `word`.

    Raises:
        BadInput: it is none.
    """
    if not word.isdecimal() or not int(word):
        raise BadInput(f"{name}={word}: it is a whole number above 0, as {name}={example}")
    return int(word)


def one_line(error: BaseException) -> str:
    """An exception as one line for the screen."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
