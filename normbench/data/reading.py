"""Reading the images of a split, by whatever means they come, in the order that is asked for.

    memory   all of them are in memory
    torch    processes of torch's DataLoader read and decode files
    ffcv     threads of FFCV's Loader read what normbench.prepare has written

All of them deliver the same bytes: what is random about an image is drawn by (seed, epoch, image).
Distortions (normbench.data.policies) take an image at a time, so processes do that, too.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset, Part, Split, Splits
from normbench.data.ffcv_manifest import fault
from normbench.data.files import Files, Folders, Pictures
from normbench.data.policies import Distortion
from normbench.errors import BadInput

Means = Literal["auto", "memory", "ffcv", "torch"]
MEANS: tuple[Means, ...] = get_args(Means)
PORTION = 2**21  # values of images, about, that a process reads at once
NO_FFCV = (
    "loader=ffcv: FFCV is not installed; pip install 'normbench[ffcv]' after apt-get install "
    "libturbojpeg0-dev libopencv-dev pkg-config, or choose loader=torch"
)


@dataclass(frozen=True)
class Ask:
    """Images that are wanted next.

    Args:
        indices: (N,) in their split.
        epoch: of the training; None: for an evaluation, in which nothing is drawn.
        images: (N, C, H, W) uint8 where somebody has read them already.
    """

    indices: Tensor
    epoch: int | None
    images: Tensor | None = None


@runtime_checkable
class Stream(Protocol):
    """A part that reads by itself, many images at once."""

    def stream(
        self, data: Dataset, indices: Tensor, draws: Draws | None, threads: int
    ) -> Iterator[Tensor]:
        """The images of `indices`, framed, (N, C, H, W) uint8 in portions of its own choice."""


class Reader:
    """Reads the images of `part`.

    Args:
        data: the data set.
        part: one of its splits.
        seed: of the run.
        distortion: of training images.
        processes: that read beside the run; 0: it reads by itself. Of a part that streams they
            only distort, and as many threads read.
    """

    def __init__(
        self,
        data: Dataset,
        part: Part,
        seed: int,
        distortion: Distortion | None = None,
        processes: int = 0,
    ) -> None:
        self.data, self.part, self.seed = data, part, seed
        self.distortion = distortion or Distortion()
        self.processes = processes

    def stream(self, indices: Tensor, epoch: int | None, sizes: Sequence[int]) -> Iterator[Tensor]:
        """The images of `indices`, framed and, if this reader distorts, augmented and distorted.

        Args:
            indices: (N,) in the split.
            epoch: of the training; None: an evaluation.
            sizes: how many images the caller takes at a time; their sum is N.

        Returns:
            uint8 (size, C, H, W) for each of `sizes`.

        Raises:
            BadInput: an image is damaged; the sentence names it.
        """
        asks: Iterable[Ask]
        if isinstance(self.part, Stream):
            asks, processes = self._streamed(indices, epoch), self.processes
            processes = processes if self.distorts(epoch) else 0
        else:
            most = max(1, PORTION // math.prod(self.data.image))
            portions = _portions(sizes, most) if self.processes else list(sizes)
            processes = min(self.processes, len(portions))
            asks = (Ask(each, epoch) for each in indices.split(portions))
        return regrouped(mapped(self.read, asks, processes), sizes)

    def warm_up(self, epoch: int | None) -> None:
        """Have compiled now what FFCV would compile when the first image is read."""
        if isinstance(self.part, Stream) and len(self.part.labels):
            for _ in self.stream(torch.zeros(1, dtype=torch.int64), epoch, [1]):
                pass

    def distorts(self, epoch: int | None) -> bool:
        """Whether what it delivers of `epoch` is augmented and distorted already."""
        return bool(self.distortion) and epoch is not None

    def read(self, ask: Ask) -> Tensor:
        """The images of one `ask`."""
        draws = None if ask.epoch is None else Draws(self.seed, ask.epoch, ask.indices)
        images = ask.images
        if images is None:
            images = pixels(self.data, self.part, ask.indices, draws)
        if draws is not None and self.distortion:
            images = self.distortion(self.data.augment(images, draws), draws)
        return images

    def _streamed(self, indices: Tensor, epoch: int | None) -> Iterator[Ask]:
        assert isinstance(self.part, Stream)
        draws = None if epoch is None else Draws(self.seed, epoch, indices)
        start = 0
        for images in self.part.stream(self.data, indices, draws, max(1, self.processes)):
            stop = start + len(images)
            yield Ask(indices[start:stop], epoch, images)
            start = stop


def pixels(data: Dataset, part: Part, indices: Tensor, draws: Draws | None) -> Tensor:
    """Images `indices` of a `part`, framed: (N, C, H, W) uint8."""
    if isinstance(part, Split):
        return part.images.index_select(0, indices)  # many times as fast as [indices]
    assert isinstance(part, Files | Pictures)
    assert isinstance(data, Folders)
    return data.framed([part.picture(index) for index in indices.tolist()], draws)


def _portions(sizes: Iterable[int], most: int) -> list[int]:
    """Every size cut into pieces of at most so many."""
    return [min(most, size - start) for size in sizes for start in range(0, size, most)]


def regrouped(pieces: Iterable[Tensor], sizes: Iterable[int]) -> Iterator[Tensor]:
    """The rows of `pieces`, in portions of `sizes`, each at least 1."""
    source, rest = iter(pieces), None
    for size in sizes:
        taken: list[Tensor] = []
        lacking = size
        while lacking:
            piece = next(source) if rest is None else rest
            taken.append(piece[:lacking])
            rest = piece[lacking:] if len(piece) > lacking else None
            lacking -= len(taken[-1])
        yield taken[0] if len(taken) == 1 else torch.cat(taken)


@dataclass(frozen=True)
class _Failed:
    """What a process could not do; an exception of its own would lose its class on the way."""

    sentence: str


class _Work(TorchDataset[Tensor]):
    """What the processes of a DataLoader do with what they are handed."""

    def __init__(self, work: Callable[[Ask], Tensor]) -> None:
        self.work = work

    def __getitem__(self, ask: Any) -> Any:
        try:
            return self.work(ask)
        except BadInput as error:
            return _Failed(str(error))


class _Asks(Sampler[Any]):
    """What the processes of a DataLoader are handed."""

    def __init__(self, asks: Iterable[Ask]) -> None:
        self.asks = asks

    def __iter__(self) -> Iterator[Ask]:
        return iter(self.asks)


def mapped(work: Callable[[Ask], Tensor], asks: Iterable[Ask], processes: int) -> Iterator[Tensor]:
    """`work` done with each of `asks` by so many processes, in order; 0: by this one.

    Raises:
        BadInput: what `work` raised.
    """
    if not processes:
        yield from map(work, asks)
        return
    # Forked: what they read is there already, and nothing has to be imported again.
    found = DataLoader(
        _Work(work), sampler=_Asks(asks), batch_size=None, collate_fn=_same,
        num_workers=processes, prefetch_factor=4, multiprocessing_context=get_context("fork"),
        worker_init_fn=partial(_begin, os.getpid()),
        generator=torch.Generator(),  # its own: a seed from torch's would move the run's numbers
    )  # fmt: skip
    for each in found:
        if isinstance(each, _Failed):
            raise BadInput(each.sentence)
        yield each


def _same(value: Any) -> Any:
    return value


def _begin(parent: int, _number: int) -> None:
    """Ctrl-C is for the process that reads the others' work; they end with it, whatever ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    # torch's own watch waits for what is in the pipe to be taken, which nobody will do any more.
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def opened(
    data: Dataset, means: Means, *, distorts: bool = False, load: bool = True
) -> tuple[Splits, Means]:
    """The splits of `data` to be read by `means`, and by which means that is if it is left open.

    Args:
        data: the data set.
        means: how.
        distorts: training images are to be distorted one by one.
        load: bring all images into memory, where that is the means; or only see whether they fit.

    Raises:
        BadInput: the means are not there, or a file is missing or damaged.
    """
    if isinstance(data, Folders) and means in ("memory", "torch") and data.jpeg:
        raise BadInput(
            f"data.jpeg={data.jpeg:g}: it describes files of normbench.prepare, which loader=ffcv "
            f"reads; data.jpeg=null goes with loader={means}"
        )
    official: tuple[Part, Part] = data.load()
    if means == "auto":
        means = _best(data, official, distorts)
    if means == "ffcv":
        official = _prepared(data, official)
    elif means == "memory" and isinstance(data, Folders):
        _require_room(official, data)
        if load:
            official = _decoded(official[0]), _decoded(official[1])
    return data.splits(official), means


