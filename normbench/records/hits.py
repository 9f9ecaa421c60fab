"""Test images that a run classified correctly: test_hits.bin, one bit each. Standard library only.

Image 0 is the highest bit of the first byte, as in `numpy.packbits`; the last byte ends with zeros.
The order is that of the test set, whatever has read the images. The row has their number,
`test_images`. Code that compares runs takes the bits as a number, in which the last image is the
lowest bit: two runs are both right on the images `a & b`, and `.bit_count()` counts images.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

from normbench.run_files import read_file, write_file

TEST_HITS = "test_hits.bin"


def write_hits(folder: Path, hits: Iterable[bool]) -> None:
    """Write the file of the run in `folder`, of test images in their order."""
    digits = "".join("1" if hit else "0" for hit in hits)
    write_file(folder / TEST_HITS, _pack(int(digits or "0", 2), len(digits)))


def read_packed_hits(folder: Path) -> bytes | None:
    """Return the content of the file of the run in `folder`; None without one.

    Raises:
        DamagedFile: it cannot be read.
    """
    try:
        return read_file(folder / TEST_HITS)
    except FileNotFoundError:
        return None


def unpack_hits(content: bytes, images: int, top1: float | None) -> int:
    """Return the bits of the file of a run with so many test images and this accuracy in percent.

    Raises:
        ValueError: it is not the file of such a run; the message ends a sentence about it.
    """
    padding = _padding(images)
    bits = int.from_bytes(content, "big")
    if 8 * len(content) != images + padding or bits & ((1 << padding) - 1):
        raise ValueError(f"are not one bit for each of {images} images")
    hits = bits >> padding
    if top1 is None or hits.bit_count() != round(top1 / 100 * images):
        raise ValueError("do not match the accuracy of its row")
    return hits


def encode_hits(hits: int, images: int) -> str:
    """Return hits as a text for a line of a study."""
    return b64encode(_pack(hits, images)).decode()


def decode_hits(text: str | None) -> bytes | None:
    """Return the content of the file from a line of a study, in which it may be missing.

    Raises:
        ValueError: the text is none of `encode_hits`.
    """
    return None if text is None else b64decode(text, validate=True)


def _pack(hits: int, images: int) -> bytes:
    padding = _padding(images)
    return (hits << padding).to_bytes((images + padding) // 8, "big")


def _padding(images: int) -> int:
    """Return the number of bits behind the last image in the last byte."""
    return -images % 8
