"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 color images of 32x32 pixels.

Read by torchvision from the official archive as torchvision unpacks it, one file at a time, so that
a damaged file is named.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torchvision import datasets as torchvision

from normbench.data.dataset import HeldOut, SmallImages, TensorSplit, concatenate
from normbench.data.official_files import OfficialFiles


@dataclass(frozen=True)
class _Cifar(SmallImages):
    """Base class of CIFAR-10 and CIFAR-100.

    Args:
        verify: compare the files with the official MD5 sums.
        download: get the files where they are missing.
    """

    val: HeldOut = 0.0
    verify: bool = True
    download: bool = False

    image_shape = (3, 32, 32)

    #: torchvision's class, which knows the names and MD5 sums of the files.
    reader: ClassVar[type[torchvision.CIFAR10]]

    @property
    def official_sizes(self) -> tuple[int, int]:
        return (50_000, 10_000) if self.verify else super().official_sizes

    def load(self) -> tuple[TensorSplit, TensorSplit]:
        reader, meta = self.reader, self.reader.meta
        parts = [*reader.train_list, *reader.test_list, (meta["filename"], meta["md5"])]
        files = OfficialFiles(
            type(self).__name__.lower(),
            self.folder,
            {f"{reader.base_folder}/{name}": md5 for name, md5 in parts},
            f"data.download=true gets it, or unpack {reader.filename} of {reader.url} in data.root",
            self.verify,
        )
        if self.download:
            files.download(lambda: reader(self.folder, download=True))
        files.check()
        if not self.verify:
            for name in files.sums:
                with files.reading(name):
                    require_arrays(self.folder / name)
        train, test = (
            concatenate([self._read_part(files, name) for name, _ in split])
            for split in (reader.train_list, reader.test_list)
        )
        return train, test

    def _read_part(self, files: OfficialFiles, name: str) -> TensorSplit:
        """Read the file `name` by torchvision."""
        # torchvision reads a whole split: this one has one file, without the sum that `files` has
        # compared.
        split = {"train_list": [[name, None]], "test_list": []}
        meta = {**self.reader.meta, "md5": None}
        reader = type(self.reader.__name__, (self.reader,), {**split, "meta": meta})
        path = f"{self.reader.base_folder}/{name}"
        with files.reading(path):
            content = reader(self.folder)
            images = torch.from_numpy(content.data).permute(0, 3, 1, 2)
            labels = torch.tensor(content.targets)
        return files.split(path, images, labels, self.image_shape, self.classes)


@dataclass(frozen=True)
class CIFAR10(_Cifar):
    """50,000 training and 10,000 test images in 10 classes."""

    classes = 10
    reader = torchvision.CIFAR10
    moments = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@dataclass(frozen=True)
class CIFAR100(_Cifar):
    """50,000 training and 10,000 test images in 100 classes."""

    classes = 100
    reader = torchvision.CIFAR100
    moments = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, lists and strings alone."""

    names = ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer", "encode")

    def find_class(self, module: str, name: str) -> Any:
        if name not in self.names or module.partition(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def require_arrays(path: Path) -> None:
    """Raise an exception unless a pickle holds arrays, lists and strings alone.

    torchvision runs whatever code a pickle names. A file with the official sum is known to be
    harmless; any other is read by this first.
    """
    with path.open("rb") as file:
        _ArrayUnpickler(file, encoding="latin1").load()  # written by Python 2
