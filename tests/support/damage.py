"""Files that cannot be read as what they are named."""

import os
from pathlib import Path

CONTENTS = {
    "binary": b"\x80\x00\xff",
    "deep": b"[" * 10**5,
    "empty": b"",
    "half": b'{"schema": 2, ',
}
DAMAGES = ("folder", "pipe", "loop", *CONTENTS)


def damage_file(path: Path, kind: str) -> None:
    """Put something in the place of a file that cannot be read as one."""
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        path.write_bytes(CONTENTS[kind])
