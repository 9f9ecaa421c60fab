"""Read a CSV file whose every line has a value for every column. Standard library only."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from normbench.errors import DamagedFile
from normbench.run_files import read_file


def read_csv(path: Path, *, complete: bool = True) -> Iterator[list[str]]:
    """Yield the header of a CSV file, then its lines, each with a value for every column.

    Args:
        path: of the file.
        complete: False for a file that is being written: its last line may have no newline yet,
            and is left out then.

    Raises:
        FileNotFoundError: there is none.
        DamagedFile: the file is no such table; the message names the line.
    """
    content = read_file(path)
    if complete and not content.endswith(b"\n"):
        raise DamagedFile(f"{path} is empty or truncated: its last line has no newline")
    end = content.rfind(b"\n") + 1
    try:
        lines = csv.reader(io.StringIO(content[:end].decode(), newline=""), strict=True)
        columns = next(lines, [])
        if len({*columns}) < max(1, len(columns)):
            raise DamagedFile(f"{path} has no header, or two columns of one name")
        yield columns
        for line in lines:
            if line and len(line) != len(columns):  # the reader yields [] of an empty line
                has = f"line {lines.line_num} has {len(line)} values"
                raise DamagedFile(f"{path} {has} for {len(columns)} columns")
            if line:
                yield line
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedFile(f"{path} is no CSV file: {error}") from None
