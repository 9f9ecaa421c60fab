"""Checkpoints of a run, each written in one piece beside what the run leaves otherwise.

    checkpoint.pt   the last one: what an interrupted run goes on from
    epoch-30.pt     after that epoch, for those that `checkpoint.epochs` names

A state is what `normbench.training.lightning_module.Task.state` gives: tensors, numbers and text,
nothing else.
"""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normbench.results import CHECKPOINT, EPOCH_CHECKPOINT

LAST = CHECKPOINT

State = dict[str, Any]


class Checkpoints:
    """Those of one run.

    Args:
        folder: of the run.
        every: seconds of training between two; None: none is written on the way.
        epochs: after which one is kept for good.
        final: whether one is written at the end of the training.
        writes: whether this process is the one that writes.
    """

    def __init__(
        self,
        folder: Path,
        every: float | None,
        epochs: Sequence[int] = (),
        *,
        final: bool = False,
        writes: bool = True,
    ) -> None:
        self.folder, self.every, self.epochs = folder, every, set(epochs)
        self.final, self.writes = final, writes
        self.saved = time.monotonic()

    def due(self) -> bool:
        """It is time for one, says the process that writes."""
        if not self.writes or self.every is None:
            return False
        return time.monotonic() - self.saved >= self.every

    def hurry(self) -> None:
        """From now on it is time for one, until one is written."""
        self.saved = -math.inf

    def save(self, state: State) -> None:
        """Replace the last one."""
        self._write(LAST, state)
        self.saved = time.monotonic()

    def keep(self, state: State, epoch: int) -> None:
        """The one after `epoch`."""
        self._write(EPOCH_CHECKPOINT.format(epoch), state)

    def _write(self, name: str, state: State) -> None:
        if not self.writes:
            return
        temporary = self.folder / f".{name}.{os.getpid()}"
        torch.save(_own(state), temporary)
        temporary.replace(self.folder / name)


def _own(state: Any) -> Any:
    """`state`, its tensors without what else lies in their storage: torch would write all of it."""
    if isinstance(state, dict):
        return type(state)((key, _own(value)) for key, value in state.items())
    if isinstance(state, Tensor) and state.untyped_storage().nbytes() > state.nbytes:
        return state.clone()
    return state


def gathered(optimizer: Optimizer, network: nn.Module) -> State:
    """What an optimizer has gathered for each parameter, such as momentum, by its name."""
    names: dict[Any, str] = {parameter: name for name, parameter in network.named_parameters()}
    return {names[parameter]: dict(found) for parameter, found in optimizer.state.items()}


def restore(optimizer: Optimizer, network: nn.Module, found: State) -> None:
    """Give `optimizer` what another has gathered, under the groups and options of its own."""
    names = {parameter: name for name, parameter in network.named_parameters()}
    ordered = [names[p] for group in optimizer.param_groups for p in group["params"]]
    state = {index: found[name] for index, name in enumerate(ordered) if name in found}
    own = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": own})


def load(path: Path) -> State:
    """The state in `path`, on the CPU.

    Raises:
        Exception: there is none that could be read.
    """
    state: State = torch.load(path, map_location="cpu", weights_only=True)
    return state


def clear(folder: Path) -> None:
    """Forget all checkpoints of a run, and what a process that was killed left of one."""
    for pattern in (LAST, EPOCH_CHECKPOINT.format("*"), ".*.pt.*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
