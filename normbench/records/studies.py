"""The file of a study, rows.jsonl.gz: for each run a JSON object of row, history and test hits."""

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from normbench.errors import BadInput, DamagedFile
from normbench.run_files import LARGEST, write_file

STUDY = "rows.jsonl.gz"


def study_file(root: Path | str) -> Path | None:
    """Return the file of a study if `root` is one or is its folder, else None."""
    path = Path(root)
    if path.name.endswith(".jsonl.gz"):
        if not os.path.isfile(path):  # noqa: PTH113 (Path.is_file raises for too long a link)
            raise BadInput(f"{path} does not exist")
        return path
    return path / STUDY if os.path.isfile(path / STUDY) else None  # noqa: PTH113


def write_study_lines(path: Path, lines: Sequence[str]) -> None:
    """Write the lines of a study as one compressed file."""
    # mtime=0: the same rows give the same bytes.
    write_file(path, gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def read_study_lines(path: Path) -> list[bytes]:
    """Read the lines of a study.

    Raises:
        DamagedFile: the file cannot be read, or is larger than any study.
    """
    try:
        with gzip.open(path) as file:
            content = file.read(LARGEST + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise DamagedFile(f"{path} is damaged ({error}); restore the file") from None
    if len(content) > LARGEST:
        raise DamagedFile(f"{path} has more than {LARGEST / 1e9:.0f} GB; no study is so large")
    return content.splitlines()
