"""Failures that a request can meet on purpose, and words of messages."""

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any
from unicodedata import category

#: Letters: a word of more than 2 * WORD is shortened, a message of more than 2 * MESSAGE; a list
#: of more than LISTED names only the nearest ones.
WORD, MESSAGE, LISTED = 80, 1000, 400
#: Letters that a word needs to be looked for in descriptions, and names that are proposed for it.
SHORTEST_WORD, PROPOSED = 4, 6


class BadInput(Exception):  # noqa: N818 (a word of the user's, not a defect of the program)
    """The command line cannot be used; the message names option, value and remedy."""


class DamagedFile(BadInput):
    """A file cannot be used as it is; the message names it and what is wrong with it."""


class LeftOut(UserWarning):
    """A damaged file was left out of what is read or written."""


class Impossible(Exception):  # noqa: N818
    """A well-formed cell that cannot work, say batch normalization of a single value."""


class OutOfMemory(Exception):  # noqa: N818 (a result, not an error)
    """A run does not fit into the memory of its device."""


def leave_out(damage: DamagedFile) -> None:
    """Warn that a damaged file is left out."""
    warnings.warn(str(damage), LeftOut, stacklevel=2)


def leave_out_again(sentences: Iterable[str]) -> None:
    """Warn of what `left_out` has collected, in another process or for another reader."""
    for sentence in sentences:
        leave_out(DamagedFile(sentence))


@contextmanager
def left_out() -> Iterator[list[str]]:
    """Yield a list that receives the sentence of each file that is left out, once each."""
    sentences: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", LeftOut)  # also under `python -W error`
        show = warnings.showwarning

        def collect(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if not issubclass(category, LeftOut):
                show(message, category, *rest)
            elif str(message) not in sentences:
                sentences.append(str(message))

        warnings.showwarning = collect  # type: ignore[assignment]
        yield sentences


def choose_from(
    word: str,
    choices: Iterable[str],
    listing: str = "",
    descriptions: Mapping[str, str] | None = None,
) -> str:
    """Return the end of a sentence about an unknown `word`: the choices, and the nearest one.

    Args:
        word: that is unknown.
        choices: that are known; of a long list the nearest ones are named.
        listing: command that lists all of them.
        descriptions: by choice, a line in which the word may stand, as "group" in that of gn.
    """
    choices = sorted(choices)
    listed = f"known: {', '.join(choices) or 'none'}"
    if len(listed) > LISTED:
        nearest = get_close_matches(word[:WORD], choices, n=8, cutoff=0.0)
        command = f"; {listing} lists all" if listing else ""
        listed = f"{len(choices)} known, as {', '.join(nearest)}{command}"
    begun, others = _described_by(word, descriptions or {})
    near = begun or get_close_matches(word[:WORD], choices, n=1, cutoff=0.6) or others
    return f"did you mean {join_words(near, 'or')}? ({listed})" if near else listed


def _described_by(word: str, descriptions: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names whose description begins with `word`, and those that end with or have it.

    Of each only the shortest names: gn, not gn_ws, for "group". Only letters and digits count, so
    that GroupNorm and filter_response are found, too. A source in parentheses is no part of it.
    """
    wanted = _letters(word[:WORD])
    if len(wanted) < SHORTEST_WORD:
        return [], []
    texts = {name: _letters(text.partition(" (")[0]) for name, text in descriptions.items()}
    begun = [name for name, text in texts.items() if text.startswith(wanted)]
    ended = [name for name, text in texts.items() if text.endswith(wanted)]
    return _shortest(begun), _shortest(ended or [name for name in texts if wanted in texts[name]])


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def _shortest(names: Iterable[str]) -> list[str]:
    """Return the shortest names, if they are few."""
    names = sorted(names, key=lambda name: (len(name), name))
    shortest = [name for name in names if len(name) == len(names[0])]
    return shortest if len(shortest) <= PROPOSED else []


def escape_controls(text: str, keep: str = "") -> str:
    """Return `text` with its control characters as escapes, apart from those in `keep`.

    A terminal would obey them: clear the screen, change colors, move the cursor.
    """
    if text.isprintable():
        return text
    return "".join(
        x if x.isprintable() or x in keep or category(x) == "Zs"
        else x.encode("unicode_escape").decode()
        for x in text
    )  # fmt: skip


def printable(text: str) -> str:
    """Return a text as one line, with control characters as escapes."""
    return escape_controls(" ".join(text.split()))


def for_screen(message: object) -> str:
    """Return a message as one line of printable text, its long words and its end cut.

    Messages contain words of the user and names of files unchanged, so they are escaped here.
    """
    text = printable(str(message))
    text = re.sub(rf"\S{{{2 * WORD + 1},}}", lambda word: _cut(word[0], WORD), text)
    return _cut(text, MESSAGE)


def _cut(text: str, most: int) -> str:
    """Return the beginning and the end of a text that is too long."""
    return text if len(text) <= 2 * most else f"{text[:most]}...{text[-most // 2 :]}"


def require_one_of(name: str, value: Any, choices: Collection[str], listing: str = "") -> str:
    """Return `value`, one of `choices`, which the command `listing` lists.

    Raises:
        BadInput: it is none of them.
    """
    if value not in choices:
        raise BadInput(f"{name}={value} is unknown; {choose_from(str(value), choices, listing)}")
    return str(value)


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Return words as a list in a sentence: "4, 8 and 128"."""
    *others, last = words
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 file", "2 files"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_line(error: BaseException) -> str:
    """Return an exception as one line for the screen."""
    if isinstance(error, OSError) and error.strerror:  # not the number of the error
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
