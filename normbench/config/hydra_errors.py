"""Errors of Hydra, OmegaConf and YAML as one sentence each."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from normbench.config.files import (
    CONF,
    LAUNCHERS,
    SWEEPS,
    choices_of,
    choose_name,
    default_choices,
    groups,
    load,
    load_options,
    names,
)
from normbench.errors import BadInput, DamagedFile, choose_from, one_line

MOST_NAMED = 5  # choices that have an option
#: Options under the names that they have elsewhere.
USUAL_NAMES = {
    "learning_rate": "lr", "accumulation": "per_forward", "accumulate_grad_batches": "per_forward",
}  # fmt: skip

#: Keys of conf/config.yaml that are no groups, as a hint for a misspelt one.
PLAIN_KEYS = (
    "batch", "workers", "global_batch", "seed", "precision", "init_from", "init_only",
    "loader", "runs", "reports", "jobs", "force", "resume", "stack_seeds",
)  # fmt: skip


@contextmanager
def one_sentence(words: Sequence[str] = (), config_dirs: Sequence[Path] = ()) -> Iterator[None]:
    """Raise what Hydra, OmegaConf and YAML raise as `BadInput`.

    Args:
        words: the command line.
        config_dirs: folders of --config-dir, whose files may have the option that is misspelt.
    """
    try:
        yield
    except yaml.YAMLError as error:
        raise BadInput(_describe_yaml_error(error)) from error
    except MissingConfigException as error:
        raise BadInput(_describe_missing_file(error)) from error
    except OverrideParseException as error:
        raise BadInput(
            f"{error.override}: this is no key=value that Hydra can read; quote commas, spaces and "
            "brackets, as in 'key=\"a, b\"'"
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise BadInput(_describe_hydra_error(error, words, config_dirs)) from error
    except RecursionError as error:
        sentence = "the command line or a yaml is nested too deeply, or refers to itself"
        raise BadInput(sentence) from error
    except ValueError as error:
        raise BadInput(_describe_value_error(error, words, config_dirs)) from error
    except OSError as error:  # of the working directory, a temporary folder, a yaml
        if "Invalid loaded object type" in str(error):  # OmegaConf's, which names no file
            raise BadInput(_describe_file_without_keys(config_dirs)) from error
        place = f"{error.filename}: " if error.filename else ""
        raise BadInput(f"{place}{error.strerror or error}") from error


@contextmanager
def hydra_fails(config_dirs: Sequence[Path]) -> Iterator[None]:
    """Raise as `BadInput` what Hydra raises by mistake, as for `hydra: null` in a yaml.

    Hydra looks into values before it checks their types. Only its own work belongs in here.
    """
    try:
        yield
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError) as error:
        if isinstance(error, RecursionError):
            raise
        raise BadInput(_describe_hydra_fault(one_line(error), config_dirs)) from error


def _describe_hydra_fault(reason: str, config_dirs: Sequence[Path]) -> str:
    place = (
        f", perhaps below `hydra:` in {_find_text('hydra:', config_dirs)}" if config_dirs else ""
    )
    return f"Hydra cannot compose this command line{place} ({reason})"


def _describe_yaml_error(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = (
        f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "a yaml file"
    )
    if not mark and isinstance(error, yaml.reader.ReaderError):
        place = error.name
    return f"{place} is no yaml: {getattr(error, 'problem', None) or _first_line(error)}"


def _describe_value_error(
    error: ValueError, words: Sequence[str], config_dirs: Sequence[Path]
) -> str:
    text = str(error)
    if "integer string conversion" in text:
        return f"{_longest_number(words)} has too many digits"
    if match := re.search("'(@package.*)'", text):
        return f"{_find_text(match[1], config_dirs)}: {_first_line(error)}"
    if match := re.match(r"Invalid defaults list in '([^']+)', (.*)", text):
        return f"{_file_of(match[1], config_dirs)}: {match[2]}"
    if "Config group override" in text:  # norm: 4 in a sweep
        return f"{text}; {', '.join(groups())} take the name of a yaml file"
    return text or type(error).__name__


def _yamls(config_dirs: Sequence[Path]) -> Iterator[Path]:
    """Yield the yamls of the user's own folders."""
    for folder in config_dirs:
        yield from sorted(folder.glob("*/*.yaml"))


