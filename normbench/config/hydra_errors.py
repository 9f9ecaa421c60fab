"""Errors of Hydra, OmegaConf and YAML as one sentence each."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from normbench.config.files import CONF, LAUNCHERS, default_choices, groups, load_options, names
from normbench.errors import BadInput, choose_from

#: Keys of conf/config.yaml that are no groups, as a hint for a misspelt one.
PLAIN_KEYS = (
    "batch", "workers", "global_batch", "seed", "precision", "init_from", "loader",
    "runs", "jobs", "force", "resume", "stack_seeds",
)  # fmt: skip


@contextmanager
def one_sentence(words: Sequence[str], config_dirs: Sequence[Path]) -> Iterator[None]:
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
    except ValueError as error:  # Hydra raises it for norm=4
        hint = ""
        if "Config group override" in str(error):
            hint = f"; {', '.join(groups())} take the name of a yaml file"
        raise BadInput(f"{error}{hint}") from error


def _describe_yaml_error(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = (
        f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "a yaml file"
    )
    return f"{place} is no yaml: {getattr(error, 'problem', None) or error}"


def _describe_missing_file(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _first_line(error)
    if group == "hydra/launcher" and (name in names(LAUNCHERS) or "submitit" in name):
        return f"hydra/launcher={name} needs the extra slurm: pip install 'normbench[slurm]'"
    if group.startswith("hydra/"):
        return f"{group}={name} is unknown; {choose_from(name, error.options or names(LAUNCHERS))}"
    if "/" in group:  # model=timm/resnet50
        group, _, library = group.partition("/")
        return f"{group}={library}/{name}: write {group}={library} {group}.name={name}"
    # Hydra lists no options for a folder that has none, or that is not there.
    return f"{group}={name} is unknown; {choose_from(name, error.options or names(CONF / group))}"


def _describe_hydra_error(
    error: Exception, words: Sequence[str], config_dirs: Sequence[Path]
) -> str:
    text = str(error)
    if match := re.search(r"Key '(\w+)' is not in struct\s+full_key: ([\w.]+)", text):
        return _describe_unknown_key(match[2], words, config_dirs)
    if match := re.search(r"Could not override '([\w.@/]+)'", text):
        return _describe_unknown_key(match[1], words, config_dirs)
    if match := re.search(r"Ambiguous value for argument '(.*)'", text):
        return f"{match[1]}: several values make a grid, and a grid needs -m"
    if "requires --multirun" in text:
        return "several values make a grid, and a grid needs -m"
    if match := re.search(r"Missing mandatory value: (\w+)", text):
        return f"{match[1]} is missing: give {match[1]}=N, or a protocol that does"
    return _first_line(error)


def _describe_unknown_key(key: str, words: Sequence[str], config_dirs: Sequence[Path]) -> str:
    group, _, option = key.partition(".")
    if not option or group not in groups():
        return f"{key} is unknown; {choose_from(group, [*PLAIN_KEYS, *groups(), 'sweeps'])}"
    # Of norm=bn,gn norm.groups=4, name the first choice without the option: bn.
    typed = [word.partition("=")[2] for word in words if word.startswith(f"{group}=")]
    choice = typed[-1] if typed else default_choices()[group]
    for name in choice.split(","):
        for folder in (CONF, *config_dirs):
            path = folder / group / f"{name}.yaml"
            options = load_options(path).keys() - {"_target_"} if path.is_file() else {option}
            if "." in option and option.partition(".")[0] in options:
                return f"{key} is not there yet; to add it write +{key}=VALUE"
            if option not in options:
                return f"{key} is unknown to {group}={name}; {choose_from(option, options)}"
    return f"{key} is unknown to one of {group}={choice}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
