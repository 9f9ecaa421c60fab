"""The network of a finished run as a checkpoint has it.

A run is found by its id; its row says all that decides its network and its images, so the same cell
is composed from it again. `checkpoint=keep` and `checkpoint.epochs` decide what is kept.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.errors import BadInput
from normbench.results import CHECKPOINT, EPOCH_CHECKPOINT, Row, read
from normbench.training import checkpoint
from normbench.training.trainer import dataset_of, dtype_of, network_of

_PARALLEL = "module."  # what DistributedDataParallel writes before every name
RUN = re.compile("([0-9a-f]{12})(?:@([0-9]+|last))?")


@dataclass(frozen=True)
class Kept:
    """A finished run whose states are there, by the epoch after which they were."""

    row: Row
    cell: Cell
    folder: Path  # its own, whoever trained it
    states: dict[int, Path]
    whole: bool  # and not one of its states alone

    @property
    def last(self) -> int:
        return max(self.states)

    def network(self, epoch: int) -> nn.Module:
        """What evaluations see after `epoch`: the average of the weights, if there is one."""
        path = self.states[epoch]
        return loaded(self.cell, _evaluated(checkpoint.load(path)), str(path))


def kept(run: str, root: Path, more: Sequence[str] = ()) -> Kept:
    """The run with the id `run`.

    Args:
        run: twelve digits, or RUN@EPOCH for one of its states alone.
        root: of all runs.
        more: words of the command line that decide no number, as data.root=FOLDER.

    Raises:
        BadInput: there is no such run, it kept nothing, or its cell cannot be composed again.
    """
    found = RUN.fullmatch(run)
    assert found is not None
    id_, epoch = found.groups()
    rows = read(root, id_)
    if not rows:
        raise BadInput(
            f"ckpt={run}: no finished run of that id below runs={root}; "
            f"`python -m normbench.status runs={root}` lists them"
        )
    row = rows[0]
    cell = _cell(row, more)
    folder = root / row.sweep / row.id
    states = _states(_trained_in(row, root))
    if epoch is not None and states:
        wanted = max(states) if epoch == "last" else int(epoch)
        states = {number: path for number, path in states.items() if number == wanted}
    if not states:
        raise BadInput(
            f"ckpt={run}: {folder} has no such checkpoint; checkpoint=keep keeps the last one, "
            "checkpoint.epochs=[N] those of epochs, and force=true trains a finished run again"
        )
    return Kept(row, cell, folder, states, whole=epoch is None)


def all_kept(root: Path) -> list[str]:
    """The ids of all finished runs below `root` that have kept a state."""
    return [row.id for row in read(root) if any(_trained_in(row, root).glob("*.pt"))]


def _trained_in(row: Row, root: Path) -> Path:
    """The folder of the run that computed it, which may be of another sweep."""
    found = root.glob(f"*/{row.shared_with}") if row.shared_with else iter(())
    return next(found, root / row.sweep / row.id)


def loaded(cell: Cell, state: dict[str, Any], source: str) -> nn.Module:
    """The network of `cell` with the parameters and statistics of `state`.

    Raises:
        BadInput: these are of another network.
    """
    network = network_of(cell, dataset_of(cell)).to(dtype_of(cell))
    own = network.state_dict()
    lacking, strange = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    other = [key for key in own.keys() & state.keys() if own[key].shape != state[key].shape]
    if lacking or strange or other:
        told = {"lacks": lacking, "has besides": strange, "has of another shape": sorted(other)}
        words = [f"{what} {len(k)}, as {k[0]}" for what, k in told.items() if k]
        raise BadInput(
            f"ckpt={source}: it is of another network than {cell.title} (of its tensors it "
            f"{'; it '.join(words)}); norm=, model= and their options say which it was"
        )
    network.load_state_dict(state)
    return network


def of_file(cell: Cell, path: Path) -> nn.Module:
    """The network of `cell` with what a file has: a checkpoint of a run, or a state_dict.

    Raises:
        BadInput: there is no such file, or it holds neither.
    """
    try:
        state = checkpoint.load(path)
    except Exception as error:  # torch has many words for what is no such file
        raise BadInput(
            f"ckpt={path} cannot be read ({type(error).__name__}): it is what a run keeps, or what "
            "torch.save(network.state_dict(), FILE) writes"
        ) from None
    if not isinstance(state, dict):
        raise BadInput(f"ckpt={path}: it holds a {type(state).__name__} and no state_dict")
    if "model" in state and "optimizer" in state:
        state = _evaluated(state)
    state = state.get("state_dict", state)
    if all(key.startswith(_PARALLEL) for key in state):
        state = _within(state, _PARALLEL)
    return loaded(cell, state, str(path))


def _states(folder: Path) -> dict[int, Path]:
    pattern = re.compile(re.escape(EPOCH_CHECKPOINT).replace(r"\{\}", "([0-9]+)"))
    named = [(pattern.fullmatch(path.name), path) for path in folder.glob("*.pt")]
    found = {int(match[1]): path for match, path in named if match}
    if (path := folder / CHECKPOINT).exists():
        state = torch.load(path, map_location="meta", weights_only=True)
        found[-(-state["done"] // state["steps_per_epoch"])] = path
    return dict(sorted(found.items()))


def _cell(row: Row, more: Sequence[str]) -> Cell:
    (cell,), _ = compose([*_words(row), *more])
    if cell.id != row.id:
        raise BadInput(
            f"ckpt={row.id}: what its row says makes another run now, {cell.id}: the code is "
            "another, or a word of this command line decides numbers; a run says by itself what it "
            "is, and words such as data.root=FOLDER or trainer=cpu are all that can be added"
        )
    return cell


def _words(row: Row) -> list[str]:
    """What one would type for the run."""
    words = []
    for group in ("norm", "model", "data", "reg", "recipe"):
        library, _, own = str(getattr(row, group)).partition("/")
        words += [f"{group}={library}", *([f"{group}.name={own}"] if own else [])]
    fixed = row.protocol == "fixed_workers"
    words.append(f"protocol={row.protocol}")
    words.append(f"workers={row.workers}" if fixed else f"global_batch={row.global_batch}")
    words += [f"{name}={getattr(row, name)}" for name in ("batch", "seed", "precision")]
    return words + row.options.split()


def _evaluated(state: dict[str, Any]) -> dict[str, Any]:
    """Of a checkpoint the tensors that evaluations see."""
    average = state["average"]
    return state["model"] if average is None else _within(average, "network.")


def _within(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in state.items()}
