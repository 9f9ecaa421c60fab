"""Compose the cells of a grid for normbench.

Hydra instantiates plugins from the namespace package `hydra_plugins` alone. So this file stands
here, without an `__init__.py`, and conf/hydra/sweeper/normbench.yaml names its class.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

#: Keys whose plain numbers need no composition of their own: they choose no file.
NUMBERS = ("batch", "workers", "global_batch", "seed")


class NormbenchSweeper(Sweeper):
    """Pass each cell of a grid to the task function instead of launching it.

    The task function is called as `task(config, numbers)`, once a cell, in the order of the command
    line; `config` has Hydra's part, too. Hydra takes some 45 ms for a composition, so cells that
    differ in plain numbers alone share one `config`, and `numbers` has the cell's own.

    Args:
        params: words of the grid in a file of sweeps/; those of the command line follow them.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params = dict(params or {})
        self.compositions: dict[tuple[str, ...], DictConfig] = {}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.loader = hydra_context.config_loader
        self.task: Any = task_function
        self.master_config = config

    def sweep(self, arguments: list[str]) -> None:
        """Compose the grid of `arguments`, and then each further one of the sweep's `grids`."""
        words = [_word(key, value) for key, value in self.params.items()] + arguments
        config = self._compose_grid(words)
        typed = {word.partition("=")[0].lstrip("+~") for word in arguments}
        for grid in config.get("grids") or []:
            self._compose_grid([*words, *_untyped_words(grid, typed)])

    def _compose_grid(self, words: Sequence[str]) -> DictConfig:
        """Compose the cells of one grid; return the configuration of its first."""
        first = None
        for cell in self._expand(words):
            numbers = {key: word for key, word in cell.items() if _is_number(key, word)}
            # All cells of a composition give the same numbers, if not the same values of them.
            kind = (*(word for key, word in cell.items() if key not in numbers), *sorted(numbers))
            if kind not in self.compositions:
                self.compositions[kind] = self.loader.load_sweep_config(
                    self.master_config, list(cell.values())
                )
            config = self.compositions[kind]
            first = config if first is None else first
            values = {key: int(word.partition("=")[2]) for key, word in numbers.items()}
            self.task(config, values)
        assert first is not None  # a list of values is never empty
        return first

    def _expand(self, words: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield the words of each cell by their keys; of a key given twice the last word counts.

        Raises:
            HydraException: a sweep has no list of values, as interval(0,1).
        """
        parser = OverridesParser.create(config_loader=self.loader)
        choices: dict[str, list[str]] = {}
        for override in parser.parse_overrides(list(words)):
            key = override.get_key_element()
            if not override.is_sweep_override():
                choices[key] = [f"{key}={override.get_value_element_as_str()}"]
            elif override.is_discrete_sweep():
                choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            else:
                raise HydraException(
                    f"{override.input_line}: a grid needs a list of values, as {key}=0.1,0.2"
                )
        for cell in itertools.product(*choices.values()):
            yield dict(zip(choices, cell, strict=True))


def _untyped_words(grid: Mapping[str, Any], typed: set[str]) -> list[str]:
    """Return the words of a further grid but for keys, and options of groups, that were typed.

    Whoever types a norm wants none of the options that a grid has for its own norms.
    """
    return [
        _word(key, value) for key, value in grid.items() if not {key, key.partition(".")[0]} & typed
    ]


def _word(key: str, value: Any) -> str:
    return f"{key}={'null' if value is None else value}"


def _is_number(key: str, word: str) -> bool:
    return key in NUMBERS and re.fullmatch(f"{key}=(0|[1-9][0-9]*)", word) is not None
