"""Images that `normbench.prepare` has written, read by FFCV (Leclerc et al. 2023).

FFCV's threads read, decode and frame the images in the order that they are asked for. Of its own
choices none is left: it would draw a random box per thread, leave the last images of an evaluation
out, fill up the shares of several devices with images that come twice and count epochs by itself.
Shape letters: N images, C channels, H W positions, S side.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace as changed
from functools import cached_property
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normbench.data.counter_rng import Draws
from normbench.data.crop_numba import frame
from normbench.data.dataset import Dataset
from normbench.data.ffcv_patches import (
    decoders,
    epochs,
    ffcv,
    fields,
    libffcv,
    managers,
    pipeline,
    queries,
    reader,
)
from normbench.data.files import Folders
from normbench.errors import BadInput

Compiler = pipeline.Compiler

BATCH = 2**20  # values of images, about, that FFCV's threads share at a time
JPEG = 0  # in FFCV's files: an image is compressed


class Framed(decoders.SimpleRGBImageDecoder):  # type: ignore[misc]
    """Decodes images and frames each by the box that stands in its metadata.

    Args:
        side: S.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, Any]:
        shape = (3, self.side, self.side)
        state = changed(previous_state, jit_mode=True, shape=shape, dtype=np.dtype("u1"))
        return state, queries.AllocationQuery(shape, np.dtype("u1"))

    def generate_code(self) -> Callable[..., Any]:
        read, each = self.memory_read, Compiler.get_iterator()
        decode_jpeg = Compiler.compile(libffcv.imdecode)

        def decode(
            indices: NDArray[Any], out: NDArray[Any], metadata: NDArray[Any], storage: Any
        ) -> NDArray[Any]:
            for place in each(len(indices)):
                image = metadata[indices[place]]
                content = read(image["data_ptr"], storage)
                height, width = np.int64(image["height"]), np.int64(image["width"])
                if image["mode"] == JPEG:
                    # Of this image alone: FFCV would hold room for the largest of all, many times.
                    pixels = np.empty((height, width, 3), np.uint8)
                    failed = decode_jpeg(
                        content, pixels, height, width, height, width, 0, 0, 1, 1, False, False
                    )
                    metadata["failed"][indices[place]] = failed != 0
                else:
                    pixels = content.reshape(height, width, 3)
                frame(pixels, image["top"], image["left"], image["tall"], image["wide"], out[place])
            return out[: len(indices)]

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class _Pass(epochs.EpochIterator):  # type: ignore[misc]
    """FFCV's thread through the images of one order; what ends it early is kept."""

    failure: BaseException | None = None

    def end(self) -> None:
        """Stop reading, whatever is left. It may be waiting for somebody to take what it has."""
        self.terminate_event.set()
        while self.is_alive():
            with suppress(Empty):
                self.output_queue.get(timeout=0.05)

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # FFCV would leave the reader waiting for ever
            self.failure = error
            self.output_queue.put(None)


class _Loader(ffcv.Loader):  # type: ignore[misc]
    """FFCV's loader, told the images of every pass in their order."""

    order: NDArray[np.uint64] = np.empty(0, np.uint64)

    def next_traversal_order(self) -> NDArray[np.uint64]:
        return self.order

    def __iter__(self) -> _Pass:
        return _Pass(self, self.order)


_compiled: dict[tuple[Any, ...], _Loader] = {}


class _File:
    """FFCV's reader of a file, and what finds an image in it, which takes seconds to make."""

    def __init__(self, path: Path) -> None:
        self.reader = reader.Reader(str(path))

    @cached_property
    def manager(self) -> Any:
        return managers.OSCacheManager(self.reader)


