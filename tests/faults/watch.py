"""Refuse, in a process of an attack, what it may not write or read, and record it."""

import errno
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from normbench.config.files import CONF, load

#: Folder of a data set of the system, beside which its prepared files belong.
DATA: str = load(CONF / "data/fashion_mnist.yaml")["root"]


class Watch:
    """Refuse and record each write outside of the folder of a command, as for another user.

    A word of the command line may name another folder, which is refused and not recorded.
    """

    def __init__(self, root: Path, words: Sequence[str], file: IO[str]) -> None:
        self.root, self.file, self.busy = root.resolve(), file, False
        self.allowed = [self.root / name for name in ("work", "tmp")]
        self.temporary: tuple[str, ...] = ("/dev/", "/proc/self", "/tmp/", "/var/tmp/", "/usr/tmp/")
        self.temporary += (os.environ.get("TMPDIR", "/tmp"),)
        self.named = [word.partition("=")[2] or word for word in words]
        self.named.append(DATA)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at an event of `sys.audit`."""
        if self.busy or event not in _PATHS:
            return
        if event == "open" and not _writes(arguments):
            self._refuse_unreadable(arguments[0])
            return
        self.busy = True
        try:
            for path in (arguments[index] for index in _PATHS[event]):
                if isinstance(path, str | bytes | os.PathLike):
                    self._look(os.fsdecode(path))
        finally:
            self.busy = False

    def _refuse_unreadable(self, path: Any) -> None:
        """Refuse to read files without permissions, which root may read."""
        if not isinstance(path, str | bytes | os.PathLike):
            return
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 (a path as bytes has no methods)
        except (OSError, ValueError):
            return
        if not mode & 0o777:
            raise _refusal(path)

    def _look(self, text: str) -> None:
        try:
            path = Path(os.path.realpath(Path(text).parent)) / Path(text).name
        except (OSError, ValueError, RuntimeError):
            return
        if (
            any(path.is_relative_to(folder) for folder in self.allowed)
            or path == self.root / "work"
        ):
            return
        if str(path).startswith(self.temporary):
            return  # devices, and where Python tries to have temporary files
        if not self._is_named(path):
            self.file.write(json.dumps(str(path)) + "\n")
            self.file.flush()
        raise _refusal(text)

    def _is_named(self, path: Path) -> bool:
        """Return whether a word of the command line names a folder of `path`."""
        for name in self.named:
            with suppress(OSError, ValueError, RuntimeError):
                folder = Path(os.path.realpath(Path(name).expanduser()))
                if path.is_relative_to(folder) and ("/" in name or "~" in name or "." in name):
                    return True
        return False


def _refusal(path: Any) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))


#: Events of `sys.audit` that write, and which of their arguments are paths that change.
_PATHS = {
    "open": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,),
    "os.symlink": (1,), "os.link": (1,), "os.truncate": (0,), "os.chmod": (0,),
}  # fmt: skip


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
