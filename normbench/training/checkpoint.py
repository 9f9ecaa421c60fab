"""Checkpoints of a run, each written atomically into its folder.

    checkpoint.pt   the latest one, from which an interrupted run resumes
    epoch-30.pt     after that epoch, for those that `checkpoint.epochs` names

A state is what `normbench.training.lightning_module.TrainingModule.training_state` returns:
tensors, numbers and text, nothing else.
"""

import math
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from pytorch_lightning.utilities.memory import is_oom_error
from torch import Tensor, nn
from torch.optim import Optimizer

from normbench.errors import BadInput, DamagedFile, one_line
from normbench.models.backbone import OF_CLASSIFIER
from normbench.results import CHECKPOINT, DAMAGED_CHECKPOINT, EPOCH_CHECKPOINT
from normbench.run_files import replace_atomically
from normbench.training.parameter_groups import FEATURES, classifier_layers, list_parameters

State = dict[str, Any]

LOSS = 15.0  # seconds of training that a run may lose if it is stopped during an evaluation

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
    done: int = field(default=0, init=False)  # steps that the latest one has completed; 0: none

    def due(self) -> bool:
        """Return True if this process writes and `every` seconds have passed since the latest."""
        if not self.writes or self.every is None:
            return False
        return time.monotonic() - self.saved >= self.every

    def due_at_end(self) -> bool:
        """Return True if this process writes after the last step, before evaluations.

        A training that is stopped while it evaluates has little time, and loses only evaluations.
        """
        if not self.writes or self.every is None:
            return self.writes and self.final
        return self.final or time.monotonic() - self.saved >= min(self.every, LOSS)

    def make_due(self) -> None:
        """Make a checkpoint due until one is written."""
        self.saved = -math.inf

    def save(self, state: State) -> None:
        """Replace the latest checkpoint."""
        self._save_file(CHECKPOINT, state)
        self.saved, self.done = time.monotonic(), state["done"]

    def keep(self, state: State, epoch: int) -> None:
        """Write the checkpoint of `epoch`, which is never replaced."""
        self._save_file(EPOCH_CHECKPOINT.format(epoch), state)

    def _save_file(self, name: str, state: State) -> None:
        if not self.writes:
            return
        save_state(self.folder / name, state)


