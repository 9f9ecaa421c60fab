"""Where conf/, sweeps/, tables and claims lie: beside the package, or inside it in a wheel."""

import re
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from normbench.errors import BadInput

_PACKAGE = Path(__file__).parents[1]
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent

CONF = ROOT / "conf"
SWEEPS = ROOT / "sweeps"
TABLES = ROOT / "reports" / "tables"
CLAIMS = ROOT / "reports" / "claims"
FIGURES = ROOT / "reports" / "figures"

#: libyaml's parser, which takes a sixth of the time, where PyYAML was built with it.
_FAST: tuple[Any, ...] = (yaml.CSafeLoader,) if yaml.__with_libyaml__ else ()


class _Loader(*_FAST, get_yaml_loader()):  # type: ignore[misc]
    """As OmegaConf reads: 1e-3 is a number, and a key that stands twice an error."""


def names(folder: Path) -> list[str]:
    """The sorted names of the yaml files of `folder`: folders are the only registry."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load(path: Path) -> dict[str, Any]:
    """The content of a yaml file; {} if it holds comments alone."""
    with path.open(encoding="utf-8") as file:
        content = yaml.load(file, Loader=_Loader)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadInput(f"{path} must hold options with their values, as `eps: 1e-5`")
    return {str(key): value for key, value in content.items()}


def unverified(path: Path) -> frozenset[str]:
    """Options of a yaml file of which a comment on their line says that no source has the value."""
    return frozenset(re.findall(r"^(\w+):.*#\s*unverified", path.read_text(), re.MULTILINE))


@cache
def usual_choices() -> dict[str, str]:
    """What conf/config.yaml chooses in each group when nobody says otherwise."""
    defaults = load(CONF / "config.yaml")["defaults"]
    pairs = (item for entry in defaults if isinstance(entry, dict) for item in entry.items())
    return {group: name for group, name in pairs if "/" not in group}


def comment(path: Path) -> str:
    """The comment at the head of a yaml file, as one paragraph."""
    head = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line.removeprefix("#").strip() for line in head)


def sizes_line(path: Path) -> str:
    """The second line of the comment at the head of a model's yaml: its parameters."""
    return path.read_text().splitlines()[1].removeprefix("# ")


def headline(path: Path) -> str:
    """The first line of the comment at the head of a yaml file: what it is."""
    comments = (line.removeprefix("#").strip() for line in path.read_text().splitlines())
    return next(line for line in comments if line and not line.startswith("@package"))
