"""Writing images into files for FFCV (Leclerc et al. 2023) by its DatasetWriter.

A file appears under its name when it is whole. FFCV's writer cannot resume: after an interruption
the file is written from its beginning.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from multiprocessing import SimpleQueue, active_children
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from normbench.data.counter_rng import Draws
from normbench.data.dataset import SPLIT_SEED, Split, TensorSplit
from normbench.data.ffcv_manifest import QUALITY, fingerprint, write_manifest
from normbench.data.ffcv_patches import ffcv, fields, libffcv
from normbench.data.photographs import FileSplit, decode, shrink
from normbench.data.reader_processes import end_with
from normbench.errors import BadInput
from normbench.run_files import open_locked

SMALL_PAGE, LARGE_PAGE = 2**23, 2**26  # bytes, of arrays and of photographs; a page holds an image
JPEG, PIXELS = 0, 1  # modes of an image in FFCV's files


def write_prepared(path: Path, split: Split, jpeg: float, processes: int) -> None:
    """Write the images of `split` to the file `path`, the share `jpeg` of photographs as JPEG.

    They are read and compressed by as many `processes`, at least 1.

    Raises:
        BadInput: an image is damaged or too large, or another process writes this file.
        OSError: a process ended early, as on a full disk.
    """
    unfinished = path.with_name(f"{path.name}.part")
    with _claim(unfinished, path):
        try:
            _write_split(unfinished, split, jpeg, processes)
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())  # before it gets its name
            # In this order a kill leaves no file with the description of another.
            path.unlink(missing_ok=True)
            write_manifest(path, fingerprint(split, jpeg), unfinished.stat().st_size)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _claim(unfinished: Path, path: Path) -> IO[bytes]:
    """Return the file `unfinished`, locked by this process."""
    try:
        return open_locked(unfinished)
    except BlockingIOError:
        raise BadInput(f"{path} is being written by another process; wait for its end") from None


def _write_split(path: Path, split: Split, jpeg: float, processes: int) -> None:
    if isinstance(split, TensorSplit):
        shape = tuple(split.images.shape[1:])
        field, page = fields.NDArrayField(np.dtype("<u1"), shape), SMALL_PAGE
    else:
        field, page = fields.RGBImageField(), LARGE_PAGE
        # On the instance: a subclass would be a custom field, which no other reader knows.
        field.encode = store
    samples = _Samples(split, jpeg, page)
    columns = {"image": field, "label": fields.IntField()}
    writer = ffcv.DatasetWriter(str(path), columns, page_size=page, num_workers=processes)
    with _supervise(writer, samples.failures):
        writer.from_indexed_dataset(samples)


@contextmanager
def _supervise(writer: Any, failures: "SimpleQueue[str]") -> Iterator[None]:
    """Stop FFCV's writer when one of its processes fails; it would wait for that one forever.

    Raises:
        BadInput: the process put a message into `failures`.
        OSError: it put none.
    """

    def check(*_: object) -> None:
        options, last = os.WEXITED | os.WNOHANG | os.WNOWAIT, None
        with suppress(ChildProcessError):
            while (child := os.waitid(os.P_ALL, 0, options)) and child.si_pid != last:
                last = child.si_pid
                if child.si_status:  # 0 is a process that has finished
                    if not failures.empty():
                        raise BadInput(failures.get())
                    raise OSError(f"a process that writes {writer.fname} ended early")
                active_children()  # reaps the child, so that waitid reports the next one

    others = set(active_children())
    before = signal.signal(signal.SIGCHLD, check)  # an exception in it ends the wait of FFCV
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGCHLD, before)
        for process in set(active_children()) - others:
            process.kill()  # it would go on writing
            process.join()
        if isinstance(memory := getattr(writer, "metadata_sm", None), SharedMemory):
            memory.close()
            with suppress(FileNotFoundError):
                memory.unlink()
        raise
    finally:
        signal.signal(signal.SIGCHLD, before)


@dataclass(frozen=True)
class StoredImage:
    """A photograph as the bytes of its file in FFCV's format."""

    content: bytes
    mode: int
    height: int
    width: int


def store(record: NDArray[Any], image: StoredImage, allocate: Any) -> None:
    """Store a photograph: the `encode` of FFCV's RGBImageField without its compression."""
    record["mode"], record["height"], record["width"] = image.mode, image.height, image.width
    record["data_ptr"], place = allocate(len(image.content))
    place[:] = np.frombuffer(image.content, np.uint8)


class _Samples:
    """Images of at most `page` bytes and labels as FFCV's processes take them, by index."""

    def __init__(self, split: Split, jpeg: float, page: int) -> None:
        self.split, self.page = split, page
        draws = Draws(SPLIT_SEED, 0, torch.arange(len(split.labels)))
        self.compressed = draws.uniform("jpeg") < jpeg  # (N,)
        self.failures: SimpleQueue[str] = SimpleQueue()  # read by `_supervise`, in the parent
        self.parent = self.process = os.getpid()

    def __len__(self) -> int:
        return len(self.split.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.process != os.getpid():  # the first image of a process
            self.process = os.getpid()
            end_with(self.parent)
        label = int(self.split.labels[index])
        if isinstance(self.split, TensorSplit):
            return self.split.images[index].numpy(), label
        assert isinstance(self.split, FileSplit)
        path = self.split.paths[index]
        try:
            image = encode(path, self.split.longest, compress=bool(self.compressed[index]))
            if len(image.content) > self.page:
                raise BadInput(
                    f"{path} takes {len(image.content) / 2**20:.0f} MB, and a page "
                    f"{self.page // 2**20}; data.resolution=1000 reduces such images, data.jpeg=1 "
                    "compresses all"
                )
        except BadInput as error:
            self.failures.put(str(error))
            os._exit(1)  # at once: FFCV would wait for the pages of other processes
        return image, label


def encode(path: str, longest: int | None, *, compress: bool) -> StoredImage:
    """Return the image in the file `path`, shrunk to `longest`, as pixels or as JPEG.

    A JPEG file that keeps its size keeps its bytes.

    Raises:
        BadInput: the file is damaged.
    """
    original = decode(path)  # JPEGs, too: a damaged file is named now and not in a training
    image = shrink(original, longest)
    if not compress:
        return StoredImage(image.tobytes(), PIXELS, image.height, image.width)
    content = Path(path).read_bytes()
    unchanged = image is original and _is_rgb_jpeg(path)
    if not (unchanged and _decodes(content, image.height, image.width)):
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=QUALITY)
        content = buffer.getvalue()
    return StoredImage(content, JPEG, image.height, image.width)


def _decodes(content: bytes, height: int, width: int) -> bool:
    """Return True if FFCV decodes a JPEG without a warning; Pillow ignores some damages."""
    out = np.empty((height, width, 3), np.uint8)
    source = np.frombuffer(content, np.uint8)
    sizes = (height, width, height, width)
    return bool(libffcv.imdecode(source, out, *sizes, 0, 0, 1, 1, False, False) == 0)


def _is_rgb_jpeg(path: str) -> bool:
    with Image.open(path) as image:
        return image.format == "JPEG" and image.mode == "RGB"
