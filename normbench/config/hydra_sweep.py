"""Hydra's grids, composed and not started: what stands in the place of its launchers."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

NUMBERS = ("batch", "workers", "global_batch", "seed")


class Composed(NamedTuple):
    """A cell: its configuration but for plain numbers, which cells of one configuration differ in,
    Hydra's own part of it, and the name chosen in each group."""

    config: DictConfig
    hydra: HydraConf
    choices: Mapping[str, str]
    numbers: Mapping[str, int]

    def resolved(self) -> dict[str, Any]:
        """The configuration with its numbers, without interpolations."""
        for key, number in self.numbers.items():
            self.config[key] = number
        plain = OmegaConf.to_container(self.config, resolve=True, throw_on_missing=True)
        assert isinstance(plain, dict)
        return {str(key): value for key, value in plain.items()}


def composed(config: DictConfig, own: HydraConf) -> Composed:
    """A cell as Hydra has it."""
    choices = {str(group): name for group, name in own.runtime.choices.items()}
    return Composed(config, own, choices, {})


@dataclass
class Frame:
    """Cells that differ in choices of certain groups, and in values: composed once for each choice.

    A file that stands in its group's place alone puts there the same whatever is chosen in others,
    so what one composition has there is what every other would have.
    """

    first: Composed
    parts: dict[tuple[str, str], DictConfig] = field(default_factory=dict)


class Collecting(Launcher):
    """Composes the cells of a grid, and of further grids, and starts nothing.

    Hydra takes 0.15 s for a composition, so it is asked once for each choice of a group, and not
    for each combination of choices, values and seeds.

    Args:
        found: where cells go.
        further: of the configuration of the first cell the words of each further grid.
    """

    def __init__(
        self, found: list[Composed], further: Callable[[DictConfig], list[list[str]]]
    ) -> None:
        self.found = found
        self.further = further
        self.frames: dict[tuple[str, ...], Frame] = {}
        self.read: dict[str, Override] = {}  # words, of which a grid has few

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        del task_function
        self.loader = hydra_context.config_loader
        self.config = config
        # Options of the launcher that follow from keys of the cell, as ${trainer.devices}.
        options = OmegaConf.to_container(config.hydra.launcher, resolve=False)
        self.each_alone = re.search(r"\$\{(?!hydra[.:]|oc\.|\.)", repr(options)) is not None
        assert isinstance(self.loader, ConfigLoaderImpl)
        # With the folders of the search path, which only what composes knows.
        _, self.files = self.loader._parse_overrides_and_create_caching_repo(
            config.hydra.job.config_name, list(config.hydra.overrides.hydra)
        )

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        self._collect(job_overrides)
        if initial_job_idx == 0:
            for words in self.further(self.found[0].config):
                self._collect(self._product(words))
        return []

    def _product(self, words: Sequence[str]) -> list[list[str]]:
        """The cells of what was asked for with `words` behind it, the last of a key counts."""
        own = [f"{key}={value}" for key, value in self.config.hydra.sweeper.params.items()]
        typed = [*own, *self.config.hydra.overrides.task, *words]
        overrides = OverridesParser.create(config_loader=self.loader).parse_overrides(typed)
        (cells,) = BasicSweeper.split_arguments(overrides, None)
        return cells

    def _collect(self, cells: Sequence[Sequence[str]]) -> None:
        kinds: dict[tuple[str, ...], Composed] = {}
        for words in cells:
            numbers = {word.partition("=")[0]: word for word in words if _is_number(word)}
            numbers = {} if self.each_alone else numbers
            kind = tuple(word for word in words if word not in numbers.values())
            kind += tuple(sorted(numbers))
            if kind not in kinds:
                kinds[kind] = self._compose(words)
            own = {key: int(word.partition("=")[2]) for key, word in numbers.items()}
            self.found.append(kinds[kind]._replace(numbers=own))

    def _compose(self, words: Sequence[str]) -> Composed:
        """The cell of `words`, as Hydra would compose it."""
        overrides = [self._override(word) for word in words]
        if self.each_alone or not all(map(self._is_plain, overrides)):
            return self._by_hydra(words)  # of + and ~ the order counts
        chosen = {each.key_or_group: each for each in overrides if self._stands_alone(each)}
        values = [each for each in overrides if self._is_value(each)]
        rest = [each for each in overrides if each not in values]
        others = [str(each.input_line) for each in rest if each not in chosen.values()]
        choices = {group: str(each.value()) for group, each in chosen.items()}
        key = (*others, *sorted(choices))
        frame = self.frames.get(key)
        if frame is None or not frame.parts.keys() >= choices.items():
            whole = self._by_hydra([str(each.input_line) for each in rest])
            frame = self.frames.setdefault(key, Frame(whole))
            frame.parts |= {(group, name): whole.config[group] for group, name in choices.items()}
        config = copy.deepcopy(frame.first.config)
        for group, name in choices.items():
            config[group] = frame.parts[group, name]
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        return Composed(config, frame.first.hydra, {**frame.first.choices, **choices}, {})

    def _override(self, word: str) -> Override:
        if word not in self.read:
            parser = OverridesParser.create(config_loader=self.loader)
            self.read[word] = parser.parse_override(word)
        return self.read[word]

    def _stands_alone(self, override: Override) -> bool:
        """It chooses a file of a group that fills the group's place and no other."""
        group, name = override.key_or_group, override.value()
        if not isinstance(name, str) or not self.files.group_exists(group):
            return False
        found = self.files.load_config(f"{group}/{name}")
        return found is not None and not found.header.get("package") and not found.defaults_list

    def _is_value(self, override: Override) -> bool:
        """It gives a value to a key of the configuration; Hydra's own are none of them."""
        key = override.key_or_group
        return not self.files.group_exists(key) and not key.startswith("hydra.")

    @staticmethod
    def _is_plain(override: Override) -> bool:
        """As key=value, without + or ~ or the package of another group."""
        return override.type is OverrideType.CHANGE and override.package is None

    def _by_hydra(self, words: Sequence[str]) -> Composed:
        """As Hydra does before it starts a job."""
        config = self.loader.load_sweep_config(self.config, list(words))
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        OmegaConf.set_struct(own, True)  # a copy has forgotten it
        return composed(own, HydraConfig.get())


def _is_number(word: str) -> bool:
    key, _, value = word.partition("=")
    return key in NUMBERS and re.fullmatch("0|[1-9][0-9]*", value) is not None


@contextmanager
def in_the_place_of_launchers(launcher: Launcher, *, mode_is_known: bool) -> Iterator[None]:
    """Whatever launcher is chosen, composing only collects; the sweep starts the runs.

    A launcher for clusters would compose anew on every node, from a command line alone.

    Args:
        launcher: the one that collects.
        mode_is_known: no yaml can ask for a grid but by the flag -m, so that Hydra need not compose
            everything once to find out.
    """
    plugins = Plugins.instance()

    def instead(
        hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> Launcher:
        launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        return launcher

    before, validate = plugins.instantiate_launcher, Sweeper.validate_batch_is_legal
    mode = Hydra.get_mode
    plugins.instantiate_launcher = instead  # type: ignore[method-assign]
    # Before a launch Hydra composes every cell to see whether it can; here the launch does no more.
    Sweeper.validate_batch_is_legal = lambda *_: None  # type: ignore[method-assign]
    if mode_is_known:
        Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = mode  # type: ignore[method-assign]
        plugins.instantiate_launcher = before  # type: ignore[method-assign]
        Sweeper.validate_batch_is_legal = validate  # type: ignore[method-assign]
