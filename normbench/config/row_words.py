"""The words of the command line that make the run of a row again, and its cell."""

from collections.abc import Mapping, Sequence
from typing import Any

from normbench.config.cells import GROUPS, LEFT_OUT, OLD_NAMES, Cell, Settings, format_value
from normbench.config.compose import compose
from normbench.errors import BadInput
from normbench.results import Row


def words_of(row: Row) -> list[str]:
    """Return the words of the command line that make the run of `row`."""
    words = []
    for group in GROUPS:
        # timm/resnet50 was typed as model=timm model.name=resnet50.
        library, _, name = str(getattr(row, group)).partition("/")
        words += [f"{group}={library}", *([f"{group}.name={name}"] if name else [])]
    fixed = row.protocol == "fixed_workers"
    words.append(f"protocol={row.protocol}")
    words.append(f"workers={row.workers}" if fixed else f"global_batch={row.global_batch}")
    words += [f"{name}={getattr(row, name)}" for name in ("batch", "seed", "precision")]
    return words + row.options.split()


def _list_changed(cell: Cell, row: Row) -> list[str]:
    """Return words for options whose value in a yaml is not what it was when a row was trained."""
    words = []
    for group in filter(row.config.__contains__, GROUPS):
        for key, value in getattr(cell, group).options.items():
            if key in LEFT_OUT or key in ("name", "arguments"):  # the latter are always typed
                continue
            empty: Any = {} if isinstance(value, Mapping) else None  # which rows leave out
            before = row.config[group].get(OLD_NAMES.get(key, key), empty)
            if not isinstance(value, Mapping):
                words += [f"{group}.{key}={format_value(before)}"] if before != value else []
            elif before != {str(each): number for each, number in value.items()}:
                words += [f"~{group}.{key}", f"+{group}.{key}={format_value(before)}"]
    return words


def compose_again(row: Row, words: Sequence[str] = ()) -> tuple[Cell, Settings]:
    """Return the cell of the run of a row, and the settings of `words`, which are added to its own.

    Raises:
        BadInput: its words make no run, or another one than when it was trained.
    """
    typed = words_of(row)
    cells, settings = compose([*typed, *words])
    if settings is not None and cells[0].id != row.id:
        cells, settings = compose([*typed, *_list_changed(cells[0], row), *words])
    if settings is None or [cell.id for cell in cells] != [row.id]:
        raise BadInput(
            f"run {row.id} (norm={row.norm} batch={row.batch}) cannot be composed again: the "
            "code has changed, or a word of this command line changes results; words such as "
            "data.root=FOLDER or trainer=cpu do not"
        )
    return cells[0], settings
