"""Hydra's grids, composed and not started: what stands in the place of its launchers."""

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.conf import HydraConf
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

NUMBERS = ("batch", "workers", "global_batch", "seed")


class Collecting(BasicLauncher):
    """Composes the cells of a grid and starts nothing.

    Cells that differ in plain numbers alone, as seed and batch, are composed once: Hydra takes
    0.05 s for each, and those are most of a grid.
    """

    def __init__(self, composed: list[tuple[DictConfig, HydraConf]]) -> None:
        super().__init__()
        self.composed = composed

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        before = len(self.composed)
        kinds: dict[tuple[str, ...], tuple[DictConfig, HydraConf]] = {}
        cells = []
        for index, words in enumerate(job_overrides):
            numbers = {word.partition("=")[0]: word for word in words if _is_number(word)}
            kind = tuple(word for word in words if word not in numbers.values())
            kind += tuple(sorted(numbers))
            if kind not in kinds:
                super().launch([words], initial_job_idx + index)
                kinds[kind] = self.composed.pop()
            config, own = kinds[kind]
            config = copy.deepcopy(config)
            for key, word in numbers.items():
                config[key] = int(word.partition("=")[2])
            cells.append((config, own))
        assert len(self.composed) == before
        self.composed += cells
        return []


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
