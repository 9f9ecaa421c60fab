"""Hydra's part: the command line becomes cells. Nothing is trained, nothing is written.

Hydra raises its errors from deep inside; here each becomes one sentence.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Without it Hydra prints a trace and exits by itself.
os.environ["HYDRA_FULL_ERROR"] = "1"

import hydra
import yaml
from hydra.conf import RuntimeConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from normbench.cells import Cell, Settings, parse
from normbench.errors import BadInput, choose_from
from normbench.home import CONF, ROOT, SWEEPS, headline, load, names

PLAIN = ("batch", "workers", "global_batch", "seed", "precision", "runs", "jobs", "force")


def compose(arguments: list[str]) -> tuple[list[Cell], Settings | None]:
    """The cells of a command line, in its order, and what holds for all of them.

    No cells and no settings mean that Hydra has answered by itself (--help, --cfg, completion).

    Raises:
        BadInput: the command line or a yaml cannot be used.
    """
    composed: list[tuple[DictConfig, RuntimeConf]] = []

    def collect(config: DictConfig) -> None:
        composed.append((config, HydraConfig.get().runtime))

    with _environment(arguments), _sentences():
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(collect)()
        # Only now: Hydra would print a line of its own about an error inside of `collect`.
        parsed = [_parsed(config, runtime) for config, runtime in composed]
    if not parsed:
        return [], None
    cells = list({cell.id: cell for cell, _ in parsed}.values())
    settings = {each for _, each in parsed}
    if len(settings) > 1:
        raise BadInput("runs, jobs and force hold for all runs of a command line: give one value")
    return cells, settings.pop()


def _parsed(config: DictConfig, runtime: RuntimeConf) -> tuple[Cell, Settings]:
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    choices = {str(group): name for group, name in runtime.choices.items()}
    folders = [Path(source.path) for source in runtime.config_sources if source.schema == "file"]
    defaults = {group: _yaml(folders, group, name) for group, name in choices.items() if name}
    return parse({str(key): value for key, value in resolved.items()}, choices, defaults)


def _yaml(folders: list[Path], group: str, name: str) -> Mapping[str, Any]:
    """The options of a group's choice, found as Hydra finds them; Hydra's own groups have none."""
    for folder in folders:
        path = folder / group / f"{name}.yaml"
        if path.is_file():
            return load(path)
    return {}


@contextmanager
def _environment(arguments: list[str]) -> Iterator[None]:
    """What config.yaml takes from the environment, and the arguments where Hydra looks for them."""
    typed = sys.argv
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        os.environ["NORMBENCH_SCRATCH"] = scratch
        os.environ["NORMBENCH_ROOT"] = str(ROOT)
        os.environ["NORMBENCH_HELP"] = _sweeps_and_commands()
        sys.argv = ["normbench", *arguments]
        try:
            yield
        finally:
            sys.argv = typed


def _sweeps_and_commands() -> str:
    known = [f"    {name:<16} {headline(SWEEPS / f'{name}.yaml')}" for name in names(SWEEPS)]
    return "\n".join(
        [
            "Sweeps (choose by -m sweeps=name; more keys on the command line win):",
            *known,
            "",
            "Other commands:",
            "  python -m normbench.report    tables and figures from finished runs, without torch",
            "  python -m normbench.catalog   norms, models, data, recipes, regs, sweeps by name",
        ]
    )


@contextmanager
def _sentences() -> Iterator[None]:
    """Errors of Hydra, OmegaConf and yaml as one sentence each."""
    try:
        yield
    except yaml.YAMLError as error:
        raise BadInput(_of_yaml(error)) from error
    except MissingConfigException as error:
        raise BadInput(_of_missing(error)) from error
    except OverrideParseException as error:
        raise BadInput(
            f"{error.override}: this is no key=value that Hydra can read; quote what the shell or "
            "Hydra would take apart, as in 'key=\"a, b\"'"
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise BadInput(_of_hydra(error)) from error
    except ValueError as error:  # Hydra's own, about norm=4
        groups = ", ".join(_groups())
        raise BadInput(f"{error}; {groups} take the name of one of their yaml files") from error


def _of_yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = (
        f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "a yaml file"
    )
    return f"{place} is no yaml: {getattr(error, 'problem', None) or error}"


def _of_missing(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _first_line(error)
    # Hydra knows the options of a group; of a group that is none at all it knows nothing.
    return f"{group}={name} is unknown; {choose_from(name, error.options or names(CONF / group))}"


def _of_hydra(error: Exception) -> str:
    text = str(error)
    if found := re.search(r"Key '(\w+)' is not in struct\s+full_key: ([\w.]+)", text):
        return _unknown_key(found[2])
    if found := re.search(r"Could not override '([\w.@/]+)'", text):
        return _unknown_key(found[1])
    if found := re.search(r"Ambiguous value for argument '(.*)'", text):
        return f"{found[1]}: several values make a grid, and a grid needs -m"
    if found := re.search(r"Missing mandatory value: (\w+)", text):
        return f"{found[1]} is missing: give {found[1]}=N, or a protocol that does"
    return _first_line(error)


def _unknown_key(key: str) -> str:
    group, _, option = key.partition(".")
    known = _groups()
    if option and group in known:
        options = {
            key for name in names(CONF / group) for key in load(CONF / group / f"{name}.yaml")
        }
        return (
            f"{key} is unknown to the chosen {group}; {choose_from(option, options - {'_target_'})}"
        )
    return f"{key} is unknown; {choose_from(group, [*PLAIN, *known, 'sweeps'])}"


def _groups() -> list[str]:
    return sorted(path.name for path in CONF.iterdir() if path.is_dir())


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
