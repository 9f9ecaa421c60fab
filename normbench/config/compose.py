"""Hydra's part: the command line becomes cells. Nothing is trained, nothing is written.

Hydra raises its errors from deep inside; here each becomes one sentence.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

# Without it Hydra prints a trace and exits by itself.
os.environ["HYDRA_FULL_ERROR"] = "1"

import hydra
import yaml
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from normbench.config.cells import Cell, Settings
from normbench.config.files import CONF, SWEEPS, headline, load, names, unverified, usual_choices
from normbench.config.hydra_sweep import Collecting, Composed, composed, in_the_place_of_launchers
from normbench.config.parse import parse
from normbench.errors import BadInput, choose_from

LAUNCHERS = CONF / "hydra" / "launcher"
GRIDS = "grids"  # in a file of sweeps/

PLAIN = (
    "batch", "workers", "global_batch", "seed", "precision", "init_from", "loader",
    "runs", "jobs", "force", "resume", "seeds_together",
)  # fmt: skip


def compose(arguments: list[str]) -> tuple[list[Cell], Settings | None]:
    """The cells of a command line, in its order, and what holds for all of them.

    No cells and no settings mean that Hydra has answered by itself (--help, --cfg, completion).

    Raises:
        BadInput: the command line or a yaml cannot be used.
    """
    # hydra.main returns None, in a grid and in a single run alike: a list is the way out of it.
    found: list[Composed] = []

    def collect(config: DictConfig) -> None:
        found.append(composed(config, HydraConfig.get()))

    # Hydra's parser takes no option between two overrides.
    flags = [word for word in arguments if word in ("-m", "--multirun")]
    words = [word for word in arguments if word not in flags]
    arguments = flags + [_late(word) if flags else word for word in words]
    if flags and sys.stderr.isatty():
        print("composing the grid ...", file=sys.stderr)
    launcher = Collecting(found, lambda config: _further_grids(config, arguments))
    known = not any(re.match(r"-|[+~]*(sweeps|hydra)\b", word) for word in words)
    instead = in_the_place_of_launchers(launcher, mode_is_known=known)
    with _environment(arguments), _sentences(arguments), instead:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(collect)()
        # Only now: Hydra would print a line of its own about an error inside of `collect`.
        parsed = [_parsed(each) for each in found]
    if not parsed:
        return [], None
    if len(found) == 1:
        _require_multirun(found[0].hydra)
    by_id: dict[str, Cell] = {}
    for cell, _ in parsed:
        by_id.setdefault(cell.id, cell)
    if twice := sum(cell.trainer != by_id[cell.id].trainer for cell, _ in parsed):
        print(
            f"{twice} cells differ from another in hardware alone, which changes no result: each "
            "run is trained once, on the first given (to time hardware use normbench.bench)"
        )
    settings = {each for _, each in parsed}
    if len(settings) > 1:
        raise BadInput(
            "runs, jobs, force, resume, sweeps and hydra/launcher hold for all runs of a command "
            "line: give one value"
        )
    return list(by_id.values()), settings.pop()


def _further_grids(config: DictConfig, arguments: list[str]) -> list[list[str]]:
    """What a sweep asks for beside the grid of its `hydra.sweeper.params`, in words."""
    grids: Any = OmegaConf.to_container(config[GRIDS]) if config.get(GRIDS) else []
    return [_not_typed(grid, arguments) for grid in grids]


def _not_typed(grid: dict[str, Any], arguments: list[str]) -> list[str]:
    """A grid as one would type it, without what the command line says already.

    Who types a norm wants none of the options that the grid has for its own norms.
    """
    typed = {word.partition("=")[0].lstrip("+~") for word in arguments}
    return [
        _late(f"{key}={'null' if value is None else value}")
        for key, value in grid.items()
        if not {key, key.partition(".")[0]} & typed
    ]


def _late(word: str) -> str:
    """An option of a group, as norm.momentum=0.2, as a list of one.

    Before a grid Hydra composes once without its lists, with the default choice of every group,
    and an option that this choice happens not to have would be an error.
    """
    key, _, value = word.partition("=")
    group, _, option = key.partition(".")
    if group not in _groups() or not option or not value:
        return word
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException:  # Hydra will say so itself
        return word
    if override.is_sweep_override():
        return word
    # choice(null) is an error of Hydra's; of two cells that are one, one is kept.
    return f"{key}=null,null" if override.value() is None else f"{key}=choice({value})"


def _parsed(one: Composed) -> tuple[Cell, Settings]:
    sources = one.hydra.runtime.config_sources
    folders = [Path(source.path) for source in sources if source.schema == "file"]
    choices = one.choices
    found = {group: _yaml(folders, group, name) for group, name in choices.items() if name}
    paths = {group: path for group, path in found.items() if path is not None}
    files = {group: _file(path, path.stat().st_mtime_ns) for group, path in paths.items()}
    defaults = {group: files[group][0] if group in files else {} for group in found}
    marked = {group: file[1] for group, file in files.items()}
    config = one.resolved()
    config.pop(GRIDS, None)
    cell, settings = parse(config, choices, defaults, marked)
    return cell, replace(settings, launcher=_launcher(one.hydra))


@cache
def _file(path: Path, _time: int) -> tuple[dict[str, Any], frozenset[str]]:
    """The content of a yaml, which most cells of a grid share, and its unverified options."""
    return load(path), unverified(path)


def _launcher(own: HydraConf) -> str:
    """The options of a launcher that submits jobs; nothing for Hydra's usual one.

    Raises:
        BadInput: runs cannot be given to it.
    """
    options = OmegaConf.to_container(own.launcher, resolve=True)
    assert isinstance(options, dict)
    if options["_target_"].endswith(".BasicLauncher"):
        return ""
    if ".hydra_submitit_launcher." not in options["_target_"]:
        raise BadInput(
            f"hydra/launcher={own.runtime.choices['hydra/launcher']}: jobs=N trains that many runs "
            f"beside each other on this machine; {', '.join(names(LAUNCHERS))}, submitit_slurm and "
            "submitit_local submit them as jobs"
        )
    return json.dumps(options, sort_keys=True)


def _require_multirun(own: HydraConf) -> None:
    """A sweep file that asks for a grid gets one, or a word."""
    if own.mode != RunMode.MULTIRUN and own.sweeper.get("params"):
        raise BadInput(
            f"sweeps={own.runtime.choices.get('sweeps')} spans a grid, and a grid needs -m, or "
            "`mode: MULTIRUN` below `hydra:` in the file"
        )


def _yaml(folders: list[Path], group: str, name: str) -> Path | None:
    """The file of a group's choice, found as Hydra finds it; Hydra's own groups have none."""
    # Of two files of one name the first on the path counts, as it does for Hydra.
    for folder in folders:
        path = folder / group / f"{name}.yaml"
        if path.is_file():
            return path
    return None


@contextmanager
def _environment(arguments: list[str]) -> Iterator[None]:
    """What config.yaml takes from the environment, and the arguments where Hydra looks for them."""
    typed = sys.argv
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        # The folder above sweeps/ has others, and Hydra would take each for a group of its own:
        # runs/ for the key runs.
        path = Path(scratch) / "searchpath"
        path.mkdir()
        (path / "sweeps").symlink_to(SWEEPS)
        os.environ["NORMBENCH_SCRATCH"] = scratch
        os.environ["NORMBENCH_SEARCHPATH"] = str(path)
        os.environ["NORMBENCH_HELP"] = _sweeps_and_commands(arguments)
        sys.argv = ["normbench", *arguments]
        try:
            yield
        finally:
            sys.argv = typed


def _sweeps_and_commands(arguments: list[str]) -> str:
    """The end of the help. Hydra lists the groups in conf/ by itself, but no sweeps."""
    folders = [SWEEPS, *(folder / "sweeps" for folder in _config_dirs(arguments))]
    paths = [folder / f"{name}.yaml" for folder in folders for name in names(folder)]
    known = [f"    {path.stem:<20} {headline(path)}" for path in paths]
    return "\n".join(
        [
            "Sweeps (choose by -m sweeps=name; keys on the command line win; a grid needs no -m):",
            *known,
            "",
            "On a cluster (choose by -m hydra/launcher=name hydra.launcher.partition=...):",
            *(
                f"    {name:<20} {headline(LAUNCHERS / f'{name}.yaml')}"
                for name in names(LAUNCHERS)
            ),
            f"    {'submitit_local':<20} Jobs as processes of this machine, to try a sweep out.",
            "",
            "Other commands:",
            "  python -m normbench.prepare   files for loader=ffcv of a data set",
            "  python -m normbench.status    runs by state: finished, running, failed ...",
            "  python -m normbench.bench     what costs how much: layers, steps, plans, loaders",
            "  python -m normbench.probe     look inside networks, and the papers' figures of them",
            "  python -m normbench.cost      GPU hours of a command line before it is started",
            "  python -m normbench.report    tables and figures from finished runs, without torch",
            "  python -m normbench.dashboard W&B workspaces and report pages, from finished runs",
            "  python -m normbench.catalog   norms, models, data, recipes, regs, sweeps by name;",
            "                                models NAME norm=N: size, and what N reaches of it;",
            "                                recipes NAME images=N: what happens when",
        ]
    )


def _config_dirs(arguments: list[str]) -> list[Path]:
    """The folder of --config-dir, if one is given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", type=Path)
    folder = parser.parse_known_args(arguments)[0].config_dir
    return [folder] if folder else []


