"""Cache beside a report, so that figures are drawn only when their data has changed.

`.report.json` in the folder of the report holds

    figures  digest of the data of each figure and the size of its file, by file
    inputs   digest of everything that the whole report was made from
    outputs  time and size of each file of the whole report
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from normbench import results, run_files
from normbench.config import files
from normbench.config.files import CLAIMS, CONF, SWEEPS, TABLES, groups, names
from normbench.errors import DamagedFile, leave_out, one_line
from normbench.records import (
    csv_table,
    history,
    hits,
    json_fields,
    probes,
    row_checks,
    studies,
)
from normbench.records.history import HISTORY
from normbench.records.hits import TEST_HITS
from normbench.records.probes import PROBES
from normbench.records.studies import study_file
from normbench.report.measured_times import speed_files
from normbench.run_files import read_json, write_file, write_json

_FILE = ".report.json"
#: Modules outside of this package on which the content of a report depends.
_READERS = (
    results, row_checks, json_fields, csv_table, history, hits, probes, studies, run_files, files
)  # fmt: skip
# Another version may draw or write the same data differently.
_LIBRARIES = ("jinja2", "matplotlib", "scipy", "tabulate")


class Cache:
    """Files of a report below `root`, and what they were made from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written: list[Path] = []
        self._drawn: dict[str, str] = {}  # digests of the data of figures
        try:
            content = read_json(root / _FILE)
        except (FileNotFoundError, DamagedFile):  # a damaged cache counts as none
            content = {}
        self.figures = _texts(content.get("figures"))
        self.inputs = str(content.get("inputs", ""))
        self.outputs = _texts(content.get("outputs"))

    def write(self, texts: Mapping[Path, str]) -> list[Path]:
        """Write texts that are new or have changed; return their files."""
        self.written += texts
        return [path for path, text in texts.items() if write_if_changed(path, text.encode())]

    def is_stale(self, path: Path, data: str) -> bool:
        """Return True if a figure is missing, was changed or shows other data than this digest."""
        self.written.append(path)
        self._drawn[self._name(path)] = data
        return self.figures.get(self._name(path)) != f"{data} {_size(path)}"

    def forget(self, path: Path) -> None:
        """Have a figure drawn again by the next report."""
        del self._drawn[self._name(path)]

    def save(self, inputs: str | None = None) -> None:
        """Save the cache; with `inputs`, the files written so far are the whole report."""
        if inputs is not None:
            self.inputs = inputs
            self.outputs = {self._name(path): stamp(path) for path in self.written}
        for name, data in self._drawn.items():
            self.figures[name] = f"{data} {_size(self.root / name)}"
        content = {"figures": self.figures, "inputs": self.inputs, "outputs": self.outputs}
        with leave_out_unwritten(self.root / _FILE):
            write_json(self.root / _FILE, content)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def is_current(self, inputs: str) -> bool:
        """Return True if the whole report exists, unchanged, and was made from these inputs."""
        return self.inputs == inputs and all(
            stamp(self.root / name) == before for name, before in self.outputs.items()
        )


def inputs_digest(root: Path, runs: Path) -> str:
    """Return a digest of everything that the report in `root` depends on, without reading rows."""
    parts = [str(root.resolve()), str(runs.resolve())]  # the page has relative links to the runs
    # The page links to sweeps, lists normalizers that were not tested, and has headlines of others.
    for folder in (TABLES, CLAIMS, SWEEPS, CONF, *(CONF / group for group in groups())):
        parts += [f"{path} {stamp(path)}" for path in sorted(folder.glob("*.yaml"))]
    parts += [f"{path} {stamp(path)}" for path in speed_files(runs)]
    if study := study_file(runs):
        parts.append(stamp(study))
    else:
        for row in results.row_files(runs):
            run = row.removesuffix("row.json")
            parts += [
                row,
                *(stamp(run + name) for name in ("row.json", HISTORY, TEST_HITS, PROBES)),
            ]
    return data_digest(*parts)


def data_digest(*parts: str) -> str:
    """Return a digest of data, of the code that draws it and of the names of all normalizers."""
    # The colour of a normalizer follows from its place among all names.
    return hashlib.sha256(
        "\n".join([_program(), *names(CONF / "norm"), *parts]).encode(errors="surrogateescape")
    ).hexdigest()


@cache
def _program() -> str:
    """Return a digest of the code of reports, and the versions of its libraries."""
    modules = sorted(path for path in Path(__file__).parent.iterdir() if path.is_file())
    others = [Path(str(module.__file__)) for module in _READERS]
    code = b"".join(path.read_bytes() for path in (*modules, *others))
    return " ".join([hashlib.sha256(code).hexdigest(), *map(version, _LIBRARIES)])


def stamp(path: Path | str) -> str:
    """Return time and size of a file, "" if it is missing."""
    try:
        status = Path(path).stat()
    except OSError:  # below a study there are no folders
        return ""
    return f"{status.st_mtime_ns} {status.st_size}"


def _size(path: Path) -> str:
    return stamp(path).partition(" ")[2]


def _texts(value: Any) -> dict[str, str]:
    """Return a part of the cache; a damaged one counts as none."""
    if not isinstance(value, dict) or {*map(type, value.values())} - {str}:
        return {}
    return value


def write_if_changed(path: Path, content: bytes) -> bool:
    """Write a file unless it has this content already; return True if it was written.

    A file that cannot be written is left out.
    """
    with leave_out_unwritten(path):
        if path.is_file() and path.read_bytes() == content:
            return False
        write_file(path, content)
        return True
    return False


@contextmanager
def leave_out_unwritten(path: Path) -> Iterator[None]:
    """Leave out the file that cannot be written in this block: a full disk, a folder there."""
    try:
        yield
    except OSError as error:
        leave_out(DamagedFile(f"{path} cannot be written: {error.strerror or one_line(error)}"))
