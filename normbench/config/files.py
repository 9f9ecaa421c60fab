"""Locate and read the yaml files: beside the package in a checkout, inside it in a wheel."""

import io
import re
from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

import yaml

from normbench.errors import BadInput, DamagedFile, choose_from, one_line
from normbench.run_files import read_file

_PACKAGE = Path(__file__).parents[1]
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent

CONF = ROOT / "conf"
LAUNCHERS = CONF / "hydra" / "launcher"
SWEEPS = ROOT / "sweeps"
TABLES = ROOT / "reports" / "tables"
CLAIMS = ROOT / "reports" / "claims"
FIGURES = ROOT / "reports" / "figures"

#: Lists that `python -m normbench.catalog` prints, and the folders whose yamls they name.
LISTS = {
    "norms": CONF / "norm", "models": CONF / "model", "data": CONF / "data",
    "recipes": CONF / "recipe", "regs": CONF / "reg", "tasks": CONF / "task",
    "protocols": CONF / "protocol",
    "trainers": CONF / "trainer", "checkpoints": CONF / "checkpoint", "probes": CONF / "probe",
    "loggers": CONF / "logger", "sweeps": SWEEPS,
}  # fmt: skip

#: Limits of a yaml file: PyYAML ends the process at some 20,000 levels, and aliases that repeat
#: each other grow without limit. A file below SMALL bytes and without anchors meets neither.
MOST_BYTES, MOST_NODES, MOST_LEVELS, SMALL = 2**20, 100_000, 100, 10_000

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


def expand(name: str, path: str) -> Path:
    """Return a path with the home folder for a leading ~.

    Raises:
        BadInput: no file system takes such a name, or there is no such user; `name` is named.
    """
    try:
        expanded = Path(path).expanduser()
        expanded.resolve()
    except RuntimeError as error:  # no such user, a loop of symbolic links
        raise BadInput(f"{name}={path}: {error}") from None
    if len(str(expanded)) > 4000 or any(len(part.encode()) > 255 for part in expanded.parts):
        raise BadInput(f"{name}={path}: the name is too long for a file")
    return expanded


def names(folder: Path) -> list[str]:
    """Return the sorted names of the yaml files of `folder`: folders are the only registry."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def listing(folder: Path) -> str:
    """Return the command that lists the yaml files of `folder` with what they are."""
    kind = next((kind for kind, each in LISTS.items() if each == folder), "")
    return f"python -m normbench.catalog {kind}".rstrip()


def choose_name(name: str, folder: Path, known: Collection[str] = ()) -> str:
    """Return the end of a sentence about a `name` that no yaml file of `folder` has.

    Args:
        name: that is unknown; a word of the line that says what a file is suggests that file.
        folder: of the yaml files.
        known: their names, with those of a user's own folder.
    """
    descriptions = {each: headline(folder / f"{each}.yaml") for each in names(folder)}
    return choose_from(name, known or descriptions, f"`{listing(folder)}`", descriptions)


def groups() -> list[str]:
    """Return the sorted names of the groups of conf/, Hydra's own excepted."""
    return sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")


def training_probes() -> tuple[str, ...]:
    """Return the kinds of probes that can measure a network in training: those of conf/probe/."""
    return tuple(name for name in names(CONF / "probe") if name != "none")


class _File(io.BytesIO):
    """The content of a file, whose name PyYAML puts into its errors."""

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(content)
        self.name = str(path)


def read_yaml(path: Path) -> IO[bytes]:
    """Open a yaml file after a look at its size.

    Raises:
        FileNotFoundError: there is none.
        DamagedFile: it is no UTF-8, or too large or too deep with its aliases written out.
        yaml.YAMLError: it is no yaml.
    """
    content = read_file(path)
    if len(content) > MOST_BYTES:
        raise DamagedFile(f"{path} has {len(content):,} bytes; a yaml may have {MOST_BYTES:,}")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from None
    if len(content) < SMALL and b"&" not in content:
        return _File(path, content)
    try:
        small = _is_small(path, content)
    except yaml.MarkedYAMLError as error:
        if "nesting" not in (error.problem or ""):  # libyaml's limit of levels, since PyYAML 6.0.4
            raise
        small = False
    if not small:
        raise DamagedFile(
            f"{path} is too large: a yaml may have {MOST_NODES:,} values, each alias counted with "
            f"what it repeats, and {MOST_LEVELS} levels"
        )
    return _File(path, content)


