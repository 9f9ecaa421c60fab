"""What many small files say, in one: an index of SQLite that is rebuilt where they have changed.

The files stay the truth. Whoever deletes the index, or cannot write one, waits a little longer. It
has a view `rows` for questions in SQL, a line for each file.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
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
        format: a word that changes when the same names come to mean something else.
    """

    own: Sequence[str]
    shared: Sequence[str]
    format: str = ""

    @property
    def version(self) -> int:
        """A positive number of 31 bits that differs from those of other layouts."""
        words = "\n".join([self.format, *self.own, "", *self.shared])
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big") >> 1

    @property
    def columns(self) -> str:
        return ", ".join(f"[{name}]" for name in self.own)

    @property
    def statements(self) -> list[str]:
        """SQL that makes the index, empty."""
        common = ", ".join(f"json_extract(text, '$.{name}') [{name}]" for name in self.shared)
        return [
            "drop view if exists rows",
            "drop table if exists files",
            "drop table if exists texts",
            "create table texts (share integer primary key, text unique)",
            f"create table files ({self.columns}, share, stamp, path primary key) without rowid",
            f"create view rows as select path, {self.columns}, {common} "
            "from files join texts using (share)",
            f"pragma user_version = {self.version}",
        ]


Read = Callable[[str], tuple[str, Sequence[Value]]]  # of a file: what it shares, and its own
Found = tuple[dict[int, str], list[Sequence[Any]]]
Lines = dict[str, tuple[Any, ...]]  # of a file its own, the number of its text, its stamp and path
SHARE, STAMP, PATH = -3, -2, -1  # where in a line


def indexed(file: Path, layout: Layout, stamps: Mapping[str, int], read: Read) -> Found:
    """What files say, those read anew whose stamp has changed.

    Args:
        file: of the index.
        layout: of what is kept.
        stamps: of each file its path and a number that changes with its content.
        read: reads the file with this path. What it raises is raised, and the index stays as it
            was.

    Returns:
        The shared texts by number, and of each file, in the order of `stamps`, its own values,
        followed by the number of its text, its stamp and its path.
    """
    try:
        return _found(file, layout, stamps, read)
    except sqlite3.OperationalError:
        pass  # read-only or full, held by somebody, or on a file system without locks
    except sqlite3.DatabaseError:  # damaged, or no index at all
        with suppress(OSError, sqlite3.Error):
            file.unlink(missing_ok=True)
            return _found(file, layout, stamps, read)
    return _found(None, layout, stamps, read)


def _found(file: Path | None, layout: Layout, stamps: Mapping[str, int], read: Read) -> Found:
    # Transactions are said, and not left to Python: what is read together belongs together.
    index = sqlite3.connect(file or ":memory:", timeout=PATIENCE, isolation_level=None)
    with closing(index):
        index.execute("pragma synchronous = off")  # after a power cut it is made again
        index.execute("begin")
        lines = _lines(index, layout)
        if {path: line[STAMP] for path, line in lines.items()} != stamps:
            index.execute("rollback")
            index.execute("begin immediate")
            lines = _lines(index, layout)  # another process may have been faster
            _renew(index, lines, layout, stamps, read)
            lines = _lines(index, layout)
        texts = dict(index.execute("select share, text from texts")) if lines else {}
        index.execute("commit")
    if not texts.keys() >= {line[SHARE] for line in lines.values()}:
        raise sqlite3.DatabaseError("files without their texts")
    return texts, [lines[path] for path in stamps]


def _lines(index: sqlite3.Connection, layout: Layout) -> Lines:
    """All files that the index knows; none if it has another layout."""
    (version,) = index.execute("pragma user_version").fetchone()
    if version != layout.version:
        return {}
    found = index.execute(f"select {layout.columns}, share, stamp, path from files")
    return {line[PATH]: line for line in found}


def _renew(
    index: sqlite3.Connection, lines: Lines, layout: Layout, stamps: Mapping[str, int], read: Read
) -> None:
    """Read what has changed, and forget what is gone."""
    if not lines:
        for statement in layout.statements:
            index.execute(statement)
    gone = [(path,) for path in lines.keys() - stamps.keys()]
    index.executemany("delete from files where path = ?", gone)
    changed = [path for path in stamps if path not in lines or lines[path][STAMP] != stamps[path]]
    shares = dict(index.execute("select text, share from texts"))
    new = []
    for path in changed:
        text, own = read(path)
        if text not in shares:
            shares[text] = index.execute("insert into texts (text) values (?)", [text]).lastrowid
        new.append((*own, shares[text], stamps[path], path))
    holes = ", ".join("?" * (len(layout.own) + 3))
    index.executemany(f"insert or replace into files values ({holes})", new)
    index.execute("delete from texts where share not in (select share from files)")
