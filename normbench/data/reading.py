"""Reading the images of a split in a given order, by one of three loaders.

    memory   all images are in memory
    torch    processes of torch's DataLoader read and decode files
    ffcv     threads of FFCV's Loader read files of normbench.prepare

All deliver the same bytes: random numbers of an image are drawn by (seed, epoch, image). Policies
(`normbench.data.augmentation_policies`) take long for each image, so processes apply them, too.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from normbench.data.augmentation_policies import AugmentationPolicies
from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset, Split, Splits, TensorSplit
from normbench.data.ffcv_manifest import check_prepared
from normbench.data.photographs import DecodedSplit, FileSplit, Photographs
from normbench.data.reader_processes import Request, map_in_processes
from normbench.errors import BadInput

LoaderName = Literal["auto", "memory", "ffcv", "torch"]
PORTION = 2**21  # pixel values, about, that a process reads at once
NO_FFCV = (
    "FFCV is not installed; pip install 'normbench[ffcv]' after apt-get install libturbojpeg0-dev "
    "libopencv-dev pkg-config"
)


@runtime_checkable
class StreamingSplit(Protocol):
    """A split that reads many images at once by threads of its own."""

    def stream(
        self, data: Dataset, indices: Tensor, draws: Draws | None, threads: int
    ) -> Iterator[Tensor]:
        """Yield the images of `indices`, cropped, (n, C, H, W) uint8 in portions of any size.

        Without `draws` they are those of an evaluation.
        """


@runtime_checkable
class MapSplit(Protocol):
    """A split of images with maps (`normbench.data.maps`)."""

    def read(self, indices: Tensor, draws: Draws | None) -> Tensor:
        """Return the images of `indices` with their maps (N, C + T, H, W) uint8.

        Without `draws` they are those of an evaluation.
        """


@dataclass(frozen=True)
class Reader:
    """Reads the images of a split."""

    data: Dataset
    split: Split
    seed: int
    #: Of training images, one by one; by default none.
    policies: AugmentationPolicies = field(default_factory=AugmentationPolicies)
    #: Processes that read beside the run. A `StreamingSplit` reads by as many threads, and the
    #: processes apply the policies.
    processes: int = 0

    def stream(self, indices: Tensor, epoch: int | None, sizes: Sequence[int]) -> Iterator[Tensor]:
        """Yield the images of `indices`, cropped and, if it `augments`, augmented.

        Args:
            indices: (N,) in the split.
            epoch: of the training; None: an evaluation.
            sizes: numbers of images that are yielded at a time; their sum is N.

        Yields:
            uint8 (size, C, H, W) for each of `sizes`.

        Raises:
            BadInput: an image is damaged; the message names it.
        """
        requests: Iterable[Request]
        if isinstance(self.split, StreamingSplit):
            requests = self._read_ahead(self.split, indices, epoch)
            processes = self.processes if self.augments(epoch) else 0
        else:
            most = max(1, PORTION // math.prod(self.data.image_shape))
            portions = _divide(sizes, most) if self.processes else list(sizes)
            requests = (Request(each, epoch) for each in indices.split(portions))
            processes = min(self.processes, len(portions))
        return regroup(map_in_processes(self.fulfil, requests, processes), sizes)

    def warm_up(self, epoch: int | None) -> None:
        """Read one image, for which FFCV compiles its loader."""
        if isinstance(self.split, StreamingSplit) and len(self.split.labels):
            for _ in self.stream(torch.zeros(1, dtype=torch.int64), epoch, [1]):
                pass

    def augments(self, epoch: int | None) -> bool:
        """Return True if `stream` augments the images of `epoch`, because there are policies."""
        return bool(self.policies) and epoch is not None

    def fulfil(self, request: Request) -> Tensor:
        """Return the images of one `request`."""
        draws = None
        if request.epoch is not None:
            draws = Draws(self.seed, request.epoch, request.indices)
        images = request.images
        if images is None:
            images = read_images(self.data, self.split, request.indices, draws)
        if draws is not None and self.policies:
            images = self.policies(self.data.augment(images, draws), draws, self.data.white)
        return images

    def _read_ahead(
        self, split: StreamingSplit, indices: Tensor, epoch: int | None
    ) -> Iterator[Request]:
        draws = None if epoch is None else Draws(self.seed, epoch, indices)
        start = 0
        for images in split.stream(self.data, indices, draws, max(1, self.processes)):
            stop = start + len(images)
            yield Request(indices[start:stop], epoch, images)
            start = stop


def read_images(data: Dataset, split: Split, indices: Tensor, draws: Draws | None) -> Tensor:
    """Return the images `indices` of a `split`, cropped, with maps: (N, C + T, H, W) uint8."""
    if isinstance(split, MapSplit):
        return split.read(indices, draws)
    if isinstance(split, TensorSplit):
        return split.images.index_select(0, indices)  # many times as fast as [indices]
    assert isinstance(split, FileSplit | DecodedSplit)
    assert isinstance(data, Photographs)
    return data.crop_and_resize([split.image(index) for index in indices.tolist()], draws)


def _divide(sizes: Iterable[int], most: int) -> list[int]:
    """Divide every size into pieces of at most `most`."""
    return [min(most, size - start) for size in sizes for start in range(0, size, most)]


def regroup(pieces: Iterable[Tensor], sizes: Iterable[int]) -> Iterator[Tensor]:
    """Yield the rows of `pieces` in portions of `sizes`, each at least 1."""
    source, rest = iter(pieces), None
    for size in sizes:
        portion: list[Tensor] = []
        lacking = size
        while lacking:
            piece = next(source) if rest is None else rest
            portion.append(piece[:lacking])
            rest = piece[lacking:] if len(piece) > lacking else None
            lacking -= len(portion[-1])
        yield portion[0] if len(portion) == 1 else torch.cat(portion)


def open_splits(
    data: Dataset, loader: LoaderName, *, policies: bool = False, load: bool = True
) -> tuple[Splits, LoaderName]:
    """Return the splits of `data` for a loader, and the loader that auto stands for.

    Args:
        data: the data set.
        loader: a loader, or auto.
        policies: True if training images are augmented one by one.
        load: for loader=memory, decode all photographs; False: only check that they fit.

    Raises:
        BadInput: the loader cannot be used, or a file is missing or damaged.
    """
    if isinstance(data, Photographs) and loader in ("memory", "torch") and data.jpeg:
        raise BadInput(
            f"data.jpeg={data.jpeg:g}: it describes files of normbench.prepare, which loader=ffcv "
            f"reads; data.jpeg=null goes with loader={loader}"
        )
    if loader == "memory" and not data.in_memory and not isinstance(data, Photographs):
        raise BadInput(
            f"loader=memory: images of {type(data).__name__} are read from their files; "
            "loader=torch works"
        )
    official: tuple[Split, Split] = data.load()
    if loader == "auto":
        loader = _choose_loader(data, official, policies=policies)
    if loader == "ffcv":
        official = _open_prepared(data, official)
    elif loader == "memory" and isinstance(data, Photographs):
        _require_memory(official, data)
        if load:
            official = _decode_all(official[0]), _decode_all(official[1])
    return data.splits(official), loader


def _choose_loader(data: Dataset, official: tuple[Split, Split], *, policies: bool) -> LoaderName:
    if not isinstance(data, Photographs):
        # Decoding and policies take long, so processes share them.
        return "torch" if policies or not data.in_memory else "memory"
    if data.jpeg:
        return "ffcv"
    if not find_spec("ffcv"):
        return "torch"
    for path, problem in check_prepared(data, official):
        if problem:
            if path.is_file():
                print(f"{path} {problem}, so loader=auto takes loader=torch")
            return "torch"
    return "ffcv"


def _open_prepared(data: Dataset, official: tuple[Split, Split]) -> tuple[Split, Split]:
    prepared = check_prepared(data, official)  # first: data sets in memory have no such files
    if not find_spec("ffcv"):
        raise BadInput(f"loader=ffcv: {NO_FFCV}, or choose loader=torch")
    # Here and not above: it takes seconds to import, and may not be installed.
    from normbench.data.ffcv_reader import PreparedSplit

    for path, problem in prepared:
        if problem:
            raise BadInput(
                f"loader=ffcv: {path} {problem}; python -m normbench.prepare with the same data= "
                "options makes it"
            )
    train, test = (PreparedSplit.open(path) for path, _ in prepared)
    return train, test


def _require_memory(splits: Sequence[Split], data: Photographs) -> None:
    """Check that the decoded images of all `splits` fit into the free memory."""
    needed = sum(map(_decoded_bytes, splits))
    with Path("/proc/meminfo").open() as file:
        (free,) = (1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    if needed > 0.8 * free:  # the run needs memory beside the images
        raise BadInput(
            f"loader=memory: the images of {type(data).__name__} need about {needed / 2**30:.1f} "
            f"GB in every run and {free / 2**30:.1f} GB are free; loader=ffcv or loader=torch "
            "works, or a smaller data.resolution"
        )


def _decoded_bytes(split: Split) -> float:
    """Estimate the bytes of all decoded images from about twenty of them."""
    assert isinstance(split, FileSplit)
    sample = range(0, len(split.paths), max(1, len(split.paths) // 20))
    sizes = [width * height * 3 for width, height in (split.image(i).size for i in sample)]
    return sum(sizes) / len(sizes) * len(split.paths)


def _decode_all(split: Split) -> DecodedSplit:
    assert isinstance(split, FileSplit)
    images = [np.asarray(split.image(index)) for index in range(len(split.paths))]
    return DecodedSplit(images, split.labels)
