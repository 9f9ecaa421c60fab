"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 colour images of 32x32 pixels.

Read from the pickles of the official archives as torchvision unpacks them, so that a folder of
torchvision's serves as it is.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torchvision import datasets as torchvision

from normbench.data.checksums import Official, unpickled
from normbench.data.dataset import Arrays, Split


@dataclass(frozen=True)
class _Cifar(Arrays):
    """What both have in common.

    Args:
        verify: compare the files with the official MD5 sums.
        download: get the files where they are missing.
    """

    val: float = 0.0
    verify: bool = True
    download: bool = False

    image = (3, 32, 32)

    @property
    @abstractmethod
    def theirs(self) -> type[torchvision.CIFAR10]:
        """torchvision's class, which knows the names and sums of the official files."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Of the labels."""

    @property
    def official(self) -> tuple[int, int]:
        return (50_000, 10_000) if self.verify else super().official

    def load(self) -> tuple[Split, Split]:
        theirs = self.theirs
        batches = [dict(entries) for entries in (theirs.train_list, theirs.test_list)]
        files = Official(
            type(self).__name__.lower(),
            self.folder,
            {f"{theirs.base_folder}/{n}": md5 for batch in batches for n, md5 in batch.items()},
            f"data.download=true gets it, or unpack {theirs.filename} of {theirs.url} in data.root",
            self.verify,
        )
        if self.download:
            files.fetch(lambda root: theirs(root, download=True))
        train, test = (
            [self._batch(files, f"{theirs.base_folder}/{name}") for name in batch]
            for batch in batches
        )
        return _joined(train), _joined(test)

    def _batch(self, files: Official, name: str) -> Split:
        try:
            content = unpickled(files.read(name))
            images = np.asarray(content["data"], dtype=np.uint8).reshape(-1, *self.image)
            labels = torch.tensor(content[self.key], dtype=torch.int64)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            problem = str(error) if isinstance(error, ValueError) else f"lacks {error}"
            raise files.unusable(name, problem) from None
        if len(images) != len(labels):
            raise files.unusable(name, f"has {len(labels)} labels for {len(images)} images")
        if not set(labels.tolist()) <= set(range(self.classes)):
            raise files.unusable(name, f"has a label {int(labels.max())} beyond {self.classes}")
        return Split(torch.from_numpy(images.copy()), labels)


@dataclass(frozen=True)
class CIFAR10(_Cifar):
    """50,000 training and 10,000 test images in 10 classes."""

    classes = 10
    theirs = torchvision.CIFAR10
    key = "labels"
    moments = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@dataclass(frozen=True)
class CIFAR100(_Cifar):
    """50,000 training and 10,000 test images in 100 classes."""

    classes = 100
    theirs = torchvision.CIFAR100
    key = "fine_labels"
    moments = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def _joined(parts: Sequence[Split]) -> Split:
    return Split(*(torch.cat(each) for each in zip(*parts, strict=True)))
