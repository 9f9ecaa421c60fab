"""What is known of a file that `normbench.prepare` has written, and of which images it is."""

import hashlib
import json
from pathlib import Path

from normbench.data.dataset import Part, Split
from normbench.data.files import Files

QUALITY = 90  # of JPEG where an image has to be compressed anew, FFCV's usual one


def fingerprint(part: Part, jpeg: float) -> str:
    """Of what the file of `part` holds, `jpeg` of its images compressed.

    Photographs are known by their names: who changes one under its name removes the file.
    """
    if isinstance(part, Files):
        how = f"{part.digest} {part.longest} {jpeg} {QUALITY}"
        return hashlib.sha256(how.encode()).hexdigest()
    assert isinstance(part, Split)
    known = hashlib.sha256(part.labels.numpy().tobytes())
    known.update(part.images.numpy().tobytes())
    return known.hexdigest()


def beside(path: Path) -> Path:
    """The file that says of which images the prepared file `path` is."""
    return path.with_name(f"{path.name}.json")


def describe(path: Path, known: str, size: int) -> None:
    """Say beside the prepared file `path` what its fingerprint and its size in bytes are."""
    beside(path).write_text(json.dumps({"fingerprint": known, "bytes": size}) + "\n")


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
