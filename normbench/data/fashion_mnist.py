"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 70,000 grey images of 28x28 pixels, 10 classes.

Read from the four official idx files, gzipped as they are published.
"""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from normbench.data.dataset import Arrays, Split
from normbench.errors import BadInput

SIDE = 28  # pixels, as the files have them
HOW_TO_GET = (
    "on Debian `apt-get install dataset-fashion-mnist` puts the four files into "
    "/usr/share/datasets/fashion-mnist; elsewhere take them from the data set's page "
    "(github.com/zalandoresearch/fashion-mnist) and say data.root=FOLDER"
)


@dataclass(frozen=True)
class FashionMNIST(Arrays):
    """60,000 training and 10,000 test images, as the official files have them.

    Args:
        root: folder of the four `*-ubyte.gz` files.
        size: side of the images in pixels, by averages over the original ones; null: 28.
    """

    root: str = "/usr/share/datasets/fashion-mnist"
    padding: int = 2
    size: int | None = None

    classes = 10
    official = (60_000, 10_000)
    moments = ((0.2860,), (0.3530,))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None and not 1 <= self.size <= SIDE:
            raise ValueError(f"size={self.size}: images have 1 to {SIDE} pixels on a side")

    @property
    def image(self) -> tuple[int, int, int]:
        side = self.size or SIDE
        return 1, side, side

    @property
    def limits(self) -> str:
        _, height, width = self.image
        return (
            f"Grey images of {height}x{width} pixels in a small network and a short training: "
            "a demonstration, no evidence about photographs or ImageNet."
        )

    def load(self) -> tuple[Split, Split]:
        root = self.folder
        return self._small(_split(root, "train")), self._small(_split(root, "t10k"))

    def _small(self, split: Split) -> Split:
        if self.size in (None, SIDE):
            return split
        averages = adaptive_avg_pool2d(split.images.float(), self.image[1:])
        return Split(averages.round().to(torch.uint8), split.labels)


def _split(root: Path, name: str) -> Split:
    path = root / f"{name}-images-idx3-ubyte.gz"
    images = read_idx(path, axes=3)
    if images.shape[1:] != (SIDE, SIDE):
        raise _unusable(path, f"has images of {tuple(images.shape[1:])}, not of 28x28 pixels")
    path = root / f"{name}-labels-idx1-ubyte.gz"
    labels = read_idx(path, axes=1)
    if len(labels) != len(images):
        raise _unusable(path, f"has {len(labels)} labels for {len(images)} images")
    if labels.max() >= FashionMNIST.classes:
        raise _unusable(path, f"has a label {int(labels.max())} beyond its 10 classes")
    return Split(images[:, None], labels.long())


def read_idx(path: Path, axes: int) -> Tensor:
    """The unsigned bytes of a gzipped idx file as a tensor with `axes` axes.

    The format: two zero bytes, 8 for unsigned bytes, the number of axes; their lengths as
    big-endian 32-bit integers; the values.

    Raises:
        BadInput: no such file, no whole gzip file, or no idx file with so many axes.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise _unusable(path, "is missing") from None
    except (OSError, EOFError, zlib.error) as error:
        raise _unusable(path, f"cannot be read ({error})") from None
    magic, start = bytes([0, 0, 8, axes]), 4 + 4 * axes
    if content[:4] != magic or len(content) < start:
        raise _unusable(
            path, f"begins with {content[:4].hex(' ')}, an idx file like it with {magic.hex(' ')}"
        )
    shape = struct.unpack_from(f">{axes}I", content, 4)
    if len(content) - start != math.prod(shape):
        raise _unusable(path, f"holds {len(content) - start} values, its header says {shape}")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(shape)


def _unusable(path: Path, problem: str) -> BadInput:
    return BadInput(f"data=fashion_mnist: {path} {problem}; {HOW_TO_GET}")
