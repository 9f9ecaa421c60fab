"""What a command may do, whatever its words, its environment and its files are."""

import re
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass

EXIT_CODES = (0, 1, 2, 130, 143)
SECONDS = 30.0
#: Lines of a refusal on stderr.
LINES = 12


@dataclass(frozen=True)
class Outcome:
    """The end of a command.

    Args:
        code: exit code, negative for a signal.
        out: what it printed.
        err: the same on stderr.
        seconds: how long it took.
        written: files outside of its folder that it wrote, or tried to, or has not removed.
        where: what it was doing after `SECONDS`, when it was killed; "" if it ended by itself.
    """

    code: int
    out: bytes
    err: bytes
    seconds: float = 0.0
    written: tuple[str, ...] = ()
    where: str = ""


def faults(outcome: Outcome, culprits: Collection[str] = (), *, damaged: bool = False) -> list[str]:
    """Return what is wrong with the end of a command; [] if it is allowed.

    Args:
        outcome: of the command.
        culprits: keys, values or files, one of which a refusal names; () if nothing is at fault.
        damaged: the command reads a file that cannot be used, so it names it or ends with 1.
    """
    return list(_faults(outcome, culprits, damaged=damaged))


def _faults(outcome: Outcome, culprits: Collection[str], *, damaged: bool) -> Iterator[str]:
    out, err = (text.decode("utf-8", "replace") for text in (outcome.out, outcome.err))
    yield from (f"writes {path}" for path in outcome.written)
    if outcome.where:
        yield f"no end after {outcome.seconds:.0f} s: {outcome.where}"
        return
    if match := re.search("Traceback", out + err):
        yield f"a traceback{_place((out + err)[match.start() :])}"
        return
    if outcome.code not in EXIT_CODES:
        yield f"exit code {outcome.code}"
    if match := re.search(r"\.py:\d+: (\w*Warning.*)", out + err):
        yield f"a warning of Python: {match[1]}"
    if (lines := len(err.splitlines())) > LINES:
        yield f"{lines} lines on stderr"
    for name, raw in (("stdout", outcome.out), ("stderr", outcome.err)):
        if not _is_utf8(raw):
            yield f"{name} is not UTF-8"
        if control := _control_character(raw):
            yield f"the control character {control!r} on {name}"
    if outcome.code in (1, 2):
        if not (out + err).strip():
            yield f"exit code {outcome.code} without a word"
        elif culprits and not _names(out + err, culprits):
            yield f"neither key nor file is named: {_last_line(err or out)}"
    elif damaged and outcome.code == 0 and not _names(out + err, culprits):
        yield f"exit code 0, and the damaged file is not named: {_last_line(out or err)}"
    if "the check of all cells failed" in err:
        yield f"a failure of the check in place of a refusal: {_last_line(err)}"


def _names(text: str, culprits: Collection[str]) -> bool:
    """Return whether a culprit begins a word of `text`; the name of the program is none."""
    text = re.sub(r"(python -m |(?<![\w.]))normbench(\.[a-z]+)?(: |\b)", "", text)
    return any(
        re.search((r"(?<!\w)" if culprit[0].isalnum() else "") + re.escape(culprit), text)
        for culprit in culprits
    )


def _place(traceback: str) -> str:
    """Return the innermost function of normbench in a traceback, and the error."""
    frames = re.findall(
        r'File ".*?/((?:normbench|hydra_plugins)/[^"]*)", line (\d+), in (\S+)', traceback
    )
    path, line, function = frames[-1] if frames else ("?", "?", "?")
    return f" of {path}:{line} {function}: {_last_line(traceback)}"


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line and not line.startswith(" ")]
    return lines[-1][:200] if lines else ""


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _control_character(raw: bytes) -> str:
    """Return the first character that moves a terminal's cursor, or changes its state; or ""."""
    text = raw.decode("utf-8", "replace")
    return next((c for c in text if c not in "\n\t" and unicodedata.category(c) == "Cc"), "")