@contextmanager
def _sentences(arguments: list[str]) -> Iterator[None]:
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
        raise BadInput(_of_hydra(error, arguments)) from error
    except ValueError as error:  # Hydra's own
        about_group = "Config group override" in str(error)  # norm=4
        groups = f"; {', '.join(_groups())} take the name of a yaml file" if about_group else ""
        raise BadInput(f"{error}{groups}") from error


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
    if group == "hydra/launcher" and (name in names(LAUNCHERS) or "submitit" in name):
        return f"hydra/launcher={name} needs the extra slurm: pip install 'normbench[slurm]'"
    if group.startswith("hydra/"):
        return f"{group}={name} is unknown; {choose_from(name, error.options or names(LAUNCHERS))}"
    if "/" in group:  # model=timm/resnet50
        group, _, library = group.partition("/")
        return f"{group}={library}/{name}: write {group}={library} {group}.name={name}"
    # Hydra knows the options of a group; of a group that is none at all it knows nothing.
    return f"{group}={name} is unknown; {choose_from(name, error.options or names(CONF / group))}"


def _of_hydra(error: Exception, arguments: list[str]) -> str:
    text = str(error)
    if found := re.search(r"Key '(\w+)' is not in struct\s+full_key: ([\w.]+)", text):
        return _unknown_key(found[2], arguments)
    if found := re.search(r"Could not override '([\w.@/]+)'", text):
        return _unknown_key(found[1], arguments)
    if found := re.search(r"Ambiguous value for argument '(.*)'", text):
        return f"{found[1]}: several values make a grid, and a grid needs -m"
    if "requires --multirun" in text:
        return "several values make a grid, and a grid needs -m"
    if found := re.search(r"Missing mandatory value: (\w+)", text):
        return f"{found[1]} is missing: give {found[1]}=N, or a protocol that does"
    return _first_line(error)


def _unknown_key(key: str, arguments: list[str]) -> str:
    group, _, option = key.partition(".")
    known = _groups()
    if not option or group not in known:
        return f"{key} is unknown; {choose_from(group, [*PLAIN, *known, 'sweeps'])}"
    # Of a grid's choices the first that lacks the option: norm=bn,gn norm.groups=4.
    typed = [word.partition("=")[2] for word in arguments if word.startswith(f"{group}=")]
    for name in (typed[-1] if typed else usual_choices()[group]).split(","):
        for folder in (CONF, *_config_dirs(arguments)):
            path = folder / group / f"{name}.yaml"
            options = load(path).keys() - {"_target_"} if path.is_file() else {option}
            if "." in option and option.partition(".")[0] in options:
                return f"{key} is not there yet; to add it write +{key}=VALUE"
            if option not in options:
                return f"{key} is unknown to {group}={name}; {choose_from(option, options)}"
    return f"{key} is unknown to one of {group}={typed[-1] if typed else usual_choices()[group]}"


def _groups() -> list[str]:
    return sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
