"""What is known of a file that `normbench.prepare` has written, and of which images it is."""

import hashlib
import json
import os
from pathlib import Path

from normbench.data.dataset import Part, Split
from normbench.data.files import Files

QUALITY = 90  # of JPEG where an image has to be compressed anew, FFCV's usual one


def fingerprint(part: Part, jpeg: float) -> str:
    """Of everything that decides about the bytes of a file of `part`, `jpeg` of them compressed."""
    known = hashlib.sha256(part.labels.numpy().tobytes())
    if isinstance(part, Split):
        known.update(part.images.numpy().tobytes())
    else:
        assert isinstance(part, Files)
        common = len(os.path.commonpath(part.paths))  # a folder may move as a whole
        known.update("\n".join(path[common:] for path in part.paths).encode())
        known.update(f"{part.longest} {jpeg} {QUALITY}".encode())
    return known.hexdigest()


def beside(path: Path) -> Path:
    """The file that says of which images the prepared file `path` is."""
    return path.with_name(f"{path.name}.json")


def describe(path: Path, part: Part, jpeg: float) -> None:
    """Say beside the prepared file `path`, which is finished, that it has the images of `part`."""
    said = {"fingerprint": fingerprint(part, jpeg), "bytes": path.stat().st_size}
    beside(path).write_text(json.dumps(said) + "\n")


def fault(path: Path, part: Part, jpeg: float = 0.0) -> str:
    """Why the prepared file `path` cannot be read for the images of `part`; "" if it can."""
    if not path.is_file():
        return "is missing"
    try:
        said = json.loads(beside(path).read_text())
        known, size = said["fingerprint"], said["bytes"]
    except (OSError, ValueError, TypeError, KeyError):
        return f"is not whole, or of unknown images: {beside(path).name} does not say"
    if path.stat().st_size != size:
        return f"is truncated or damaged: {path.stat().st_size:,} bytes instead of {size:,}"
    return "" if known == fingerprint(part, jpeg) else "has other images than data.root has now"
