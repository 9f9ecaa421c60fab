"""What many small files say, in one: an index of SQLite that is rebuilt where they have changed.

The files stay the truth. Whoever deletes the index, or cannot write one, waits a little longer. It
has a view `rows` for questions in SQL, a line for each file.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = str | int | float | None
PATIENCE = 5.0  # seconds that another process may hold the index


@dataclass(frozen=True)
class Layout:
    """What an index keeps of a file.

    Args:
        own: names of the values that are a file's own.
        shared: names of those that many files have in common; together they are a text of JSON,
            kept once.
    """

    own: Sequence[str]
    shared: Sequence[str]

    @property
    def version(self) -> int:
        """A positive number of 31 bits that differs from those of other layouts."""
        words = "\n".join([*self.own, "", *self.shared])
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big") >> 1

    @property
    def columns(self) -> str:
        return ", ".join(f'"{name}"' for name in self.own)

    @property
    def tables(self) -> str:
        """SQL that makes them, empty."""
        common = ", ".join(f"json_extract(text, '$.{name}') \"{name}\"" for name in self.shared)
        return f"""
            begin immediate;
            drop view if exists rows;
            drop table if exists files;
            drop table if exists texts;
            create table texts (share integer primary key, text unique);
            create table files (path primary key, stamp, share, {self.columns}) without rowid;
            create view rows as
                select path, {self.columns}, {common} from files join texts using (share);
            pragma user_version = {self.version};
            commit;
        """


Read = Callable[[str], tuple[str, Sequence[Value]]]  # of a file: what it shares, and its own
Found = tuple[dict[int, str], list[Sequence[Any]]]


def indexed(file: Path, layout: Layout, stamps: Mapping[str, str], read: Read) -> Found:
    """What files say, those read anew whose stamp has changed.

    Args:
        file: of the index.
        layout: of what is kept.
        stamps: of each file its path and something that changes with its content.
        read: reads the file with this path. What it raises is raised, and the index stays as it
            was.

    Returns:
        The shared texts by number, and of each file, in the order of `stamps`, the number of its
        text and then its own values.
    """
    try:
        return _found(file, layout, stamps, read)
    except sqlite3.Error:
        # Read-only or full, held by somebody, on a file system without locks, or no index at all.
        return _found(None, layout, stamps, read)


def _found(file: Path | None, layout: Layout, stamps: Mapping[str, str], read: Read) -> Found:
    with closing(_opened(file, layout)) as index:
        lines = _lines(index, layout)
        gone = lines.keys() - stamps.keys()
        changed = [
            path for path, stamp in stamps.items() if path not in lines or lines[path][0] != stamp
        ]
        if gone or changed:
            with index:  # one transaction: all or nothing of what is new
                index.executemany("delete from files where path = ?", [(path,) for path in gone])
                _add(index, {path: stamps[path] for path in changed}, layout, read)
            lines = _lines(index, layout)
        texts = dict(index.execute("select share, text from texts"))
    return texts, [lines[path][1:] for path in stamps]


def _lines(index: sqlite3.Connection, layout: Layout) -> dict[str, tuple[Any, ...]]:
    """Of each file its stamp, the number of its text, and its own values."""
    found = index.execute(f"select path, stamp, share, {layout.columns} from files")
    return {line[0]: line[1:] for line in found}


def _add(index: sqlite3.Connection, stamps: Mapping[str, str], layout: Layout, read: Read) -> None:
    """Read the files of `stamps`, and keep what they say."""
    shares = dict(index.execute("select text, share from texts"))
    lines = []
    for path, stamp in stamps.items():
        text, own = read(path)
        if text not in shares:
            shares[text] = index.execute("insert into texts (text) values (?)", [text]).lastrowid
        lines.append((path, stamp, shares[text], *own))
    holes = ", ".join("?" * (len(layout.own) + 3))
    index.executemany(f"insert or replace into files values ({holes})", lines)


def _opened(file: Path | None, layout: Layout) -> sqlite3.Connection:
    """The index, empty if it had another layout or was none; None: one in memory."""
    index = sqlite3.connect(file or ":memory:", timeout=PATIENCE)
    try:
        (before,) = index.execute("pragma user_version").fetchone()
        index.execute("pragma synchronous = off")  # after a power cut it is made again
        if before != layout.version:
            index.executescript(layout.tables)
    except sqlite3.DatabaseError as error:
        index.close()
        if file is None or error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        file.unlink()
        return _opened(file, layout)
    return index
