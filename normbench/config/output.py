"""Standard output and error that never end a command: closed, full, or of another encoding.

Whatever is printed, no control character of a name reaches the terminal: of a run, a folder, an
option or a foreign file.
"""

import io
import os
import sys
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from normbench.errors import escape_controls

if TYPE_CHECKING:
    from rich.console import Console


class Output(io.FileIO):
    """A file descriptor that drops what it cannot take, as on a full disk, and remembers why."""

    error: OSError | None = None

    def write(self, content: object) -> int:
        data = memoryview(content).cast("B")  # type: ignore[arg-type]
        try:
            return super().write(data) or 0
        except BrokenPipeError:  # the reader has closed the pipe
            raise
        except OSError as error:
            self.error = error
            return len(data)


class PrintableText(io.TextIOWrapper):
    """Text whose control characters are written as escapes."""

    def write(self, text: str) -> int:
        # Progress bars of other packages go to the start of their line on standard error.
        return super().write(escape_controls(text, "\n\t\r" if self.fileno() == 2 else "\n\t"))


class StyledText:
    """The same file for rich, which styles what it prints by control characters of its own."""

    def __init__(self, file: PrintableText) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return io.TextIOWrapper.write(self._file, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def styled_output() -> IO[str] | None:
    """Return standard output without the protection from control characters; None: it has none."""
    if not isinstance(sys.stdout, PrintableText):
        return None
    return cast("IO[str]", StyledText(sys.stdout))


def terminal() -> "Console | None":
    """Return a console that draws on standard output; None if that is no terminal."""
    from rich.console import Console  # not at the start of every command

    console = Console(file=styled_output())
    return console if console.is_terminal else None


def protect_output() -> Output:
    """Protect standard output and error of this process, and of those that it starts.

    Characters that the encoding of the terminal lacks are written as escapes.

    Returns:
        The standard output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file we open would get its number, and our output
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    output, errors = Output(1, "w", closefd=False), Output(2, "w", closefd=False)
    sys.stdout, sys.stderr = _text(output, sys.stdout), _text(errors, sys.stderr)
    return output


def _text(raw: Output, before: TextIO | None) -> TextIO:
    """Return `raw` as a text file with the encoding of the file that it replaces."""
    if before is not None:
        with suppress(OSError):
            before.flush()
    return PrintableText(
        io.BufferedWriter(raw),
        encoding=before.encoding if before is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty() or raw.fileno() == 2,
    )
