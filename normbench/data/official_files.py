"""Official files of a data set: present, whole and the right ones before torchvision reads them.

torchvision's readers compare the same MD5 sums, but say neither which file is wrong nor what to do
about it, and refuse files that are not the official ones.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor
from torchvision.datasets.utils import calculate_md5

from normbench.data.dataset import TensorSplit
from normbench.errors import BadInput, one_line
from normbench.run_files import open_locked


@dataclass(frozen=True)
class OfficialFiles:
    """Files of one data set below its root."""

    data: str  # name of the data set in conf/data, for messages
    root: Path
    sums: Mapping[str, str | None]  # MD5 of each file or folder by its path below `root`, if known
    remedy: str  # how to get the files, for messages
    verify: bool = True  # compare the sums

    def download(self, download: Callable[[], object]) -> None:
        """Call `download` unless all files are present, in one process at a time.

        Raises:
            BadInput: it failed, or `root` cannot be written.
        """
        if self._are_present():
            return
        with _await_lock(self.root):
            if self._are_present():  # another process downloaded them while this one waited
                return
            try:
                download()
            except (OSError, RuntimeError) as error:
                raise BadInput(
                    f"data={self.data}: the download failed ({error}); {self.remedy}"
                ) from error

    def _are_present(self) -> bool:
        return all((self.root / name).exists() for name in self.sums)

    def check(self) -> None:
        """Check that all files are present and, with `verify`, the official ones.

        Raises:
            BadInput: a file is not.
        """
        for name, official in self.sums.items():
            path = self.root / name
            try:
                with path.open("rb"):
                    md5 = calculate_md5(path) if self.verify else official
            except FileNotFoundError:
                raise self.unusable(name, "is missing") from None
            except OSError as error:
                raise self.unusable(name, f"cannot be read ({error.strerror})") from None
            if md5 != official:
                raise self.unusable(
                    name,
                    f"has MD5 {md5}, the official file {official}, so it is damaged or another; "
                    "remove it first (data.verify=false takes it as it is)",
                )

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Name the file `name` where a reader of torchvision fails on it.

        Raises:
            BadInput: the block raised any exception.
        """
        try:
            yield
        except BadInput:
            raise
        except Exception as error:  # readers raise whatever a damaged file leads them to
            raise self.unusable(name, f"cannot be read ({one_line(error)})") from None

    def split(
        self, name: str, images: Tensor, labels: Tensor, shape: tuple[int, int, int], classes: int
    ) -> TensorSplit:
        """Return what was read from the file `name` as a split.

        Raises:
            BadInput: the images are not bytes (N, *shape), with a label (N,) below `classes` each.
        """
        problem = ""
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != shape:
            kind = f"{tuple(images.shape[1:])} of {images.dtype}"
            problem = f"has images {kind}, not {shape} of bytes"
        elif len(labels) != len(images):
            problem = f"has {len(labels)} labels for {len(images)} images"
        elif len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            span = f"{int(labels.min())} to {int(labels.max())}"
            problem = f"has labels {span}, not 0 to {classes - 1}"
        if problem:
            raise self.unusable(name, problem)
        return TensorSplit(images.contiguous(), labels.long())

    def require_count(self, name: str, count: int, counted: str, official: int) -> None:
        """Raise BadInput unless the folder `name` has the `official` number of what is `counted`.

        `counted` ends with the data set, as in "images, ImageNet".
        """
        if count != official:
            raise self.unusable(
                name,
                f"has {count:,} {counted} {official:,} (data.verify=false takes it as it is)",
            )

    def unusable(self, name: str, problem: str) -> BadInput:
        """Return the error to raise about the file or folder `name`."""
        return BadInput(f"data={self.data}: {self.root / name} {problem}; {self.remedy}")


def _await_lock(folder: Path) -> IO[bytes]:
    """Return a locked file: one process at a time passes, as two sweeps may begin together."""
    try:
        return open_locked(folder / ".normbench.lock", wait=True)
    except OSError as error:
        raise BadInput(
            f"data.download=true: {folder} cannot be written ({error.strerror}); choose another "
            "data.root"
        ) from None
