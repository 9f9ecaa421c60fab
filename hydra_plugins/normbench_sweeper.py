"""Compose the cells of a grid for normbench.

Hydra instantiates plugins from the namespace package `hydra_plugins` alone. So this file stands
here, without an `__init__.py`, and conf/hydra/sweeper/normbench.yaml names its class.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from fractions import Fraction
from math import ceil, isfinite, prod
from typing import Any, TypeAlias

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, RangeSweep, Sweep
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from normbench.config.cells import GROUPS
from normbench.config.choices import exchangeable_groups, find_file, read_choice
from normbench.config.files import CONF
from normbench.config.parse import NUMBERS

#: An option of a group with a value that Hydra reads as JSON does.
PLAIN_OPTION = re.compile(
    rf"({'|'.join(GROUPS)})\.\w+=(true|false|null|-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?)"
)

#: A larger grid is a typing error, such as a range to 1e9 or one range too many.
MOST_CELLS = 100_000

#: Each word of a grid, with the number of its values.
Grid: TypeAlias = Mapping[str, tuple[Override, int]]


class NormbenchSweeper(Sweeper):
    """Pass each cell of a grid to the task function instead of launching it.

    The task function is called as `task(config, numbers, exchanged)`, once a cell, in the order of
    the command line; `config` has Hydra's part, too. Hydra takes some 100 ms for a composition, so
    cells share one `config` if they differ in plain numbers and in exchangeable choices and options
    alone; `numbers` and `exchanged` have the cell's own.

    Args:
        params: words of the grid in a file of sweeps/; those of the command line follow them.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params = dict(params or {})
        self.compositions: dict[tuple[str, ...], list[SharedComposition]] = {}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.loader = hydra_context.config_loader
        self.task: Any = task_function
        self.master_config = config

    def sweep(self, arguments: list[str]) -> None:
        """Compose the grid of `arguments`, and then each further one of the sweep's `grids`.

        Raises:
            HydraException: a grid has no cell, or all together have more than `MOST_CELLS`.
        """
        words = [_word(key, value) for key, value in self.params.items()] + arguments
        grids = [self._parse_grid(words)]
        _require_size(grids)  # before a single value is written out
        typed = {_key(word) for word in arguments}
        cell = next(_cells(grids[0]))
        first = self._compose(cell, _numbers(cell).keys(), _exchangeable(cell)).config
        for grid in _further_grids(first, self.params):
            kept = [word for word in words if f"~{_key(word)}" not in grid]
            grids.append(self._parse_grid([*kept, *_untyped_words(grid, typed)]))
        _require_size(grids)
        for grid in grids:
            for cell in _cells(grid):
                numbers, values = _numbers(cell), _exchangeable(cell)
                composition = self._compose(cell, numbers.keys(), values)
                self.task(composition.config, numbers, composition.exchanged(values))

    def _compose(
        self, cell: Mapping[str, str], numbers: Set[str], values: Mapping[str, str]
    ) -> "SharedComposition":
        """Return the composition of a cell, which may be that of another one.

        Args:
            cell: its words by their keys.
            numbers: keys that have plain numbers.
            values: choices and options that may be exchanged, as `_exchangeable` returns them.
        """
        # Cells of one composition give the same keys, with values of their own.
        rest = (word for key, word in cell.items() if key not in numbers | values.keys())
        candidates = self.compositions.setdefault((*rest, *sorted(numbers), *sorted(values)), [])
        for composition in candidates:
            if composition.serves(values):
                return composition
        config = self.loader.load_sweep_config(self.master_config, list(cell.values()))
        candidates.append(SharedComposition(config, values))
        return candidates[-1]

    def _parse_grid(self, words: Sequence[str]) -> Grid:
        """Return the parsed words of a grid by their keys; the last word of a key counts.

        Raises:
            HydraException: a sweep has no list of values, as interval(0,1).
        """
        parser = OverridesParser.create(config_loader=self.loader)
        return {
            override.get_key_element(): (override, _count(override))
            for override in parser.parse_overrides(list(words))
        }


