"""Checkpoints of a run, each written atomically into its folder.

    checkpoint.pt   the latest one, from which an interrupted run resumes
    epoch-30.pt     after that epoch, for those that `checkpoint.epochs` names

A state is what `normbench.training.lightning_module.TrainingModule.training_state` returns:
tensors, numbers and text, nothing else.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normbench.errors import BadInput
from normbench.results import CHECKPOINT, EPOCH_CHECKPOINT
from normbench.run_files import replace_atomically

State = dict[str, Any]

#: Keys of older checkpoints, and what they are called now.
_OLD_KEYS = {"fresh": "pending", "began": "first_step"}


@dataclass
class Checkpoints:
    """The checkpoints of one run."""

    folder: Path  # of the run
    every: float | None  # seconds of training between two checkpoints; None: none during it
    epochs: Sequence[int] = ()  # after which a checkpoint is kept for good
    _: KW_ONLY
    final: bool = False  # write a checkpoint at the end of the training
    writes: bool = True  # False in ranks above 0, which only read
    saved: float = field(default_factory=time.monotonic, init=False)  # time of the latest one

    def due(self) -> bool:
        """Return True if this process writes and `every` seconds have passed since the latest."""
        if not self.writes or self.every is None:
            return False
        return time.monotonic() - self.saved >= self.every

    def make_due(self) -> None:
        """Make a checkpoint due until one is written."""
        self.saved = -math.inf

    def save(self, state: State) -> None:
        """Replace the latest checkpoint."""
        self._save_file(CHECKPOINT, state)
        self.saved = time.monotonic()

    def keep(self, state: State, epoch: int) -> None:
        """Write the checkpoint of `epoch`, which is never replaced."""
        self._save_file(EPOCH_CHECKPOINT.format(epoch), state)

    def _save_file(self, name: str, state: State) -> None:
        if not self.writes:
            return
        with replace_atomically(self.folder / name) as temporary:
            torch.save(_compact(state), temporary)


def _compact(state: Any) -> Any:
    """Clone tensors that are views of larger storages, which torch would write as a whole."""
    if isinstance(state, dict):
        return type(state)((key, _compact(value)) for key, value in state.items())
    if isinstance(state, Tensor) and state.untyped_storage().nbytes() > state.nbytes:
        return state.clone()
    return state


def collect_optimizer_state(optimizer: Optimizer, network: nn.Module) -> State:
    """Return the state that `optimizer` has for each parameter, such as momentum, by name."""
    # Not by index as in torch, which follows from the parameter groups of one recipe.
    names: dict[Any, str] = {parameter: name for name, parameter in network.named_parameters()}
    return {names[parameter]: dict(state) for parameter, state in optimizer.state.items()}


def restore_optimizer_state(optimizer: Optimizer, network: nn.Module, by_name: State) -> None:
    """Give `optimizer` the state of another one, and keep its own groups and options."""
    names = {parameter: name for name, parameter in network.named_parameters()}
    ordered = [names[p] for group in optimizer.param_groups for p in group["params"]]
    state = {index: by_name[name] for index, name in enumerate(ordered) if name in by_name}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def require_continuable(state: State, steps: int, steps_per_epoch: int) -> None:
    """Refuse a state from which a training of `steps` cannot continue.

    Raises:
        BadInput: its epochs have another number of steps, or it has completed more steps.
    """
    over = state["done"] > steps or (state["done"] == steps and not state["last"])
    if state["steps_per_epoch"] != steps_per_epoch or over:
        raise BadInput(
            f"init_from: the checkpoint has completed {state['done']} steps of "
            f"{state['steps_per_epoch']} per epoch, and this training has {steps} steps of "
            f"{steps_per_epoch} per epoch; use the same data and global batch, and a recipe that "
            "is longer"
        )


def load_weights(network: nn.Module, state: State) -> None:
    """Load parameters and buffers of `state` into `network`.

    Raises:
        BadInput: they are those of another network.
    """
    try:
        network.load_state_dict(state["model"])
    except RuntimeError as error:
        # The first line has only the name of the class; the next one says which tensor differs.
        mismatch = str(error).partition("\n")[2].strip().partition("\n")[0]
        raise BadInput(
            f"init_from: the checkpoint is of another network ({mismatch}); use the same model, "
            "and a norm with the same parameters, as norm=sn and norm=sn norm.hard=true"
        ) from None


def load_state(path: Path) -> State:
    """Load the state in `path` into main memory.

    Raises:
        Exception: the file is missing, damaged or of another kind.
    """
    # weights_only: a checkpoint from elsewhere must not run code.
    state: State = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state, dict):  # a file of the user may hold anything
        state = {_OLD_KEYS.get(key, key): value for key, value in state.items()}
    return state


def begin_run(state: State) -> State:
    """Return the state from which a new run begins with what another run has trained.

    These are its weights, optimizer and step; what was measured begins anew.
    """
    measured = {"pending": [], "last": [], "training_seconds": 0.0, "resumed": None}
    return state | measured | {"first_step": state["done"]}


def is_new_run(state: State) -> bool:
    """Return True of a state of `begin_run`, False of a checkpoint of the run itself."""
    return state["resumed"] is None


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of a run, and temporary files of a process that was killed."""
    for pattern in (CHECKPOINT, EPOCH_CHECKPOINT.format("*"), ".*.pt.*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
