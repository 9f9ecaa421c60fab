"""Compose the command line into cells, by Hydra. Nothing is trained, nothing is written."""

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

# Without it Hydra prints a traceback and exits.
os.environ["HYDRA_FULL_ERROR"] = "1"

import hydra
from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from normbench.config import command_line
from normbench.config.bounds import require_usable
from normbench.config.cells import GROUPS, Cell, Settings
from normbench.config.choices import find_file, read_choice
from normbench.config.command_line import CommandLine, require_name
from normbench.config.files import (
    CONF,
    LAUNCHERS,
    SWEEPS,
    groups,
    names,
    require_sound,
)
from normbench.config.help_text import describe_groups, epilog
from normbench.config.hydra_errors import hydra_fails, one_sentence
from normbench.config.parse import parse, parse_numbers
from normbench.config.start import Start, described_options, described_run, is_id, split_start
from normbench.errors import BadInput

#: Interpolations that give every cell of a composition the same value.
_CONSTANT = r"hydra[.:]|oc\.env:"


def compose(arguments: list[str]) -> tuple[list[Cell], Settings | None]:
    """Return the cells of a command line, in its order, and the settings that hold for all.

    No cells and no settings mean that Hydra has answered by itself (--help, --cfg, completion).

    Raises:
        BadInput: the command line or a yaml cannot be used.
    """
    with one_sentence(arguments):
        line = command_line.read(arguments)
    for folder in line.config_dirs:
        require_sound(folder)
    compositions: dict[int, Composition] = {}
    starts: Starts = {}
    composed: list[tuple[Composition, tuple[Mapping[str, int], Mapping[str, Any]]]] = []

    # Hydra calls it for a single run, hydra_plugins/normbench_sweeper.py for each cell of a grid.
    # hydra.main returns None, so cells leave it by a list.
    def collect(
        config: DictConfig,
        numbers: Mapping[str, int] = MappingProxyType({}),
        exchanged: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if id(config) not in compositions:
            loader = GlobalHydra.instance().config_loader()
            compositions[id(config)] = Composition(config, loader, starts)
        composed.append((compositions[id(config)], (numbers, exchanged)))

    words = [_as_list_of_one(word) if line.multirun else word for word in line.overrides]
    if line.multirun and sys.stderr.isatty():
        print("composing the grid ...", file=sys.stderr)
    with _environment(line, words), one_sentence(words, line.config_dirs):
        try:
            with hydra_fails(line.config_dirs):
                hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(
                    collect
                )()
        except SystemExit as end:  # after --help, or a missing --package of --cfg
            if end.code:
                raise BadInput("--package names a part of the configuration, as norm") from None
        # Not inside of `collect`: Hydra would print a line of its own about an error there.
        parsed = [composition.parse(*differences) for composition, differences in composed]
    if not parsed:
        return [], None
    if len(composed) == 1:
        _require_multirun(composed[0][0].hydra)
    settings = {settings for _, settings in parsed}
    if len(settings) > 1:
        raise BadInput(
            "runs, reports, jobs, force, resume, sweeps and hydra/launcher hold for all runs of a "
            "command line: give one value"
        )
    return _count_seeds(_unique([cell for cell, _ in parsed])), settings.pop()


def _unique(cells: Sequence[Cell]) -> list[Cell]:
    """Return the first cell of each id, with a notice where others differ in hardware."""
    by_id: dict[str, Cell] = {}
    for cell in cells:
        by_id.setdefault(cell.id, cell)
    if repeated := sum(cell.trainer != by_id[cell.id].trainer for cell in cells):
        print(
            f"{repeated} cells differ from another in hardware alone, which changes no result: "
            "each run is trained once, as first typed (to time hardware use normbench.bench)"
        )
    for group in ("checkpoint", "probe", "loader", "logger"):
        if any(getattr(cell, group) != getattr(by_id[cell.id], group) for cell in cells):
            several = " (several probes are probe.kinds=[power,ratios])" if group == "probe" else ""
            print(
                f"{group}= has several values, which change no result: each run is trained once, "
                f"with the first of them{several}"
            )
    return list(by_id.values())


def _count_seeds(cells: Sequence[Cell]) -> list[Cell]:
    """Store in each cell its number of seeds in the command line."""
    keys = [replace(cell, seed=0).id for cell in cells]
    seeds = Counter(keys)
    return [replace(cell, command_seeds=seeds[key]) for cell, key in zip(cells, keys, strict=True)]


#: Compositions of runs with which others begin, by their words.
Starts: TypeAlias = "dict[tuple[str, ...], Composition]"


class Composition:
    """A configuration as Hydra composed it; its cells differ in plain numbers and in choices.

    Args:
        config: the configuration.
        loader: Hydra's, which composed it.
        starts: compositions of runs that `init_from` describes, which all compositions share.
    """

    def __init__(self, config: DictConfig, loader: ConfigLoader, starts: Starts) -> None:
        self.loader, self.starts = loader, starts
        keys = [str(key) for key in config if key != "hydra"]
        self.config = OmegaConf.masked_copy(config, keys)
        self.whole = config if "hydra" in config else None  # a single run comes without it
        self.hydra: HydraConf = config.hydra if self.whole else HydraConfig.get()
        self.choices = {str(group): name for group, name in self.hydra.runtime.choices.items()}
        self.parsed: dict[str, tuple[Cell, Settings]] = {}  # by what was exchanged

    @cached_property
    def _yamls(self) -> tuple[dict[str, Mapping[str, Any]], dict[str, frozenset[str]]]:
        """The content of the chosen yaml of each group, and its unverified options.

        Raises:
            BadInput: a choice, perhaps one of a yaml of the user's own, is no name.
        """
        contents: dict[str, Mapping[str, Any]] = {}
        without_source: dict[str, frozenset[str]] = {}
        for group, name in self.choices.items():
            if name and not group.startswith("hydra/"):
                if isinstance(name, str):  # `parse` refuses a list of names
                    require_name(group, name)
                path = find_file(self.hydra, group, name)
                chosen = ({}, frozenset()) if path is None else read_choice(path)
                contents[group], without_source[group] = chosen
        return contents, without_source

    def parse(
        self, numbers: Mapping[str, int], exchanged: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[Cell, Settings]:
        """Return a cell, and the settings of its command line.

        Args:
            numbers: of the cell, as batch.
            exchanged: names of the choices that differ from those of the composition, all files of
                conf/, and then values of options, as of norm.eps.
        """
        if self._follows_numbers or self.config.get("init_from"):
            return self._parse(numbers, exchanged)
        key = repr(exchanged)
        if key not in self.parsed:
            self.parsed[key] = self._parse(numbers, exchanged)
        cell, settings = self.parsed[key]
        resolved = {**self._resolved, **numbers}
        return replace(cell, **parse_numbers(cell.protocol, resolved, cell.task)), settings

    def _parse(
        self, numbers: Mapping[str, int], exchanged: Mapping[str, Any]
    ) -> tuple[Cell, Settings]:
        if self._follows_numbers:
            for key, number in numbers.items():
                self.config[key] = number
            config = self._resolve()
        else:
            config = {**self._resolved, **numbers}
        contents, unverified = self._yamls
        names = {group: name for group, name in exchanged.items() if group in GROUPS}
        for group, name in names.items():
            content, without_source = read_choice(CONF / group / f"{name}.yaml")
            contents = {**contents, group: content}
            unverified = {**unverified, group: without_source}
            config[group] = content
        for key, value in exchanged.items():
            group, _, option = key.partition(".")
            if option:
                require_usable(group, {option: value})
                config[group] = {**config[group], option: value}
        config.pop("grids", None)  # of a file of sweeps/, which the sweeper reads
        described = self._compose_start(config.get("init_from"), numbers)
        start = None
        if described is not None:
            description, epoch = split_start(config["init_from"])
            start = Start(described.title, described_options(description))
            config["init_from"] = f"{described.id}@{epoch}"
        cell, settings = parse(config, {**self.choices, **names}, contents, unverified)
        return replace(cell, start=start), replace(settings, launcher=self._launcher)

    def _compose_start(self, init_from: object, numbers: Mapping[str, int]) -> Cell | None:
        """Return the cell that `init_from` describes; None if it describes none.

        Raises:
            BadInput: it cannot be composed; the sentence begins with `init_from`.
        """
        if init_from is None or is_id(run := split_start(init_from)[0]):
            return None
        words, numbers = described_run(self.hydra.overrides.task, numbers, run)
        try:
            with one_sentence(words):
                key = (*words, *sorted(numbers))  # other keys of numbers leave other values
                if key not in self.starts:
                    config = self.loader.load_configuration(
                        self.hydra.job.config_name,
                        [*self.hydra.overrides.hydra, *words],
                        RunMode.RUN,
                    )
                    self.starts[key] = Composition(config, self.loader, self.starts)
                return self.starts[key].parse(numbers)[0]
        except BadInput as error:
            raise BadInput(f"init_from={init_from}: {error}") from None

    @cached_property
    def _follows_numbers(self) -> bool:
        """An option follows from another one, as recipe.lr='${batch}'."""
        text = repr(OmegaConf.to_container(self.config, resolve=False))
        return re.search(rf"\$\{{(?!{_CONSTANT})", text) is not None

    @cached_property
    def _resolved(self) -> dict[str, Any]:
        return self._resolve()

    def _resolve(self) -> dict[str, Any]:
        if self.whole is not None:
            # For ${hydra:...}. Not once a cell: it copies all, and takes 3 ms.
            HydraConfig.instance().set_config(self.whole)
        resolved = OmegaConf.to_container(self.config, resolve=True, throw_on_missing=True)
        assert isinstance(resolved, dict)
        for group in GROUPS:  # here and not in `parse`: once for all cells of a composition
            if isinstance(options := resolved.get(group), dict):
                if group == "recipe" and isinstance(rates := options.get("rates"), dict):
                    options["rates"] = _with_numbers(rates)
                require_usable(group, options)
        return {str(key): value for key, value in resolved.items()}

    @cached_property
    def _launcher(self) -> str:
        """The options of a launcher that submits jobs, as JSON; "" for Hydra's default.

        Raises:
            BadInput: runs cannot be given to it.
        """
        options = OmegaConf.to_container(self.hydra.launcher, resolve=True)
        assert isinstance(options, dict)
        if options["_target_"].endswith(".BasicLauncher"):
            return ""
        if ".hydra_submitit_launcher." not in options["_target_"]:
            raise BadInput(
                f"hydra/launcher={self.choices['hydra/launcher']}: jobs=N trains that many runs at "
                f"a time on this machine; {', '.join(names(LAUNCHERS))}, submitit_slurm and "
                "submitit_local submit them as jobs"
            )
        return json.dumps(options, sort_keys=True)


def _with_numbers(rates: dict[Any, Any]) -> dict[Any, Any]:
    """Return learning rates with numbers as keys; that of +recipe.rates.4=0.02 is text to Hydra."""
    if all(str(key).isdecimal() and not isinstance(rate, dict) for key, rate in rates.items()):
        return {int(key): rate for key, rate in rates.items()}
    return rates


def _as_list_of_one(word: str) -> str:
    """Return an option of a group, as norm.momentum=0.2, as a list of one value.

    Hydra composes once without the lists of a grid, with the default choice of every group, and an
    option that this choice lacks would be an error there.
    """
    key, _, value = word.partition("=")
    group, _, option = key.partition(".")
    if group not in groups() or not option or not value:
        return word
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException:  # Hydra will say so itself
        return word
    if override.is_sweep_override():
        return word
    # choice(null) is an error of Hydra's; of two equal cells one is kept.
    return f"{key}=null,null" if override.value() is None else f"{key}=choice({value})"


def _require_multirun(hydra: HydraConf) -> None:
    """Raise `BadInput` if a file of sweeps/ spans a grid and -m is missing."""
    if hydra.mode != RunMode.MULTIRUN and hydra.sweeper.get("params"):
        raise BadInput(
            f"sweeps={hydra.runtime.choices.get('sweeps')} spans a grid, and a grid needs -m, or "
            "`mode: MULTIRUN` below `hydra:` in the file"
        )


@contextmanager
def _environment(line: CommandLine, words: Sequence[str]) -> Iterator[None]:
    """Set the variables that config.yaml reads, and the arguments where Hydra looks for them."""
    argv = sys.argv
    with tempfile.TemporaryDirectory(prefix="normbench-") as scratch:
        # Hydra takes every folder beside sweeps/ for a group, so runs/ would hide the key runs.
        path = Path(scratch) / "searchpath"
        path.mkdir()
        (path / "sweeps").symlink_to(SWEEPS)
        os.environ["NORMBENCH_SCRATCH"] = scratch
        os.environ["NORMBENCH_SEARCHPATH"] = str(path)
        os.environ["NORMBENCH_GROUPS"] = describe_groups(line.config_dirs)
        os.environ["NORMBENCH_HELP"] = epilog(line.config_dirs)
        # Hydra's parser takes no option between two overrides.
        sys.argv = ["normbench", *line.options, "--", *words]
        try:
            yield
        finally:
            sys.argv = argv
