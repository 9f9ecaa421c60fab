"""Locate and read the yaml files: beside the package in a checkout, inside it in a wheel."""

import re
from collections.abc import Hashable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from normbench.errors import BadInput

_PACKAGE = Path(__file__).parents[1]
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent

CONF = ROOT / "conf"
LAUNCHERS = CONF / "hydra" / "launcher"
SWEEPS = ROOT / "sweeps"
TABLES = ROOT / "reports" / "tables"
CLAIMS = ROOT / "reports" / "claims"
FIGURES = ROOT / "reports" / "figures"

FLOAT, TIMESTAMP = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"
#: libyaml's parser, six times as fast, where PyYAML was built with it.
_SafeLoader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Read YAML as OmegaConf does: 1e-3 is a number, a date a text, a repeated key an error."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own name and type)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        if repeated := [key for key, _ in node.value if keys.count(key.value) > 1]:
            raise yaml.constructor.ConstructorError(
                "while constructing a mapping", node.start_mark,
                f"found duplicate key {repeated[-1].value}", repeated[-1].start_mark,
            )  # fmt: skip
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


# PyYAML alone wants a point and a sign in a number with an exponent.
_EXPONENT = re.compile(r"^[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver(FLOAT, _EXPONENT, [*"-+0123456789"])


def names(folder: Path) -> list[str]:
    """Return the sorted names of the yaml files of `folder`: folders are the only registry."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def groups() -> list[str]:
    """Return the sorted names of the groups of conf/, Hydra's own excepted."""
    return sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")


def training_probes() -> tuple[str, ...]:
    """Return the kinds of probes that can measure a network in training: those of conf/probe/."""
    return tuple(name for name in names(CONF / "probe") if name != "none")


def load(path: Path) -> dict[str, Any]:
    """Read a yaml file; {} if it holds comments alone."""
    with path.open(encoding="utf-8") as file:
        content = yaml.load(file, Loader=_Loader)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadInput(f"{path} must hold options with their values, as `eps: 1e-5`")
    return {str(key): value for key, value in content.items()}


def load_options(path: Path) -> dict[str, Any]:
    """Read the options of a choice, with those of the choices that it extends by `defaults`."""
    own = load(path)
    options: dict[str, Any] = {}
    for name in own.pop("defaults", []):
        # A file of a user's own may extend one of conf/; bases without a file belong to Hydra.
        for folder in (path.parent, CONF / path.parent.name):
            if isinstance(name, str) and (base := folder / f"{name}.yaml").is_file():
                options |= load_options(base)
                break
    return options | own


def unverified(path: Path) -> frozenset[str]:
    """Return the options that a comment on their line calls unverified: no source has the value."""
    return frozenset(re.findall(r"^(\w+):.*#\s*unverified", path.read_text(), re.MULTILINE))


@cache
def default_choices() -> dict[str, str]:
    """Return the name that conf/config.yaml chooses in each group."""
    defaults = load(CONF / "config.yaml")["defaults"]
    pairs = (item for entry in defaults if isinstance(entry, dict) for item in entry.items())
    return {group: name for group, name in pairs if "/" not in group}


def comment(path: Path) -> str:
    """Return the comment at the head of a yaml file as one paragraph."""
    head = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line.removeprefix("#").strip() for line in head)


def sizes_line(path: Path) -> str:
    """Return the second line of a model's yaml: its parameters."""
    return path.read_text().splitlines()[1].removeprefix("# ")


def headline(path: Path) -> str:
    """Return the first line of the comment at the head of a yaml file: what the file is."""
    comments = (line.removeprefix("#").strip() for line in path.read_text().splitlines())
    return next(line for line in comments if line and not line.startswith("@package"))
