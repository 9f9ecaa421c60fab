"""Reading files of `normbench.prepare` by FFCV (Leclerc et al. 2023).

FFCV's threads read, decode and crop the images in an order and by boxes that it is given. By itself
it would draw random boxes per thread, leave out the last images of an evaluation, and repeat images
so that several devices have equally many.
Shape letters: N images, C channels, H W positions, S side.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normbench.data.counter_rng import Draws
from normbench.data.crop_numba import crop_and_resize_into
from normbench.data.dataset import Dataset
from normbench.data.ffcv_patches import (
    decoders,
    epochs,
    ffcv,
    fields,
    libffcv,
    managers,
    operations,
    pipeline,
    reader,
)
from normbench.data.photographs import Photographs
from normbench.errors import BadInput

Compiler = pipeline.Compiler

BATCH = 2**20  # pixel values, about, that FFCV's threads read at a time
JPEG = 0  # mode of a compressed image in FFCV's files


class CroppingDecoder(decoders.SimpleRGBImageDecoder):  # type: ignore[misc]
    """Decodes images, and crops and resizes each by the box in its metadata."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, Any]:
        shape = (3, self.side, self.side)
        state = replace(previous_state, jit_mode=True, shape=shape, dtype=np.dtype("u1"))
        return state, operations.AllocationQuery(shape, np.dtype("u1"))

    def generate_code(self) -> Callable[..., Any]:
        read, iterate = self.memory_read, Compiler.get_iterator()
        decode_jpeg = Compiler.compile(libffcv.imdecode)

        def decode(
            indices: NDArray[Any], out: NDArray[Any], metadata: NDArray[Any], storage: Any
        ) -> NDArray[Any]:
            for place in iterate(len(indices)):
                image = metadata[indices[place]]
                content = read(image["data_ptr"], storage)
                height, width = np.int64(image["height"]), np.int64(image["width"])
                if image["mode"] == JPEG:
                    # For this image: FFCV would allocate the size of the largest, many times.
                    pixels = np.empty((height, width, 3), np.uint8)
                    failed = decode_jpeg(
                        content, pixels, height, width, height, width, 0, 0, 1, 1, False, False
                    )
                    metadata["failed"][indices[place]] = failed != 0
                else:
                    pixels = content.reshape(height, width, 3)
                crop_and_resize_into(
                    pixels, image["top"], image["left"], image["tall"], image["wide"], out[place]
                )
            return out[: len(indices)]

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class _Pass(epochs.EpochIterator):  # type: ignore[misc]
    """FFCV's thread that reads images in an order, and keeps the error that ended it."""

    failure: BaseException | None = None

    def end(self) -> None:
        """Stop reading, whatever is left."""
        self.terminate_event.set()
        while self.is_alive():  # it may be waiting for room in its queue
            with suppress(Empty):
                self.output_queue.get(timeout=0.05)

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # FFCV would leave its reader waiting forever
            self.failure = error
            self.output_queue.put(None)


#: FFCV's loaders by what they are compiled for; compiling takes seconds.
_compiled: dict[tuple[Any, ...], Any] = {}


class _File:
    """FFCV's reader of a file, and the table of its images, which takes seconds to build."""

    def __init__(self, path: Path) -> None:
        self.reader = reader.Reader(str(path))

    @cached_property
    def manager(self) -> Any:
        return managers.OSCacheManager(self.reader)