def _is_small(path: Path, content: bytes) -> bool:
    """Return True if a yaml has few values and levels, with its aliases written out."""
    sizes: dict[str, int] = {}  # nodes of each anchor, with those of the aliases in it
    open_nodes: list[tuple[str | None, int]] = []  # anchor, and nodes before it
    nodes = 0
    for event in yaml.parse(_File(path, content), Loader=_SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            nodes += sizes.get(str(event.anchor), MOST_NODES)  # an alias of itself has no end
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = nodes - before
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        if nodes > MOST_NODES or len(open_nodes) > MOST_LEVELS:
            return False
    return True


def require_sound(folder: Path) -> None:
    """Look at the yamls of a user's own folder before Hydra reads any.

    Raises:
        DamagedFile: one of them is too large, or no file that can be read.
    """
    for group in (*groups(), "sweeps", "hydra/launcher"):
        for path in (folder / group).glob("*.yaml"):
            # Hydra will say so, if it is chosen.
            with suppress(yaml.YAMLError, FileNotFoundError):
                read_yaml(path)


def load(path: Path) -> dict[str, Any]:
    """Read a yaml file; {} if it holds comments alone.

    Raises:
        DamagedFile: it is no yaml, or its content has no keys.
    """
    try:
        content = yaml.load(read_yaml(path), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DamagedFile(f"{path}{line}: {error.problem or error.context}") from None
    # What a tag calls a number or truth may be none.
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:
        raise DamagedFile(f"{path} is no yaml: {one_line(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise DamagedFile(f"{path} must hold options with their values, as `eps: 1e-5`")
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


@cache
def target_of(group: str, name: str) -> str | None:
    """Return what normbench's own yaml of this name targets; None if it has none."""
    path = CONF / group / f"{name}.yaml"
    target: str | None = load_options(path).get("_target_") if path.is_file() else None
    return target


def unverified(path: Path) -> frozenset[str]:
    """Return the options that a comment on their line calls unverified: no source has the value."""
    return frozenset(re.findall(r"^(\w+):.*#\s*unverified", path.read_text(), re.MULTILINE))


def as_typed(group: str, name: str) -> str:
    """Return the words that choose a name of a row, of timm/resnet50 both that it takes."""
    return f"{group}={name.replace('/', f' {group}.name=', 1)}"


@cache
def default_choices(task: str | None = None) -> dict[str, str]:
    """Return the name that conf/config.yaml chooses in each group, or the yaml of a `task`."""
    files = [CONF / "config.yaml"]
    if task is not None and (path := CONF / "task" / f"{task}.yaml").is_file():
        files.append(path)
    chosen = {group: name for file in files for group, name in choices_of(load(file)).items()}
    return {group: name for group, name in chosen.items() if "/" not in group}


def choices_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return by group what the defaults of a yaml file choose or override."""
    entries = (each for each in content.get("defaults") or [] if isinstance(each, dict))
    pairs = (item for entry in entries for item in entry.items())
    return {group.partition("@")[0].removeprefix("override /"): name for group, name in pairs}


@cache
def default_global_batch(task: str) -> int | None:
    """Return the images of an optimizer step of a task; None if its yaml is a user's own."""
    path = CONF / "task" / f"{task}.yaml"
    return load_options(path)["global_batch"] if path.is_file() else None


def comment(path: Path) -> str:
    """Return the comment at the head of a yaml file as one paragraph."""
    head = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line.removeprefix("#").strip() for line in head)


def sizes_line(path: Path) -> str:
    """Return the second line of a model's yaml: its parameters."""
    return path.read_text().splitlines()[1].removeprefix("# ")


def headline(path: Path) -> str:
    """Return the first line of the comment at the head of a yaml file: what the file is."""
    try:
        text = read_file(path).decode(errors="replace")
    except FileNotFoundError:  # a link to nothing, which Hydra refuses if it is chosen
        return ""
    comments = (line.removeprefix("#").strip() for line in text.splitlines())
    return next((line for line in comments if line and not line.startswith("@package")), "")
