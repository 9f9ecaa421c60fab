"""Files as their authors publish them: whether they are there, whole and the right ones."""

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from normbench.errors import BadInput


@dataclass(frozen=True)
class Official:
    """Files of one data set below a root.

    Args:
        data: its name in conf/data, for sentences.
        root: the folder.
        sums: MD5 of every file by its path below the root.
        where: how to get the files.
        verify: compare the sums.
    """

    data: str
    root: Path
    sums: Mapping[str, str]
    where: str
    verify: bool = True

    def fetch(self, download: Callable[[str], object]) -> None:
        """Have `download` bring the files to the root unless all of them are there."""
        fetch(self.data, self.root, self.where, self._complete, download)

    def _complete(self) -> bool:
        return all((self.root / name).is_file() for name in self.sums)

    def read(self, name: str) -> bytes:
        """The content of the file `name` below the root.

        Raises:
            BadInput: it is missing, or not the official one.
        """
        path = self.root / name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise self.unusable(name, "is missing") from None
        except OSError as error:
            raise self.unusable(name, f"cannot be read ({error.strerror})") from None
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if self.verify and found != self.sums[name]:
            raise self.unusable(
                name,
                f"has MD5 {found}, the official file {self.sums[name]}, so it is damaged or "
                "another; remove it first (data.verify=false takes it as it is)",
            )
        return content

    def unusable(self, name: str, problem: str) -> BadInput:
        """What to raise about the file `name`."""
        return BadInput(f"data={self.data}: {self.root / name} {problem}; {self.where}")


def fetch(
    data: str,
    root: Path,
    where: str,
    complete: Callable[[], bool],
    download: Callable[[str], object],
) -> None:
    """Have `download` bring a data set to `root` unless it is `complete`.

    Raises:
        BadInput: it could not; `where` is said.
    """
    if complete():
        return
    with _alone(root):
        if complete():  # another process brought it while we waited
            return
        try:
            download(str(root))
        except (OSError, RuntimeError) as error:
            raise BadInput(f"data={data}: the download failed ({error}); {where}") from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of several processes one at a time, as two sweeps may begin at the same moment."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / ".normbench.lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise BadInput(
            f"data.download=true: {folder} cannot be written ({error.strerror}); choose another "
            "data.root"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


class _Plain(pickle.Unpickler):
    """Of pickles only what arrays need: a file that is taken as it is must not run code."""

    allowed = ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer", "encode")

    def find_class(self, module: str, name: str) -> Any:
        if name not in self.allowed or module.partition(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def unpickled(content: bytes) -> Any:
    """The arrays, lists and texts in a pickle of Python 2 or 3.

    Raises:
        ValueError: it is no whole pickle, or one of anything else.
    """
    try:
        return _Plain(BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise whatever its opcodes lead to
        raise ValueError(f"is no whole pickle ({type(error).__name__}: {error})") from None