def _find_text(text: str, config_dirs: Sequence[Path]) -> str:
    """Return the first file of `config_dirs` that has `text` in it, or these folders."""
    for path in _yamls(config_dirs):
        with suppress(OSError):
            if text in path.read_text(errors="replace"):
                return str(path)
    return f"a file of {', '.join(map(str, config_dirs))}"


def _file_of(name: str, config_dirs: Sequence[Path]) -> str:
    """Return the file that Hydra calls `name`, as norm/gn."""
    files = (folder / f"{name}.yaml" for folder in config_dirs)
    return str(next((path for path in files if path.is_file()), name))


def _longest_number(words: Sequence[str]) -> str:
    """Return the key of the number with the most digits among the words of a command line."""
    digits = [max(map(len, re.findall(r"\d+", word)), default=0) for word in words]
    longest = words[digits.index(max(digits))] if any(digits) else "a number of a yaml"
    return longest.partition("=")[0]


def _describe_file_without_keys(config_dirs: Sequence[Path]) -> str:
    for path in _yamls(config_dirs):
        try:
            load(path)
        except DamagedFile as damage:
            return str(damage)
    return "a yaml holds no options with their values"


def _describe_missing_file(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _first_line(error)
    if group == "hydra/launcher" and (name in names(LAUNCHERS) or "submitit" in name):
        return f"hydra/launcher={name} needs the extra slurm: pip install 'normbench[slurm]'"
    if group.startswith("hydra/"):
        return f"{group}={name} is unknown; {choose_from(name, error.options or names(LAUNCHERS))}"
    # Hydra lists no options for a folder that has none, or that is not there.
    folder = SWEEPS if group == "sweeps" else CONF / group
    known = choose_name(name, folder, error.options or ())
    return f"{group}={name} is unknown; {known}{_hint_of_file(group, name)}"


def _hint_of_file(group: str, name: str) -> str:
    """Return how to use a yaml of the user's own, if one of this name is near."""
    for path in sorted(Path().glob(f"*/{group}/{escape(name)}.yaml")) if name else ():
        return f"; {path} is found with --config-dir {path.parts[0]}"
    return f"; a yaml of your own is found with --config-dir DIR, as DIR/{group}/NAME.yaml"


def _describe_hydra_error(
    error: Exception, words: Sequence[str], config_dirs: Sequence[Path]
) -> str:
    text = str(error)
    if match := re.search(r"Key '(.+)' is not in struct\s+full_key: ([\w.]+)", text):
        return _describe_unknown_key(match[2], words, config_dirs)
    if match := re.search(r"Could not override '([\w.@/]+)'", text):
        return _describe_unknown_key(match[1], words, config_dirs)
    if match := re.search(r"Ambiguous value for argument '(.*)'", text):
        return f"{match[1]}: several values make a grid, and a grid needs -m"
    if text.startswith("Error in call to target"):  # of the sweeper, with words of a yaml
        return _describe_hydra_fault(" ".join(text.split()), config_dirs)
    if match := re.search(r"Sweep parameters '(.*)' requires --multirun", text, re.DOTALL):
        return f"{match[1]}: several values make a grid, and a grid needs -m"
    if match := re.search(r"Missing mandatory value: ([\w.]+)(?:\s+full_key: ([\w.]+))?", text):
        key = match[2] or match[1]
        protocol = ", or a protocol that does" if key in ("workers", "global_batch") else ""
        return f"{key} is missing: give {key}=VALUE{protocol}"
    if match := re.match(r"In '([^']+)': (?:\w+ raised while composing config:\s)?(.*)", text):
        return f"{_file_of(match[1], config_dirs)}: {match[2]}"
    if match := re.match(r"Error merging override (.*)", text, re.DOTALL):
        reason = _first_line(error.__cause__) if error.__cause__ else "it has the wrong type"
        return f"{match[1]}: this value does not fit ({reason})"
    if match := re.match(r"Could not (?:override|delete|append)", text):
        return f"{_first_line(error)}; `python -m normbench --cfg job` prints all keys"
    if "interpolation" in text.lower() and (match := re.search(r"full_key: ([\w.]+)", text)):
        return f"{match[1]}: ${{...}} cannot be resolved ({_first_line(error)})"
    return _first_line(error) or f"a yaml cannot be used ({type(error).__name__})"


def _describe_unknown_key(key: str, words: Sequence[str], config_dirs: Sequence[Path]) -> str:
    group, _, option = key.partition(".")
    if not option or group not in groups():
        return f"{key} is unknown; {choose_from(group, [*PLAIN_KEYS, *groups(), 'sweeps'])}"
    # Of norm=bn,gn norm.groups=4, name the first choice without the option: bn.
    choice = _choices(words, config_dirs)[group]
    for name in choice.split(","):
        for path in (folder / group / f"{name}.yaml" for folder in (CONF, *config_dirs)):
            options = load_options(path).keys() - {"_target_"} if path.is_file() else {option}
            if "." in option and option.partition(".")[0] in options:
                return f"{key} is not there yet; to add it write +{key}=VALUE"
            if option not in options:
                having = [each for each in names(CONF / group) if _has_option(group, each, option)]
                if having[MOST_NAMED:]:
                    having[MOST_NAMED:] = ["..."]
                verb = "has" if len(having) == 1 else "have"
                others = f"; {group}={', '.join(having)} {verb} it" if having else ""
                hint = choose_from(USUAL_NAMES.get(option, option), options)
                return f"{key} is unknown to {group}={name}; {hint}{others}"
    if option in options:
        return f"{key} has no such entries yet; to add one write +{key}.NAME=VALUE"
    return f"{key} is unknown to one of {group}={choice}"


def _choices(words: Sequence[str], config_dirs: Sequence[Path]) -> dict[str, str]:
    """Return by group what is typed, or else the choice of a file of sweeps/, of a task, of conf/.

    Several values are separated by commas, as typed.
    """
    typed = {key: value for key, _, value in (word.partition("=") for word in words)}
    of_sweep = _choices_of_sweep(typed.get("sweeps", ""), config_dirs)
    given = {key: str(value) for key, value in (of_sweep | typed).items()}
    task = given.get("task", "").partition(",")[0]
    return default_choices(task) | given


def _choices_of_sweep(name: str, config_dirs: Sequence[Path]) -> dict[str, Any]:
    """Return by group what a file of sweeps/ and its bases choose; nothing if there is none."""
    folders = [*(folder / "sweeps" for folder in config_dirs), SWEEPS]
    path = next((path for each in folders if (path := each / f"{name}.yaml").is_file()), None)
    if path is None:
        return {}
    content = load(path)
    choices: dict[str, Any] = {}
    for base in content.get("defaults") or []:
        if isinstance(base, str):
            choices |= _choices_of_sweep(base, config_dirs)
    sweeper = (content.get("hydra") or {}).get("sweeper") or {}
    grid = sweeper.get("params") or {}
    return choices | choices_of(content) | {key: grid[key] for key in groups() if key in grid}


def _has_option(group: str, name: str, option: str) -> bool:
    with suppress(DamagedFile):
        return option in load_options(CONF / group / f"{name}.yaml")
    return False


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, and the next one if it ends with a colon."""
    first, _, others = str(error).strip().partition("\n")
    return f"{first} {others.partition(chr(10))[0].strip()}" if first.endswith(":") else first
