"""Manifests: the description beside a file of `normbench.prepare`, of its images and its size."""

import hashlib
import json
from pathlib import Path

from normbench.data.dataset import Dataset, Split, TensorSplit
from normbench.data.photographs import FileSplit, Photographs

QUALITY = 90  # of images that are compressed anew, as FFCV's default


def check_prepared(data: Dataset, official: tuple[Split, Split]) -> list[tuple[Path, str]]:
    """Return the prepared file of each split with why it cannot be read, "" if it can.

    Raises:
        BadInput: the images are always in memory.
    """
    paths = [data.prepared_file(name) for name in ("train", "test")]
    jpeg = jpeg_share(data)
    return [
        (path, _find_problem(path, split, jpeg))
        for path, split in zip(paths, official, strict=True)
    ]


def jpeg_share(data: Dataset) -> float:
    """Return the share of images that prepared files of `data` hold as JPEG."""
    return (data.jpeg or 0.0) if isinstance(data, Photographs) else 0.0


def fingerprint(split: Split, jpeg: float) -> str:
    """Return a hash of the contents of the file of `split`.

    Photographs are identified by their names: a changed image under an old name goes unnoticed.
    `jpeg` is the share of them that are compressed.
    """
    if isinstance(split, FileSplit):
        options = f"{split.digest} {split.longest} {jpeg} {QUALITY}"
        return hashlib.sha256(options.encode()).hexdigest()
    assert isinstance(split, TensorSplit)
    digest = hashlib.sha256(split.labels.numpy().tobytes())
    digest.update(split.images.numpy().tobytes())
    return digest.hexdigest()


def write_manifest(path: Path, fingerprint: str, size: int) -> None:
    """Write the manifest of the prepared file `path` of `size` bytes."""
    _manifest(path).write_text(json.dumps({"fingerprint": fingerprint, "bytes": size}) + "\n")


def _manifest(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _find_problem(path: Path, split: Split, jpeg: float) -> str:
    """Return why the file `path` cannot be read for the images of `split`; "" if it can."""
    if not path.is_file():
        return "is missing"
    try:
        manifest = json.loads(_manifest(path).read_text())
        written, size = manifest["fingerprint"], manifest["bytes"]
    except (OSError, ValueError, TypeError, KeyError):
        return f"is not whole, or of unknown images: {_manifest(path).name} does not say"
    if path.stat().st_size != size:
        return f"is truncated or damaged: {path.stat().st_size:,} bytes instead of {size:,}"
    if written != fingerprint(split, jpeg):
        return "has other images than data.root has now"
    return ""
