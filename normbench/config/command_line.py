"""Words of a command line, checked before Hydra reads them.

Hydra takes options of its own (--cfg, -m) and overrides (norm=gn, recipe.lr=0.2). Options that
cannot work here are refused, the others are passed on with their full names. No override may name
code or a file by its path.
"""

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType, QuotedString

from normbench.config.cli import require_text
from normbench.config.files import CONF, default_choices, groups, names
from normbench.errors import BadInput

MOST_OF_NAME = 200  # letters; a file's name has at most 255
#: Names of choices: a file of a group, never a path.
NAME = re.compile(r"[\w+=-][\w.+=-]*")
#: Keys by which Hydra calls code.
CODE = frozenset({"_target_", "_args_", "_partial_", "_recursive_", "_convert_"})
LAUNCHER = "hydra/launcher"

EXAMPLES = {**default_choices(), "sweeps": "demo", LAUNCHER: "slurm"}

#: Hydra's options that cannot work here, each with the reason and what works.
REFUSED = {
    "experimental_rerun": "it would run code from a pickled file; the command line of a run is "
    "its title in `python -m normbench.status`",
    "config_path": "normbench has its own conf/; --config-dir DIR adds a folder of your own",
    "config_name": "normbench has one config.yaml; --config-dir DIR adds yamls of your own",
    "version": "give it alone, as in `python -m normbench --version`",
}


@dataclass(frozen=True)
class CommandLine:
    """Options and overrides as Hydra takes them."""

    options: tuple[str, ...]
    overrides: tuple[str, ...]
    config_dirs: tuple[Path, ...]
    multirun: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = "unrecognized arguments: "
        if message.startswith(unknown):  # argparse names all words from the first unknown one on
            options = [word for word in message.split() if word.startswith("-")]
            message = unknown + " ".join(options)
        raise BadInput(f"{message}; `python -m normbench --help` shows what works")


def _parser() -> argparse.ArgumentParser:
    """Return a parser of Hydra's options: the same names, so the same abbreviations."""
    parser = _Parser(prog="normbench", add_help=False)
    for flag, short in {
        "help": "-h", "hydra-help": None, "version": None, "resolve": None, "run": "-r",
        "multirun": "-m", "shell-completion": "-sc",
    }.items():  # fmt: skip
        parser.add_argument(*filter(None, (f"--{flag}", short)), action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--package", "-p")
    parser.add_argument("--config-path", "-cp")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--experimental-rerun")
    parts = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=parts)
    parser.add_argument("overrides", nargs="*")
    return parser


def read(words: Sequence[str]) -> CommandLine:
    """Return the options and overrides among `words`.

    Raises:
        BadInput: an option is unknown or cannot work here, or an override is not allowed.
        HydraException: an override cannot be parsed.
    """
    require_text(words)
    given = vars(_parser().parse_intermixed_args(list(words)))
    overrides = given.pop("overrides")
    for name, reason in REFUSED.items():
        if given[name]:  # also an empty one would be none
            raise BadInput(f"--{name.replace('_', '-')} is not available here: {reason}")
    if given["multirun"] and given["cfg"]:
        raise BadInput(
            f"--cfg={given['cfg']} prints one cell: leave -m out, with one value for each key"
        )
    folder = given["config_dir"]
    if folder is not None and not (folder and Path(folder).is_dir()):
        raise BadInput(f"--config-dir={folder}: there is no such folder")
    if given["shell_completion"]:
        _require_completion(overrides)
    else:
        for override in OverridesParser.create().parse_overrides(overrides):
            require_allowed(override)
    if given["hydra_help"]:  # for which Hydra would look for them among its own settings
        overrides = []
    options = tuple(
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in given.items()
        if value is not None and value is not False
    )
    config_dirs = () if folder is None else (Path(folder),)
    return CommandLine(options, tuple(overrides), config_dirs, given["multirun"])