@dataclass(frozen=True)
class PreparedSplit:
    """Images of a file of `normbench.prepare` and their labels (N,) int64."""

    path: Path
    file: _File
    indices: Tensor  # (N,) in the file
    labels: Tensor

    @classmethod
    def open(cls, path: Path) -> "PreparedSplit":
        """Return all images of the file `path`.

        Raises:
            BadInput: it is damaged, or not a file of FFCV.
        """
        try:
            file = _File(path)
            labels = torch.from_numpy(file.reader.metadata["f1"].astype(np.int64))
            table = file.reader.alloc_table
            ends = int((table["ptr"] + table["size"]).max())  # of the last image, in bytes
            if len(labels) != file.reader.num_samples or ends > path.stat().st_size:
                raise ValueError("images are missing")
        except Exception as error:  # FFCV raises whatever a damaged file leads it to
            raise BadInput(
                f"loader=ffcv: {path} is truncated or damaged, FFCV cannot read it "
                f"({type(error).__name__}: {error}); remove it, and python -m normbench.prepare "
                "with the same data= options makes it again"
            ) from None
        return cls(path, file, torch.arange(len(labels)), labels)

    def take(self, indices: Tensor) -> "PreparedSplit":
        return replace(self, indices=self.indices[indices], labels=self.labels[indices])

    def stream(
        self, data: Dataset, indices: Tensor, draws: Draws | None, threads: int
    ) -> Iterator[Tensor]:
        """Yield images as `StreamingSplit.stream` describes it.

        Raises:
            BadInput: an image is damaged; the message names it.
        """
        _, side, _ = data.image_shape if draws is None else data.train_shape
        loader = self._loader(data, side, threads)
        order = self.indices[indices]  # (N,) in the file
        metadata = loader.reader.metadata
        if isinstance(data, Photographs):
            loader.reader.metadata = metadata = _add_boxes(metadata, data, order, draws)
        batches, start = _Pass(loader, order.numpy().astype(np.uint64)), 0
        try:
            for (batch,) in batches:
                self._require_decoded(metadata, order[start : start + len(batch)].numpy())
                start += len(batch)
                yield torch.from_numpy(batch.copy())  # FFCV writes the next images there
            if batches.failure is not None:
                raise RuntimeError(f"reading {self.path} failed") from batches.failure
        finally:
            batches.end()

    def _loader(self, data: Dataset, side: int, threads: int) -> Any:
        """Return FFCV's loader for this file, compiled once for all files of such images."""
        key = (isinstance(data, Photographs), data.image_shape, side, threads)
        if key not in _compiled:
            decoder = CroppingDecoder(side) if key[0] else decoders.NDArrayDecoder()
            _compiled[key] = ffcv.Loader(
                str(self.path),
                batch_size=min(512, max(32, BATCH // math.prod(data.image_shape))),
                num_workers=threads,
                os_cache=True,
                pipelines={"image": [decoder], "label": None},
                drop_last=False,  # an evaluation takes every image
            )
        loader = _compiled[key]
        loader.memory_manager = self.file.manager
        loader.reader = copy(self.file.reader)  # a pass changes its metadata
        return loader

    def _require_decoded(self, metadata: NDArray[Any], indices: NDArray[np.int64]) -> None:
        images = metadata["f0"]
        if "failed" not in (images.dtype.names or ()):
            return
        for damaged in indices[images["failed"][indices] != 0]:
            raise BadInput(
                f"image {damaged} of {self.path} is damaged; remove the file, and python -m "
                "normbench.prepare with the same data= options makes it again"
            )


def _add_boxes(
    metadata: NDArray[Any], data: Photographs, indices: Tensor, draws: Draws | None
) -> NDArray[Any]:
    """Return FFCV's `metadata` of a file with the boxes of the images `indices`."""
    images, places = metadata["f0"], indices.numpy()
    columns = fields.RGBImageField().metadata_type.descr
    box = [(name, "<i8") for name in ("top", "left", "tall", "wide")]
    dtype = [("f0", [*columns, *box, ("failed", "u1")]), ("f1", "<i8")]
    extended = np.zeros(len(metadata), dtype=dtype)  # FFCV hands an image's metadata to the decoder
    for name, _ in columns:
        extended["f0"][name] = images[name]
    sizes = np.stack([images["height"][places], images["width"][places]], axis=1).astype(np.int64)
    values = data.boxes(torch.from_numpy(sizes), draws).T.numpy()
    for (name, _), column in zip(box, values, strict=True):
        extended["f0"][name][places] = column
    return extended
