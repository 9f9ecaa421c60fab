"""Networks of finished runs and of files, as a checkpoint has them.

A run is found by its id; its row has all that decides its network and its images, so the same cell
is composed from it again. `checkpoint=keep` and `checkpoint.epochs` decide what a run keeps.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from normbench.config.cells import Cell
from normbench.config.row_words import compose_again
from normbench.errors import BadInput
from normbench.results import CHECKPOINT, EPOCH_CHECKPOINT, Row, read
from normbench.training import checkpoint
from normbench.training.experiment import Experiment
from normbench.training.hardware import weight_dtype

RUN = re.compile("([0-9a-f]{12})(?:@([0-9]+|last))?")
_DDP_PREFIX = "module."  # of every name in a state_dict of DistributedDataParallel


@dataclass(frozen=True)
class TrainedRun:
    """A finished run with its checkpoints, by the epoch after which they were written."""

    row: Row
    cell: Cell
    folder: Path  # of this run, though another may have trained for it
    checkpoints: dict[int, Path]
    all_epochs: bool  # False: one was chosen by RUN@EPOCH

    @property
    def last_epoch(self) -> int:
        return max(self.checkpoints)

    def step(self, epoch: int) -> int:
        """Return the steps until the end of `epoch`, of which the last one may be a part."""
        steps, steps_per_epoch = self._position
        return min(epoch * steps_per_epoch, steps)

    @cached_property
    def _position(self) -> tuple[int, int]:
        """The steps until the last checkpoint, and those of an epoch."""
        return _read_position(self.checkpoints[self.last_epoch])

    def network(self, epoch: int) -> nn.Module:
        """Return the network that evaluations use after `epoch`: the average, if there is one."""
        path = self.checkpoints[epoch]
        return _load(self.cell, _evaluated_state(checkpoint.load_state(path)), str(path))


def find_run(run: str, root: Path, words: Sequence[str] = ()) -> TrainedRun:
    """Return the finished run of an id, or of RUN@EPOCH with that checkpoint alone.

    `words` of the command line may change the run's, if they change no number: data.root=FOLDER.

    Raises:
        BadInput: there is no such run or checkpoint, or its cell cannot be composed again.
    """
    match = RUN.fullmatch(run)
    assert match is not None
    id_, epoch = match.groups()
    rows = read(root, id_)
    if not rows:
        raise BadInput(
            f"ckpt={run}: no finished run of that id below runs={root}; "
            f"`python -m normbench.status runs={root}` lists the ids"
        )
    row = rows[0]
    cell, _ = compose_again(row, words)
    folder = root / row.sweep / row.id
    checkpoints = _find_checkpoints(_training_folder(row, root))
    if epoch is not None and checkpoints:
        chosen = max(checkpoints) if epoch == "last" else int(epoch)
        checkpoints = {number: path for number, path in checkpoints.items() if number == chosen}
    if not checkpoints:
        raise BadInput(
            f"ckpt={run}: {folder} has no such checkpoint; checkpoint=keep keeps the last one, "
            "checkpoint.epochs=[N] those of epochs, and force=true trains a finished run again"
        )
    return TrainedRun(row, cell, folder, checkpoints, all_epochs=epoch is None)


def runs_with_checkpoints(root: Path) -> list[str]:
    """Return the ids of all finished runs below `root` that have kept a checkpoint."""
    return [row.id for row in read(root) if any(_training_folder(row, root).glob("*.pt"))]


def load_file(cell: Cell, path: Path) -> nn.Module:
    """Return the network of `cell` with the tensors of a checkpoint of a run, or of a state_dict.

    Raises:
        BadInput: the file cannot be read, or is of another network.
    """
    try:
        if path.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(path)
        else:
            state = checkpoint.load_state(path)
    except Exception as error:  # torch raises many types for a file that is no checkpoint
        raise BadInput(
            f"ckpt={path} cannot be read ({type(error).__name__}); it must be a checkpoint of a "
            "run, or a state_dict by torch.save or safetensors.torch.save_file"
        ) from None
    if not isinstance(state, dict):
        raise BadInput(f"ckpt={path}: it holds a {type(state).__name__} and no state_dict")
    if "model" in state and "optimizer" in state:
        state = _evaluated_state(state)
    state = state.get("state_dict", state)
    if all(key.startswith(_DDP_PREFIX) for key in state):
        state = _without_prefix(state, _DDP_PREFIX)
    return _load(cell, state, str(path))


def _load(cell: Cell, state: dict[str, Any], source: str) -> nn.Module:
    """Return the network of `cell` with the parameters and buffers of `state`.

    Raises:
        BadInput: `state` is of another network.
    """
    network = Experiment(cell).build_network().to(weight_dtype(cell))
    expected = network.state_dict()
    shared = expected.keys() & state.keys()
    differences = {
        "lacks": sorted(expected.keys() - state.keys()),
        "has besides": sorted(state.keys() - expected.keys()),
        "has of another shape": sorted(k for k in shared if expected[k].shape != state[k].shape),
    }
    if any(differences.values()):
        parts = [f"{verb} {len(keys)}, as {keys[0]}" for verb, keys in differences.items() if keys]
        raise BadInput(
            f"ckpt={source}: it is of another network than {cell.title} (of its tensors it "
            f"{'; it '.join(parts)}); describe its network by norm=, model= and their options"
        )
    network.load_state_dict(state)
    return network


def _training_folder(row: Row, root: Path) -> Path:
    """Return the folder of the run that computed `row`, which may be of another sweep."""
    shared = root.glob(f"*/{row.shared_with}") if row.shared_with else iter(())
    return next(shared, root / row.sweep / row.id)


def _find_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder, by epoch."""
    pattern = re.compile(re.escape(EPOCH_CHECKPOINT).replace(r"\{\}", "([0-9]+)"))
    matches = [(pattern.fullmatch(path.name), path) for path in folder.glob("*.pt")]
    checkpoints = {int(match[1]): path for match, path in matches if match}
    if (path := folder / CHECKPOINT).exists():
        done, steps_per_epoch = _read_position(path)
        # Rounded up: the last epoch may have fewer steps.
        checkpoints[-(-done // steps_per_epoch)] = path
    return dict(sorted(checkpoints.items()))


def _read_position(path: Path) -> tuple[int, int]:
    """Return the steps until a checkpoint, and those of an epoch."""
    # On the meta device no weight is read into memory.
    state = torch.load(path, map_location="meta", weights_only=True)
    return state["done"], state["steps_per_epoch"]


def _evaluated_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a checkpoint that evaluations use."""
    average = state["average"]
    return state["model"] if average is None else _without_prefix(average, "network.")


def _without_prefix(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in state.items()}
