"""Types of the fixtures in conftest.py that run a command line."""

from collections.abc import Callable
from dataclasses import dataclass

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