class SharedComposition:
    """A configuration that Hydra composed, for all cells that differ in what is exchangeable.

    Args:
        config: the configuration.
        values: choices and options of its cell, as `_exchangeable` returns them.
    """

    def __init__(self, config: DictConfig, values: Mapping[str, str]) -> None:
        self.config, self.values = config, values
        self.exchangeable = exchangeable_groups(config)
        self.options: dict[tuple[str, str], Set[str]] = {}  # of choices that are files of conf/

    def exchanged(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the choices that differ from the composed ones, and the values of all options.

        These are typed for every choice of their group.
        """
        names = {group: values[group] for group in GROUPS if group in values}
        options = {key: json.loads(value) for key, value in values.items() if key not in names}
        return {key: name for key, name in names.items() if name != self.values[key]} | options

    def serves(self, values: Mapping[str, str]) -> bool:
        """Return True if these choices and options can take the place of the composed ones."""
        if self.exchangeable is None:
            return values == self.values
        changed = {group for group in GROUPS if values.get(group) != self.values.get(group)}
        return changed <= self.exchangeable and all(self._takes(each, values) for each in changed)

    def _takes(self, group: str, values: Mapping[str, str]) -> bool:
        """Return True if the choice of a group is a file of conf/ that has the typed options."""
        name = values[group]
        if (group, name) not in self.options:  # a grid asks for the same few names in each cell
            path = find_file(self.config.hydra, group, name)
            ours = path is not None and path.is_relative_to(CONF)
            self.options[group, name] = read_choice(path)[0].keys() if path and ours else set()
        typed = {key.partition(".")[2] for key in values if key.startswith(f"{group}.")}
        return typed | {"_target_"} <= self.options[group, name]


def _numbers(cell: Mapping[str, str]) -> dict[str, int]:
    """Return the plain numbers of a cell by their keys."""
    return {key: int(word.partition("=")[2]) for key, word in cell.items() if _is_number(key, word)}


def _exchangeable(cell: Mapping[str, str]) -> dict[str, str]:
    """Return by its key each choice of a group, and each option if its value is plain.

    A group with another option is left out.
    """
    plain = [key for key, word in cell.items() if key in GROUPS or PLAIN_OPTION.fullmatch(word)]
    fixed = {_group(key) for key in cell.keys() - set(plain)}
    return {key: cell[key].partition("=")[2] for key in plain if _group(key) not in fixed}


def _group(key: str) -> str:
    """Return the group of a key: norm of norm, +norm.eps or norm@model."""
    return re.split("[.@]", _key(key))[0]


def _count(override: Override) -> int:
    """Return the number of values of a word, without writing out a range.

    Raises:
        HydraException: it has none, or no list of values.
    """
    if not override.is_sweep_override():
        return 1
    key, value, word = override.get_key_element(), override.value(), override.input_line
    if not override.is_discrete_sweep():
        raise HydraException(f"{word}: a grid needs a list of values, as {key}=0.1,0.2")
    if isinstance(value, RangeSweep):
        ends = (value.start, value.stop, value.step)
        numbers = [Fraction(x) for x in ends if isinstance(x, int | float) and isfinite(x)]
        if len(numbers) < len(ends) or not value.step:
            raise HydraException(f"{word}: a range is START,STOP or START,STOP,STEP, as range(0,5)")
        start, stop, step = numbers
        number = max(0, ceil((stop - start) / step))
    elif isinstance(value, ChoiceSweep):
        if any(isinstance(each, Sweep | Glob) for each in value.list):
            raise HydraException(
                f"{word}: range(), glob() and choice() stand alone, not in a list; a glob takes "
                "several names, as norm=glob([bn,gn*])"
            )
        number = len(value.list)
    else:
        number = sum(1 for _ in override.sweep_string_iterator())  # names of files
    if not number:
        raise HydraException(f"{word}: there is no such value, and a grid needs one of {key}")
    return number


def _require_size(grids: Sequence[Grid]) -> None:
    """Raise `HydraException` if the grids have more than `MOST_CELLS` cells."""
    sizes = [prod(number for _, number in grid.values()) for grid in grids]
    if sum(sizes) > MOST_CELLS:
        largest, number = max(grids[sizes.index(max(sizes))].values(), key=lambda entry: entry[1])
        raise HydraException(
            f"{largest.input_line}: the grid has {_digits(sum(sizes))} cells, of which this word "
            f"makes {_digits(number)}; one command takes {MOST_CELLS:,}"
        )


def _digits(number: int) -> str:
    return f"{number:,}" if number < 10**15 else f"{Decimal(number):.1e}"


def _cells(grid: Grid) -> Iterator[dict[str, str]]:
    """Yield the words of each cell by their keys."""
    choices = {
        key: [f"{key}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [f"{key}={override.get_value_element_as_str()}"]
        for key, (override, _) in grid.items()
    }
    for cell in itertools.product(*choices.values()):
        yield dict(zip(choices, cell, strict=True))


def _further_grids(config: DictConfig, keys: Collection[str]) -> Sequence[Mapping[str, Any]]:
    """Return the `grids` of a file of sweeps/, whose first grid has the keys `keys`.

    Raises:
        HydraException: they are no list of grids, or leave out what the first grid does not have.
    """
    grids = config.get("grids") or []
    if not isinstance(grids, Sequence) or not all(isinstance(each, Mapping) for each in grids):
        raise HydraException(f"grids={grids}: it is a list of grids, each as norm: bn,gn")
    for key, value in ((str(key), value) for grid in grids for key, value in grid.items()):
        if key.startswith("~") and value is not None:
            raise HydraException(f"grids: {key}: {value}: write {key}: null to leave out a word")
        if key.startswith("~") and key[1:] not in keys:
            raise HydraException(
                f"grids: {key}: the first grid lacks it; it has {', '.join(keys) or 'no word'}"
            )
    return grids


def _untyped_words(grid: Mapping[str, Any], typed: set[str]) -> list[str]:
    """Return the words of a further grid but for keys, and options of groups, that were typed.

    Whoever types a norm wants none of the options that a grid has for its own norms. A key as
    ~model.width only leaves out the first grid's word.
    """
    return [
        _word(key, value)
        for key, value in grid.items()
        if not str(key).startswith("~") and not {str(key), str(key).partition(".")[0]} & typed
    ]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _word(key: str, value: Any) -> str:
    return f"{key}={'null' if value is None else value}"


def _is_number(key: str, word: str) -> bool:
    return key in NUMBERS and re.fullmatch(f"{key}=(0|[1-9][0-9]*)", word) is not None