def _best(data: Dataset, official: tuple[Part, Part], distorts: bool) -> Means:
    if not isinstance(data, Folders):
        return "torch" if distorts else "memory"
    if data.jpeg:
        return "ffcv"
    stored = [data.stored(split) for split in ("train", "test")]
    if not find_spec("ffcv") or not all(path.is_file() for path in stored):
        return "torch"
    for path, part in zip(stored, official, strict=True):
        if wrong := fault(path, part):
            print(f"{path} {wrong}, so loader=auto takes loader=torch")
            return "torch"
    return "ffcv"


def _prepared(data: Dataset, official: tuple[Part, Part]) -> tuple[Part, Part]:
    paths = [data.stored(split) for split in ("train", "test")]  # first: it may make no sense
    if not find_spec("ffcv"):
        raise BadInput(NO_FFCV)
    # Here and not above: it takes seconds to import, and may not be there.
    from normbench.data.ffcv_reader import Beton

    jpeg = (data.jpeg or 0.0) if isinstance(data, Folders) else 0.0
    for path, part in zip(paths, official, strict=True):
        if wrong := fault(path, part, jpeg):
            raise BadInput(
                f"loader=ffcv: {path} {wrong}; python -m normbench.prepare with the same data= "
                "options makes it"
            )
    train, test = map(Beton.of, paths)
    return train, test


def _require_room(parts: Sequence[Part], data: Folders) -> None:
    """There is memory for the images of all `parts`."""
    wanted = sum(map(_bytes, parts))
    with Path("/proc/meminfo").open() as file:
        (free,) = (1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    if wanted > 0.8 * free:
        raise BadInput(
            f"loader=memory: the images of {type(data).__name__} need about {wanted / 2**30:.1f} "
            f"GB in every run and {free / 2**30:.1f} GB are free; loader=ffcv or loader=torch "
            "works, or a smaller data.resolution"
        )


def _bytes(part: Part) -> float:
    """About how many the images of `part` have once they are decoded."""
    assert isinstance(part, Files)
    some = range(0, len(part.paths), max(1, len(part.paths) // 20))
    sizes = [width * height * 3 for width, height in (part.picture(i).size for i in some)]
    return sum(sizes) / len(sizes) * len(part.paths)


def _decoded(part: Part) -> Pictures:
    assert isinstance(part, Files)
    return Pictures([np.asarray(part.picture(i)) for i in range(len(part.paths))], part.labels)
