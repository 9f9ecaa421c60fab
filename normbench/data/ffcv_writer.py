"""Writing images into a file for FFCV: it appears whole, and an interruption costs little.

FFCV's own writer begins anew each time. The format is simple: a header, a table of what is known of
every image, the images, a table of where they are. While images are written, a journal beside the
file has a record for each that is safely there; header and tables come last, and then the file gets
its name.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from normbench.data.counter_rng import Draws
from normbench.data.dataset import SPLIT_SEED, Part, Split
from normbench.data.ffcv_manifest import QUALITY, describe, fault, fingerprint
from normbench.data.ffcv_patches import fields, libffcv, types
from normbench.data.files import Files, decoded, reduced
from normbench.data.reading import Ask, mapped
from normbench.errors import BadInput

SMALL_PAGE, LARGE_PAGE = 2**23, 2**26  # bytes; an image lies within one
BLOCK = 256  # images between two entries into the journal


@dataclass(frozen=True)
class Store:
    """A file to be written.

    Args:
        path: its name.
        part: the images.
        jpeg: share of them that are stored as JPEG.
    """

    path: Path
    part: Part
    jpeg: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether the file is there, with these very images."""
        return not fault(self.path, self.part, self.jpeg)

    def write(self, processes: int, tell: Callable[[int], None]) -> None:
        """Write the file, or what an interruption has left of the work.

        Args:
            processes: that read and compress.
            tell: takes the number of images that are written.

        Raises:
            BadInput: an image cannot be read; the sentence names it, and nothing is lost.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        layout, known = Layout.of(self.part), fingerprint(self.part, self.jpeg)
        unfinished = self._beside("part")
        with _claimed(unfinished, self.path) as file:
            journal = Journal(self._beside("journal"), known, layout.record)
            if journal.end(layout.start) > os.fstat(file.fileno()).st_size:
                journal.begin_anew()  # of a file that is gone, or another
            end = journal.end(layout.start)
            tell(len(journal.records))
            for block in self._encoded(len(journal.records), processes):
                records = np.zeros(len(block), layout.record)
                for record, image in zip(records, block, strict=True):
                    at = layout.place(end, len(image.content), self._name(image.index))
                    file.seek(at)
                    file.write(image.content)
                    layout.fill(record, image, at, int(self.part.labels[image.index]))
                    end = at + len(image.content)
                file.flush()
                os.fsync(file.fileno())  # first the images, then what says that they are there
                journal.add(records)
                tell(len(journal.records))
            layout.finish(file, journal.records, end)
            # Whenever it ends here, what is written is found again: by the journal, or as the file.
            self.path.unlink(missing_ok=True)
            describe(self.path, known, os.fstat(file.fileno()).st_size)
            unfinished.replace(self.path)
            journal.path.unlink()

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{ending}")

    def _name(self, index: int) -> str:
        return self.part.paths[index] if isinstance(self.part, Files) else f"image {index}"

    def _encoded(self, start: int, processes: int) -> Iterator[list["Encoded"]]:
        count = len(self.part.labels)
        asks = (Ask(each, None) for each in torch.arange(start, count).split(BLOCK) if len(each))
        work: Any = self._block  # anything that can be pickled comes back from a process
        yield from mapped(work, asks, processes)  # type: ignore[misc]

    def _block(self, ask: Ask) -> list["Encoded"]:
        if isinstance(self.part, Split):
            chosen = self.part.images[ask.indices].numpy()
            pairs = zip(ask.indices.tolist(), chosen, strict=True)
            return [Encoded(index, image.tobytes()) for index, image in pairs]
        assert isinstance(self.part, Files)
        draws = Draws(SPLIT_SEED, 0, ask.indices).uniform("jpeg").tolist()
        return [
            encoded(index, self.part.paths[index], self.part.longest, compress=draw < self.jpeg)
            for index, draw in zip(ask.indices.tolist(), draws, strict=True)
        ]


@contextmanager
def _claimed(unfinished: Path, path: Path) -> Iterator[Any]:
    """The file `unfinished`, for one process at a time."""
    while True:
        with unfinished.open("r+b" if unfinished.exists() else "w+b") as file:
            try:
                # Not flock, whose lock the processes that read would share and outlive us with.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise BadInput(
                    f"{path} is being written by another process; wait for its end"
                ) from None
            # Another process may have finished and named it between our two calls.
            if unfinished.exists() and unfinished.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield file
                return


@dataclass(frozen=True)
class Encoded:
    """An image as it is stored; mode and size are those of photographs."""

    index: int
    content: bytes
    mode: int = 1
    height: int = 0
    width: int = 0


def encoded(index: int, path: str, longest: int | None, *, compress: bool) -> Encoded:
    """The image in the file `path`; where it keeps its size and is a JPEG, its own bytes."""
    whole = decoded(path)  # a damaged file is found here and not in a training
    image = reduced(whole, longest)
    size = {"height": image.height, "width": image.width}
    if not compress:
        return Encoded(index, image.tobytes(), **size)
    own = Path(path).read_bytes()
    if image is whole and _is_plain_jpeg(path) and _decodes(own, image.height, image.width):
        return Encoded(index, own, mode=0, **size)
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return Encoded(index, buffer.getvalue(), mode=0, **size)


def _decodes(content: bytes, height: int, width: int) -> bool:
    """Whether FFCV's decoder takes it without a warning, which Pillow's may pass over."""
    out = np.empty((height, width, 3), np.uint8)
    source = np.frombuffer(content, np.uint8)
    sizes = (height, width, height, width)
    return bool(libffcv.imdecode(source, out, *sizes, 0, 0, 1, 1, False, False) == 0)


def _is_plain_jpeg(path: str) -> bool:
    with Image.open(path) as image:
        return image.format == "JPEG" and image.mode == "RGB"


class Journal:
    """Records of images that are safely in a file.

    Args:
        path: of the journal.
        fingerprint: of the file; a journal with another one begins anew.
        record: type of a record.
    """

    def __init__(self, path: Path, fingerprint: str, record: np.dtype[Any]) -> None:
        self.path = path
        self.head, self.record = f"{fingerprint}\n".encode(), record
        known = path.read_bytes() if path.exists() else b""
        if not known.startswith(self.head):
            self.begin_anew()
            return
        rest = known[len(self.head) :]
        whole = len(rest) // record.itemsize * record.itemsize  # the last may be cut off
        os.truncate(path, len(self.head) + whole)
        self.records: NDArray[Any] = np.frombuffer(rest[:whole], record)

    def begin_anew(self) -> None:
        """Without a record."""
        self.path.write_bytes(self.head)
        self.records = np.empty(0, self.record)

    def end(self, start: int) -> int:
        """Where the next image may be written; `start` before the first."""
        if not len(self.records):
            return start
        return int((self.records["ptr"] + self.records["size"]).max())

    def add(self, records: NDArray[Any]) -> None:
        """Say that these images are there, too."""
        with self.path.open("ab") as file:
            file.write(records.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.records = np.concatenate([self.records, records])


@dataclass(frozen=True)
class Layout:
    """Where everything is in a file of FFCV's: its format, version 2.

    Args:
        kinds: FFCV's fields of image and label.
        count: images.
        page: bytes.
    """

    kinds: Sequence[Any]
    count: int
    page: int

    @classmethod
    def of(cls, part: Part) -> "Layout":
        """For the images of `part`."""
        if isinstance(part, Split):
            shape = tuple(part.images.shape[1:])
            image, page = fields.NDArrayField(np.dtype("<u1"), shape), SMALL_PAGE
        else:
            image, page = fields.RGBImageField(), LARGE_PAGE
        return cls((image, fields.IntField()), len(part.labels), page)

    @property
    def metadata(self) -> np.dtype[Any]:
        found: np.dtype[Any] = types.get_metadata_type(list(self.kinds))
        return found

    @property
    def record(self) -> np.dtype[Any]:
        return np.dtype([("known", self.metadata), ("ptr", "<u8"), ("size", "<u8")])

    @property
    def start(self) -> int:
        """Of the first page that has images."""
        head = types.HeaderType.itemsize + len(self.kinds) * types.FieldDescType.itemsize
        tables = int(head + self.count * self.metadata.itemsize)
        return -(-tables // self.page) * self.page

    def place(self, end: int, size: int, name: str) -> int:
        """Where an image of `size` bytes goes, behind `end`, within a page."""
        if size > self.page:
            raise BadInput(
                f"{name} takes {size / 2**20:.0f} MB, and a page {self.page // 2**20}; "
                "data.resolution=1000 reduces such images, data.jpeg=1 compresses all"
            )
        left = -end % self.page
        return end if size <= left else end + left

    def fill(self, record: Any, image: Encoded, at: int, label: int) -> None:
        """Enter an image that is stored at `at`."""
        record["ptr"], record["size"] = at, len(image.content)
        known = record["known"]
        known["f1"] = label
        if isinstance(self.kinds[0], fields.NDArrayField):
            known["f0"] = at
            return
        own = known["f0"]
        own["mode"], own["height"], own["width"] = image.mode, image.height, image.width
        own["data_ptr"] = at

    def finish(self, file: Any, records: NDArray[Any], end: int) -> None:
        """Write the tables, and at last the header that makes `file` one of FFCV's."""
        places = np.zeros(len(records), types.ALLOC_TABLE_TYPE)
        places["sample_id"] = np.arange(len(records))
        places["ptr"], places["size"] = records["ptr"], records["size"]
        table = -(-end // self.page) * self.page
        file.truncate(table)  # what a killed process wrote beyond the journal is no table
        file.seek(table)
        file.write(places.tobytes())
        header = np.zeros((), types.HeaderType)
        header["version"], header["num_fields"] = types.CURRENT_VERSION, len(self.kinds)
        header["page_size"], header["num_samples"] = self.page, len(records)
        header["alloc_table_ptr"] = table
        numbers = {kind: number for number, kind in types.TYPE_ID_HANDLER.items()}
        described = np.zeros(len(self.kinds), types.FieldDescType)
        for own, name, field in zip(described, ("image", "label"), self.kinds, strict=True):
            own["type_id"] = numbers[type(field)]
            own["name"][: len(name)] = np.frombuffer(name.encode(), np.uint8)
            own["arguments"] = field.to_binary()[0]
        known = np.zeros(len(records), self.metadata)  # what lies between its fields is 0, too
        for name in ("f0", "f1"):
            known[name] = records["known"][name]
        file.seek(0)
        file.write(header.tobytes() + described.tobytes() + known.tobytes())
        file.flush()
        os.fsync(file.fileno())
