"""What the files of a report were made of, so that none is made twice and none is out of date.

It stands beside them in .made.json:

    drawn   a digest of what each figure shows, by its file
    of      the fingerprint of all that the whole report was made of
    files   time and size of each of its files when it was finished
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from normbench import results, run_files
from normbench.config import files
from normbench.config.files import CLAIMS, CONF, SWEEPS, TABLES, names

_MADE = ".made.json"
_LIBRARIES = ("jinja2", "matplotlib", "scipy", "tabulate")


class Made:
    """The files below a folder that have been made, those of the whole report among them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            known = json.loads((root / _MADE).read_text())
        except (OSError, ValueError):
            known = {}
        self.drawn: dict[str, str] = known.get("drawn", {})
        self.of: str = known.get("of", "")
        self.files: dict[str, str] = known.get("files", {})
        self._now: list[Path] = []

    def write(self, texts: Mapping[Path, str]) -> list[Path]:
        """Write what is new; the files that have changed."""
        self._now += texts
        return [path for path, text in texts.items() if put(path, text.encode())]

    def stale(self, path: Path, shown: str) -> bool:
        """Whether a figure is missing or shows something else; from now on it does not."""
        name = self._name(path)
        before = self.drawn.get(name)
        self.drawn[name] = shown
        self._now.append(path)
        return before != shown or not path.exists()

    def finish(self, of: str) -> None:
        """The files that were asked for are the whole report, made of what has this fingerprint."""
        self.of = of
        self.files = {self._name(path): stamp(path) for path in self._now}
        self.keep()

    def keep(self) -> None:
        """Remember it."""
        known = {"drawn": self.drawn, "of": self.of, "files": self.files}
        put(self.root / _MADE, json.dumps(known, indent=0, sort_keys=True).encode())

    def whole(self, of: str) -> bool:
        """Whether all files of the report are there as they were made, and of the same."""
        return self.of == of and all(
            stamp(self.root / name) == before for name, before in self.files.items()
        )

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))


def fingerprint(root: Path, runs: Path) -> str:
    """Of everything that the report in `root` is made of, told without reading a row."""
    found = hashlib.sha256(_drawing().encode())
    # Its links lead from the one to the other.
    found.update(f"{root.resolve()}\n{runs.resolve()}\n".encode())
    for path in _yamls():
        found.update(f"{path} {stamp(path)}\n".encode())
    for row, _ in results.row_files(runs):
        folder = Path(row).parent
        for path in (Path(row), folder / "history.csv", folder / "probes"):
            found.update(f"{path} {stamp(path)}\n".encode())
    return found.hexdigest()


def digest(*shown: str) -> str:
    """Of what a figure shows and of how it is drawn."""
    return hashlib.sha256("\n".join([_drawing(), *shown]).encode()).hexdigest()


def _yamls() -> Iterator[Path]:
    # Of sweeps and normalizers the report has the names: it links to the ones and says which of
    # the others were not tested.
    for folder in (TABLES, CLAIMS, SWEEPS, CONF / "norm"):
        yield from sorted(folder.glob("*.yaml"))


def _drawing() -> str:
    """How figures are drawn; colours go by the place of a normalizer among all of them."""
    return f"{_program()} {' '.join(names(CONF / 'norm'))}"


@cache
def _program() -> str:
    own = sorted(path for path in Path(__file__).parent.iterdir() if path.is_file())
    others = [Path(str(module.__file__)) for module in (results, run_files, files)]
    code = [path.read_bytes() for path in (*own, *others)]
    return " ".join([hashlib.sha256(b"".join(code)).hexdigest(), *map(version, _LIBRARIES)])


def stamp(path: Path) -> str:
    """Time and size of a file; nothing if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""
    return f"{found.st_mtime_ns} {found.st_size}"


def put(path: Path, content: bytes) -> Path | None:
    """Write a file unless it has this content; the file, if it has changed."""
    if path.exists() and path.read_bytes() == content:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    # In one piece: two sweeps may end at the same moment.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path