def _require_completion(words: Sequence[str]) -> None:
    verbs = [word.partition("=")[0] for word in words]
    if sum(verbs.count(verb) for verb in ("install", "uninstall", "query")) != 1:
        example = "--shell-completion takes one word, as in --shell-completion install=bash"
        raise BadInput(f"{example}, not {' '.join(words) or 'none'}")
    if any(word.startswith("query=") for word in words) and "COMP_LINE" not in os.environ:
        raise BadInput(
            "--shell-completion query=SHELL is a question of the shell, which sets COMP_LINE; "
            'install it by eval "$(normbench --shell-completion install=bash)"'
        )


def require_allowed(override: Override) -> None:
    """Refuse an override that names code, a package, a path, or Hydra's own settings.

    Raises:
        BadInput: it does.
    """
    word, key = str(override.input_line), override.key_or_group
    if not key or len(key) > MOST_OF_NAME:
        raise BadInput(f"{word}: this is no key=value, as norm=gn or recipe.lr=0.2")
    if override.package is not None:  # Hydra instantiates what is put below hydra.callbacks
        raise BadInput(f"{word}: a choice takes no @PACKAGE; write {key}=NAME")
    values = [*_values(override)]
    if CODE & {part for value in (key.split("."), *map(_keys, values)) for part in value}:
        raise BadInput(
            f"{word}: the command line cannot choose code; name it in a yaml of your own, as "
            "`_target_: package.module.Class` in mine/norm/own.yaml, and add --config-dir mine "
            "norm=own"
        )
    if override.is_hydra_override() or key == "hydra":
        deleted = override.type == OverrideType.DEL
        grid = key == "hydra.mode" and values == ["MULTIRUN"]
        if deleted or not (grid or key == LAUNCHER or key.startswith("hydra.launcher.")):
            raise BadInput(
                f"{word}: of Hydra's own settings the command line takes hydra/launcher=NAME, "
                "hydra.launcher.OPTION=VALUE and hydra.mode=MULTIRUN"
            )
    if key in (*groups(), "sweeps", LAUNCHER) and override.type in (
        OverrideType.CHANGE, OverrideType.ADD,
    ):  # fmt: skip
        for value in values:
            _require_choice(key, value)


def _values(override: Override) -> Iterator[Any]:
    """Yield the values of an override: one, or those of a list."""
    value = override.value()
    # Numbers of a range and the names that a glob selects are no code and no path.
    yield from value.list if isinstance(value, ChoiceSweep) else [value]


def _keys(value: Any) -> Iterator[str]:
    """Yield the keys of a mapping, of mappings within it, and of those in lists."""
    entries = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping):
        yield from (part for key in value for part in str(key).split("."))
    if isinstance(value, Mapping | list):
        for entry in entries:
            yield from _keys(entry)


def _require_choice(group: str, value: Any) -> None:
    """Refuse a choice that is no name of a yaml file; unknown names are refused later."""
    if isinstance(value, QuotedString):
        value = value.text
    if isinstance(value, str):
        require_name(group, value)
    elif isinstance(value, list):  # `parse` refuses it, unless it has one name
        for each in value:
            require_name(group, each if isinstance(each, str) else f"[{each}]")
    elif isinstance(value, Mapping):
        raise BadInput(
            f"{group}={value}: {group} takes the name of a yaml file; an option is changed by "
            f"{group}.OPTION=VALUE"
        )
    elif value is None or isinstance(value, bool | int | float):
        raise BadInput(
            f"{group}={json.dumps(value)}: {group} takes the name of a yaml file, as "
            f"{group}={EXAMPLES[group]}"
        )


def require_name(group: str, name: str) -> None:
    """Raise `BadInput` if the choice of a group is a path, or otherwise no name of a yaml file."""
    library, slash, model = name.partition("/")
    if slash and library in names(CONF / group):  # model=timm/resnet50
        raise BadInput(f"{group}={name}: write {group}={library} {group}.name={model}")
    no_name = not NAME.fullmatch(name) or name.endswith((".yaml", ".yml"))
    if name and (no_name or len(name) > MOST_OF_NAME):
        raise BadInput(
            f"{group}={name}: {group} takes the name of a yaml file, without folder and suffix, as "
            f"{group}={EXAMPLES[group]}; a file of your own stands in DIR/{group}/, "
            "with --config-dir DIR"
        )