class Beton:
    """Images of a file of `normbench.prepare` and their labels (N,) int64.

    Args:
        path: the file.
        file: what FFCV knows of it.
        indices: (N,) of its images.
        labels: (N,).
    """

    def __init__(self, path: Path, file: _File, indices: Tensor, labels: Tensor) -> None:
        self.path, self.file, self.indices, self.labels = path, file, indices, labels

    @classmethod
    def of(cls, path: Path) -> "Beton":
        """All images of the file `path`.

        Raises:
            BadInput: it is damaged, or none of FFCV's.
        """
        try:
            file = _File(path)
            labels = torch.from_numpy(file.reader.metadata["f1"].astype(np.int64))
            table = file.reader.alloc_table
            ends = int((table["ptr"] + table["size"]).max())
            if len(labels) != file.reader.num_samples or ends > path.stat().st_size:
                raise ValueError("images are missing")
        except Exception as error:  # FFCV raises whatever a damaged file leads it to
            raise BadInput(
                f"loader=ffcv: {path} is truncated or damaged, FFCV cannot read it "
                f"({type(error).__name__}: {error}); remove it, and python -m normbench.prepare "
                "with the same data= options makes it again"
            ) from None
        return cls(path, file, torch.arange(len(labels)), labels)

    def take(self, indices: Tensor) -> "Beton":
        return Beton(self.path, self.file, self.indices[indices], self.labels[indices])

    def stream(
        self, data: Dataset, indices: Tensor, draws: Draws | None, threads: int
    ) -> Iterator[Tensor]:
        """The images of `indices`, framed, (N, C, H, W) uint8 in portions.

        Args:
            data: the data set.
            indices: (N,) of this part.
            draws: of these images; None: an evaluation.
            threads: that read.

        Raises:
            BadInput: an image is damaged; the sentence names it.
        """
        _, side, _ = data.image if draws is None else data.trained_image
        loader = self._loader(data, side, threads)
        own = self.indices[indices]
        loader.order = own.numpy().astype(np.uint64)
        metadata = loader.reader.metadata
        if isinstance(data, Folders):
            loader.reader.metadata = metadata = _boxed(metadata, data, own, draws)
        through, start = iter(loader), 0
        try:
            for (batch,) in through:
                self._require_whole(metadata, own[start : start + len(batch)].numpy())
                start += len(batch)
                yield torch.from_numpy(batch.copy())  # FFCV writes there again
            if through.failure is not None:
                raise RuntimeError(f"reading {self.path} failed") from through.failure
        finally:
            through.end()

    def _loader(self, data: Dataset, side: int, threads: int) -> _Loader:
        """FFCV's loader, compiled once for all files of such images, and turned to this one."""
        key = (isinstance(data, Folders), data.image, side, threads)
        if key not in _compiled:
            _compiled[key] = _Loader(
                str(self.path),
                batch_size=min(512, max(32, BATCH // math.prod(data.image))),
                num_workers=threads,
                os_cache=True,
                pipelines={
                    "image": [Framed(side) if key[0] else decoders.NDArrayDecoder()],
                    "label": None,
                },
                drop_last=False,
            )
        loader = _compiled[key]
        loader.memory_manager = self.file.manager
        loader.reader = copy(self.file.reader)  # a pass changes what it knows of the images
        return loader

    def _require_whole(self, metadata: NDArray[Any], seen: NDArray[np.int64]) -> None:
        images = metadata["f0"]
        if "failed" in (images.dtype.names or ()) and images["failed"][seen].any():
            damaged = int(seen[images["failed"][seen].nonzero()[0][0]])
            raise BadInput(
                f"image {damaged} of {self.path} is damaged; remove the file, and python -m "
                "normbench.prepare with the same data= options makes it again"
            )


def _boxed(
    metadata: NDArray[Any], data: Folders, images: Tensor, draws: Draws | None
) -> NDArray[Any]:
    """FFCV's `metadata` with the boxes of the `images` of the file."""
    old = metadata["f0"]
    known = fields.RGBImageField().metadata_type.descr
    more = [(name, "<i8") for name in ("top", "left", "tall", "wide")] + [("failed", "u1")]
    found = np.zeros(len(metadata), dtype=[("f0", [*known, *more]), ("f1", "<i8")])
    for name, _ in known:
        found["f0"][name] = old[name]
    chosen = old[images.numpy()]
    sizes = torch.from_numpy(np.stack([chosen["height"], chosen["width"]], axis=1).astype(np.int64))
    for name, values in zip(
        ("top", "left", "tall", "wide"), data.boxes(sizes, draws).T, strict=True
    ):
        found["f0"][name][images.numpy()] = values.numpy()
    return found
