"""Command lines that run in the process of a test, and the types of such fixtures."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from normbench.config.cli import Main
from normbench.results import Row


@dataclass(frozen=True)
class Finished:
    """The exit code of a command line and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Finished]
Probe = Callable[..., Finished]
Rows = Callable[[], list[Row]]


def in_process(main: Main, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return `main` as a command line that tells its exit code and what it printed."""

    def run(*arguments: str) -> Finished:
        code = main(arguments)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return run
