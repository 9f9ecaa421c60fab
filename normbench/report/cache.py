"""Cache beside a report, so that figures are drawn only when their data has changed.

`.report.json` in the folder of the report holds

    figures  digest of the data of each figure, by file
    inputs   digest of everything that the whole report was made from
    outputs  time and size of each file of the whole report
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from normbench import results, run_files
from normbench.config import files
from normbench.config.files import CLAIMS, CONF, SWEEPS, TABLES, names
from normbench.run_files import PROBES, write_file, write_json

_FILE = ".report.json"
_LIBRARIES = ("jinja2", "matplotlib", "scipy", "tabulate")


class Cache:
    """Files of a report below `root`, and what they were made from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            content = json.loads((root / _FILE).read_text())
        except (OSError, ValueError):
            content = {}
        self.figures: dict[str, str] = content.get("figures", {})
        self.inputs: str = content.get("inputs", "")
        self.outputs: dict[str, str] = content.get("outputs", {})
        self._files: list[Path] = []

    def write(self, texts: Mapping[Path, str]) -> list[Path]:
        """Write texts that are new or have changed; return their files."""
        self._files += texts
        return [path for path, text in texts.items() if write_if_changed(path, text.encode())]

    def is_stale(self, path: Path, data: str) -> bool:
        """Return whether a figure is missing or shows other data than this digest."""
        name = self._name(path)
        stale = self.figures.get(name) != data or not path.exists()
        self.figures[name] = data
        self._files.append(path)
        return stale

    def save(self, inputs: str | None = None) -> None:
        """Save the cache; with `inputs`, the files written so far are the whole report."""
        if inputs is not None:
            self.inputs = inputs
            self.outputs = {self._name(path): stamp(path) for path in self._files}
        content = {"figures": self.figures, "inputs": self.inputs, "outputs": self.outputs}
        write_json(self.root / _FILE, content)

    def is_current(self, inputs: str) -> bool:
        """Return whether the whole report exists, unchanged, and was made from these inputs."""
        return self.inputs == inputs and all(
            stamp(self.root / name) == before for name, before in self.outputs.items()
        )

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))


def inputs_digest(root: Path, runs: Path) -> str:
    """Return a digest of everything that the report in `root` depends on, without reading rows."""
    digest = hashlib.sha256(_drawing().encode())
    # The page links to the runs by relative paths.
    digest.update(f"{root.resolve()}\n{runs.resolve()}\n".encode())
    for path in _yamls():
        digest.update(f"{path} {stamp(path)}\n".encode())
    if study := results.study_file(runs):
        digest.update(stamp(study).encode())
        return digest.hexdigest()
    for row in results.row_files(runs):
        folder = row.removesuffix("row.json")
        stamps = stamp(row), stamp(f"{folder}history.csv"), stamp(f"{folder}{PROBES}")
        digest.update(f"{row} {stamps}\n".encode())
    return digest.hexdigest()


def data_digest(*texts: str) -> str:
    """Return a digest of the data of a figure and of the code that draws it."""
    return hashlib.sha256("\n".join([_drawing(), *texts]).encode()).hexdigest()


def _yamls() -> Iterator[Path]:
    # The report links to sweeps and lists normalizers that were not tested.
    for folder in (TABLES, CLAIMS, SWEEPS, CONF / "norm"):
        yield from sorted(folder.glob("*.yaml"))


def _drawing() -> str:
    """Return what a figure depends on beside its data: code, libraries, order of normalizers."""
    # The colour of a normalizer follows from its place among all names.
    return f"{_program()} {' '.join(names(CONF / 'norm'))}"


@cache
def _program() -> str:
    modules = sorted(path for path in Path(__file__).parent.iterdir() if path.is_file())
    others = [Path(str(module.__file__)) for module in (results, run_files, files)]
    code = b"".join(path.read_bytes() for path in (*modules, *others))
    return " ".join([hashlib.sha256(code).hexdigest(), *map(version, _LIBRARIES)])


def stamp(path: Path | str) -> str:
    """Return time and size of a file, "" if it is missing."""
    try:
        stat = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):  # below a study there are no folders
        return ""
    return f"{stat.st_mtime_ns} {stat.st_size}"


def write_if_changed(path: Path, content: bytes) -> bool:
    """Write a file unless it has this content already; return whether it was written."""
    if path.exists() and path.read_bytes() == content:
        return False
    write_file(path, content)
    return True
