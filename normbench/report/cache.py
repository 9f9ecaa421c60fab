"""Cache beside a report, so that figures are drawn only when their data has changed.

`.report.json` in the folder of the report holds

    figures  digest of the data of each figure, by file
    inputs   digest of everything that the whole report was made from
    outputs  time and size of each file of the whole report
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from normbench import history, results, run_files
from normbench.config import files
from normbench.config.files import CLAIMS, CONF, SWEEPS, TABLES, names
from normbench.run_files import PROBES, write_file, write_json

_FILE = ".report.json"
# Another version may draw or write the same data differently.
_LIBRARIES = ("jinja2", "matplotlib", "scipy", "tabulate")


class Cache:
    """Files of a report below `root`, and what they were made from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written: list[Path] = []
        try:
            content = json.loads((root / _FILE).read_text())
        except (OSError, ValueError):
            content = {}
        self.figures: dict[str, str] = content.get("figures", {})
        self.inputs: str = content.get("inputs", "")
        self.outputs: dict[str, str] = content.get("outputs", {})

    def write(self, texts: Mapping[Path, str]) -> list[Path]:
        """Write texts that are new or have changed; return their files."""
        self.written += texts
        return [path for path, text in texts.items() if write_if_changed(path, text.encode())]

    def is_stale(self, path: Path, data: str) -> bool:
        """Return True if a figure is missing or shows other data than this digest."""
        self.written.append(path)
        name = str(path.relative_to(self.root))
        before, self.figures[name] = self.figures.get(name), data
        return before != data or not path.exists()

    def save(self, inputs: str | None = None) -> None:
        """Save the cache; with `inputs`, the files written so far are the whole report."""
        if inputs is not None:
            self.inputs = inputs
            self.outputs = {str(path.relative_to(self.root)): stamp(path) for path in self.written}
        content = {"figures": self.figures, "inputs": self.inputs, "outputs": self.outputs}
        write_json(self.root / _FILE, content)

    def is_current(self, inputs: str) -> bool:
        """Return True if the whole report exists, unchanged, and was made from these inputs."""
        return self.inputs == inputs and all(
            stamp(self.root / name) == before for name, before in self.outputs.items()
        )


def inputs_digest(root: Path, runs: Path) -> str:
    """Return a digest of everything that the report in `root` depends on, without reading rows."""
    parts = [str(root.resolve()), str(runs.resolve())]  # the page has relative links to the runs
    # The page links to sweeps and lists normalizers that were not tested.
    for folder in (TABLES, CLAIMS, SWEEPS, CONF / "norm"):
        parts += [f"{path} {stamp(path)}" for path in sorted(folder.glob("*.yaml"))]
    if study := results.study_file(runs):
        parts.append(stamp(study))
    else:
        for row in results.row_files(runs):
            run = row.removesuffix("row.json")
            parts += [row, stamp(row), stamp(f"{run}history.csv"), stamp(f"{run}{PROBES}")]
    return data_digest(*parts)


def data_digest(*parts: str) -> str:
    """Return a digest of data, of the code that draws it and of the names of all normalizers."""
    # The colour of a normalizer follows from its place among all names.
    return hashlib.sha256(
        "\n".join([_program(), *names(CONF / "norm"), *parts]).encode()
    ).hexdigest()


@cache
def _program() -> str:
    """Return a digest of the code of reports, and the versions of its libraries."""
    modules = sorted(path for path in Path(__file__).parent.iterdir() if path.is_file())
    others = [Path(str(module.__file__)) for module in (results, history, run_files, files)]
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
    """Write a file unless it has this content already; return True if it was written."""
    if path.exists() and path.read_bytes() == content:
        return False
    write_file(path, content)
    return True