def save_state(path: Path, state: State) -> None:
    """Write `state` atomically.

    Raises:
        OSError: it cannot be written.
    """
    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(_compact(state), file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # such as a full disk, hidden by torch
                raise error.__context__ from None
            raise


def _compact(state: Any) -> Any:
    """Clone tensors that are views of larger storages, which torch would write as a whole."""
    if isinstance(state, dict):
        return type(state)((key, _compact(value)) for key, value in state.items())
    if isinstance(state, Tensor) and state.untyped_storage().nbytes() > state.nbytes:
        return state.clone()
    return state


#: Entry of a parameter's state: steps that some optimizers, as lamb, count by group.
GROUP_STEP = "step of the group"


def collect_optimizer_state(optimizer: Optimizer, network: nn.Module) -> State:
    """Return the state that `optimizer` has for each parameter, such as momentum, by name."""
    # Not by index as in torch, which follows from the parameter groups of one recipe.
    names: dict[Any, str] = {parameter: name for name, parameter in network.named_parameters()}
    collected = {names[parameter]: dict(state) for parameter, state in optimizer.state.items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if "step" in group and parameter in optimizer.state:
                collected[names[parameter]][GROUP_STEP] = group["step"]
    return collected


def restore_optimizer_state(optimizer: Optimizer, network: nn.Module, by_name: State) -> None:
    """Give `optimizer` the state of another one, and keep its own groups and options."""
    names = {parameter: name for name, parameter in network.named_parameters()}
    ordered = [names[p] for group in optimizer.param_groups for p in group["params"]]
    state = {index: by_name[name] for index, name in enumerate(ordered) if name in by_name}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).pop(GROUP_STEP, None)
            if step is not None:
                group["step"] = step


def require_same_optimizer(state: State, optimizer: Optimizer) -> None:
    """Refuse the state of another optimizer, as momentum for one that also scales gradients.

    Raises:
        BadInput: it is of another class.
    """
    saved, own = state.get("optimizer_class"), type(optimizer).__name__  # older states have none
    if state["optimizer"] and saved not in (None, own):
        raise BadInput(
            f"init_from: the run was trained by {saved}, whose state {own} cannot use; take the "
            "same optimizer, or init_only=[features] and train from step 0"
        )


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


def load_part(network: nn.Module, state: State) -> None:
    """Copy the part of `network` that `state`, of `begin_run`, names.

    These are its parameters of certain roles, or all its parameters and buffers; of a network of
    another task than classification those of the backbone, if the state is a classifier's. With
    `features` they are all parameters and buffers but those of the classifier, the last linear
    layer; tensors of normalizations that the state lacks, or has in another shape, stay.

    Raises:
        BadInput: the state has no such tensor.
    """
    names = {parameter: name for name, parameter in network.named_parameters()}
    roles, prefix = state["roles"], state["prefix"]
    of_features = roles is not None and FEATURES in roles
    role_of = {names[parameter]: role for parameter, role, _ in list_parameters(network)}
    chosen: dict[str, Tensor] = {
        name: parameter
        for name, parameter in network.named_parameters()
        if roles is None or of_features or role_of[name] in roles
    }
    if roles is None or of_features:
        saved = network.state_dict().keys()  # some buffers are computed anew and never saved
        chosen |= {name: each for name, each in network.named_buffers() if name in saved}
    if of_features:
        for name in _classifier_parameters(network):
            del chosen[name]
    for name, tensor in chosen.items():
        if not name.startswith(prefix):
            continue
        value = state["model"].get(name.removeprefix(prefix))
        fits = value is not None and value.shape == tensor.shape
        if not fits and of_features and role_of.get(name) != "weight":
            layer = network.get_submodule(name.rpartition(".")[0])
            if reason := getattr(layer, "unfinished", ""):
                raise BadInput(f"init_from: the checkpoint has no {name}; {reason}")
            continue  # another normalizer has other parameters and statistics
        if not fits:
            works = "the same model"
            if not of_features:
                works += ", and a norm with the same parameters"
                works += "" if roles is None else f" of the roles init_only=[{','.join(roles)}]"
            raise BadInput(
                f"init_from: the checkpoint is of another network, without "
                f"{name.removeprefix(prefix)} of the shape {tuple(tensor.shape)}; use {works}"
            )
        tensor.data.copy_(value)


def _classifier_parameters(network: nn.Module) -> list[str]:
    layers = classifier_layers(network)
    if not layers:
        raise BadInput(
            f"init_only=[{FEATURES}]: the network has no linear layer, which the classifier would "
            "be; name roles, as init_only=[weight,gain,shift]"
        )
    return [
        f"{name}.{each}" for name, layer in layers.items() for each, _ in layer.named_parameters()
    ]


def require_start(state: State, network: nn.Module, steps: int, steps_per_epoch: int) -> None:
    """Refuse a state of `begin_run` with which a training of `network` cannot begin.

    Args:
        state: its tensors may be on the meta device, without values.
        network: on the meta device, where loading changes nothing.
        steps: of the training.
        steps_per_epoch: of the training.

    Raises:
        BadInput: it is of another network, or of another training.
    """
    if "roles" in state:
        load_part(network, state)
    else:
        require_continuable(state, steps, steps_per_epoch)
        load_weights(network, state)


def load_state(path: Path, *, values: bool = True) -> State:
    """Load the state in `path` into main memory, or only its shapes without `values`.

    Raises:
        DamagedFile: the file is missing, damaged or of another kind.
        BadInput: the file cannot be read now; nothing is known about its content.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            raise DamagedFile(f"{path} is no regular file")
        with path.open("rb") as file:
            state = _load_file(path, file, values)
    except FileNotFoundError:  # another rank has renamed it meanwhile
        raise DamagedFile(f"{path} is missing") from None
    except (OSError, MemoryError) as error:  # of a network file system, for example
        reason = error.strerror if isinstance(error, OSError) else "out of memory"
        raise BadInput(
            f"{path} cannot be read ({reason or one_line(error)}); it is kept, and the same "
            "command tries again"
        ) from None
    if isinstance(state, dict):  # a file of the user may hold anything
        state = {_OLD_KEYS.get(key, key): value for key, value in state.items()}
    return state


def _load_file(path: Path, file: IO[bytes], values: bool) -> State:
    try:
        if values:
            with zipfile.ZipFile(file) as archive:
                if archive.testzip() is not None:  # torch compares no checksums
                    raise DamagedFile(f"{path} is damaged")
            file.seek(0)
        # weights_only: a checkpoint from elsewhere must not run code.
        device = "cpu" if values else "meta"
        state: State = torch.load(file, map_location=device, weights_only=True)
    except (DamagedFile, OSError, MemoryError):
        raise
    except Exception as error:  # whatever torch raises about a file that is none of its own
        if is_oom_error(error):
            raise MemoryError from None
        raise DamagedFile(f"{path} is no checkpoint ({one_line(error)})") from None
    return state


#: Types of the entries of a state.
_TYPES: dict[str, Any] = {
    "model": dict, "average": dict | None, "optimizer": dict, "precision": dict, "random": Tensor,
    "random_cuda": list, "done": int, "steps_per_epoch": int, "pending": list, "last": list,
    "first_step": int, "training_seconds": float | int, "resumed": int,
}  # fmt: skip


def explain_damage(state: Any, network: nn.Module, steps: int, steps_per_epoch: int) -> str:
    """Return why a training of `network` cannot resume from `state`, or ""."""
    if problem := _explain_form(state, _TYPES):
        return problem
    if not 0 < state["done"] <= steps or state["steps_per_epoch"] != steps_per_epoch:
        return f"it has completed {state['done']} steps of {state['steps_per_epoch']} per epoch"
    if state["done"] == steps and not state["last"]:
        return "it lacks the last losses"
    for key in ("pending", "last"):
        if not all(isinstance(each, tuple | list) and len(each) == 2 for each in state[key]):
            return f"it has no valid {key}"
    if _shapes(state["model"]) != _shapes(network.state_dict()):
        return "it is of another network"
    of_average = {f"network.{name}": shape for name, shape in _shapes(state["model"]).items()}
    if state["average"] is not None and _shapes(state["average"]) != of_average:
        return "it has no valid average"
    parameters = dict(network.named_parameters())
    for name, values in state["optimizer"].items():
        if name not in parameters or not isinstance(values, dict):
            return "it is of another optimizer"
        shapes = {x.shape for x in values.values() if isinstance(x, Tensor) and x.dim()}
        if shapes - {parameters[name].shape}:
            return "it is of another optimizer"
    return ""


def _explain_form(state: Any, keys: Iterable[str]) -> str:
    """Return why `state` is none that a run has saved, as a clause, or ""; it must have `keys`."""
    if not isinstance(state, dict):
        return "it holds no state"
    invalid = (key for key in keys if not isinstance(state.get(key), _TYPES[key]))
    return next((f"it has no valid {key}" for key in invalid), "")


def _shapes(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(tensor, "shape", None) for name, tensor in tensors.items()}


def begin_run(state: State, roles: Sequence[str] | None = None, *, dense: bool = False) -> State:
    """Return the state from which a new run begins with what another run has trained.

    These are its weights, optimizer and step; measurements start over. With `roles` these are only
    its parameters of those roles, or all but the classifier's, and the new run begins at step 0.
    So does a run of a dense task that begins with a classifier, of which it takes what its backbone
    has.

    Args:
        state: of the other run.
        roles: of the parameters that the new run takes; None: everything.
        dense: True if the new run is of a dense task.

    Raises:
        BadInput: it is no state of a run.
    """
    if problem := _explain_form(state, ("model", "done", "steps_per_epoch")):
        raise BadInput(f"init_from: the checkpoint is of no run: {problem}")
    if dense and roles is not None and FEATURES in roles:
        raise BadInput(
            f"init_only=[{FEATURES}]: a dense task takes the backbone of a classifier by itself; "
            "init_only=null works"
        )
    measured = {"pending": [], "last": [], "training_seconds": 0.0, "resumed": None}
    prefix = ""
    if dense:
        prefix = OF_CLASSIFIER
        if any(name.startswith(prefix) for name in state["model"]):
            prefix = ""  # the other network is a dense one, too
    if roles is not None or prefix:
        part = {"roles": None if roles is None else list(roles), "prefix": prefix}
        return measured | part | {"model": state["model"], "done": 0}
    return state | measured | {"first_step": state["done"]}


def is_new_run(state: State) -> bool:
    """Return True of a state of `begin_run`, False of a checkpoint of the run itself."""
    return state["resumed"] is None


def set_aside_damaged(folder: Path) -> Path:
    """Rename the latest checkpoint, from which no training can resume; return its new path."""
    return (folder / CHECKPOINT).replace(folder / DAMAGED_CHECKPOINT)


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of a run but a damaged one."""
    for pattern in (CHECKPOINT, EPOCH_CHECKPOINT.format("*")):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
