"""How the command lines end."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Call `main` with the words of the command line, and exit with the code that it returns.

    Who reads our output may have seen enough before its end, as in `normbench --help | head`: the
    exit code is then that of a process which SIGPIPE ended, and nothing is complained of.
    """
    try:
        try:
            code = main(sys.argv[1:])
        finally:  # also where Hydra ends the process, having answered by itself
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    sys.exit(code)
