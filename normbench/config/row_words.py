"""The words of the command line that make the run of a row again, and its cell."""

from collections.abc import Sequence

from normbench.config.cells import GROUPS, Cell, Settings
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


def compose_again(row: Row, words: Sequence[str] = ()) -> tuple[Cell, Settings]:
    """Return the cell of the run of a row, and the settings of `words`, which are added to its own.

    Raises:
        BadInput: its words make no run, or another one than when it was trained.
    """
    cells, settings = compose([*words_of(row), *words])
    if settings is None or [cell.id for cell in cells] != [row.id]:
        raise BadInput(
            f"run {row.id} (norm={row.norm} batch={row.batch}) cannot be composed again: the "
            "code has changed, or a word of this command line changes results; words such as "
            "data.root=FOLDER or trainer=cpu do not"
        )
    return cells[0], settings
