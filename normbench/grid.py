"""Hydra's grids, composed and not started: what stands in the place of its launchers."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

Composed = tuple[DictConfig, HydraConf]
NUMBERS = ("batch", "workers", "global_batch", "seed")


class Collecting(Launcher):
    """Composes the cells of a grid, and of further grids, and starts nothing.

    Cells that differ in plain numbers alone, as seed and batch, are composed once: Hydra takes
    0.1 s for each, and those are most of a grid.

    Args:
        composed: where cells go.
        further: of the configuration of the first cell the words of each further grid.
    """

    def __init__(
        self, composed: list[Composed], further: Callable[[DictConfig], list[list[str]]]
    ) -> None:
        self.composed = composed
        self.further = further

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        del task_function
        self.loader = hydra_context.config_loader
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        self._collect(job_overrides)
        if initial_job_idx == 0:
            for words in self.further(self.composed[0][0]):
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
            kind = tuple(word for word in words if word not in numbers.values())
            kind += tuple(sorted(numbers))
            if kind not in kinds:
                kinds[kind] = self._compose(words)
            config, own = kinds[kind]
            config = copy.deepcopy(config)
            for key, word in numbers.items():
                config[key] = int(word.partition("=")[2])
            self.composed.append((config, own))

    def _compose(self, words: Sequence[str]) -> Composed:
        """As Hydra does before it starts a job."""
        config = self.loader.load_sweep_config(self.config, list(words))
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        own = [str(key) for key in config if key != "hydra"]
        return OmegaConf.masked_copy(config, own), HydraConfig.get()


def _is_number(word: str) -> bool:
    key, _, value = word.partition("=")
    return key in NUMBERS and re.fullmatch("0|[1-9][0-9]*", value) is not None


@contextmanager
def in_the_place_of_launchers(launcher: Launcher) -> Iterator[None]:
    """Whatever launcher is chosen, composing only collects; the sweep starts the runs.

    A launcher for clusters would compose anew on every node, from a command line alone.
    """
    plugins = Plugins.instance()

    def instead(
        hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> Launcher:
        launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        return launcher

    before, validate = plugins.instantiate_launcher, Sweeper.validate_batch_is_legal
    plugins.instantiate_launcher = instead  # type: ignore[method-assign]
    # Before a launch Hydra composes every cell to see whether it can; here the launch does no more.
    Sweeper.validate_batch_is_legal = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        plugins.instantiate_launcher = before  # type: ignore[method-assign]
        Sweeper.validate_batch_is_legal = validate  # type: ignore[method-assign]
