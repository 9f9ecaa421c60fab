"""What weight decay pulls on and at which rate it learns: by what modules declare for parameters.

weight      of convolutions and linear layers
bias        of convolutions and linear layers
gain        multiplies a normalized channel (also EvoNorm's v)
shift       is added to it, or is a threshold of it (FRN's tau)
scalar      one of a whole layer (DyT's alpha, FRN's learned eps)
proxy       mean and deviation of proxy normalization's Gaussian
ratio       logits of switchable normalization's ratios
residual    a scalar on a residual branch

A module may also ask for a part of the learning rate, by parameter, in `rates`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from torch import nn
from torch.optim import Optimizer

from normbench.norms.base.layer import Role

ROLES: tuple[Role, ...] = get_args(Role)
_BUILT_IN: dict[str, Role] = {"weight": "weight", "bias": "bias"}


@dataclass(frozen=True)
class Trained:
    """A parameter, its role, and its learning rate over that of all else."""

    parameter: nn.Parameter
    role: Role
    rate: float


def trained(model: nn.Module) -> Iterator[Trained]:
    """Every parameter of `model` once.

    Raises:
        TypeError: a module has a parameter whose role it does not declare in `roles`.
    """
    seen: set[int] = set()
    for module in model.modules():
        built_in = isinstance(module, nn.modules.conv._ConvNd | nn.Linear)
        declared = getattr(module, "roles", _BUILT_IN if built_in else {})
        rates: Mapping[str, float] = getattr(module, "rates", {})
        for name, parameter in module.named_parameters(recurse=False):
            if name not in declared:
                kind = type(module).__name__
                raise TypeError(f"{kind}.{name} has no role: say one of {ROLES} in {kind}.roles")
            if id(parameter) not in seen:  # shared parameters belong to the first that has them
                seen.add(id(parameter))
                yield Trained(parameter, declared[name], rates.get(name, 1.0))


def groups(
    model: nn.Module, lr: float, weight_decay: float, decayed: Collection[str]
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: the `decayed` roles, and the others without decay.

    The first has the learning rate `lr`; parameters that ask for a part of it have groups of
    their own.
    """
    found: dict[tuple[float, float], list[nn.Parameter]] = {
        (1.0, weight_decay): [],
        (1.0, 0.0): [],
    }
    for each in trained(model):
        kind = (each.rate, weight_decay if each.role in decayed else 0.0)
        found.setdefault(kind, []).append(each.parameter)
    return [
        {"params": parameters, "lr": lr * rate, "weight_decay": pull}
        for (rate, pull), parameters in found.items()
    ]


def pull_gains(model: nn.Module, optimizer: Optimizer, pull: float) -> None:
    """Take `pull` from the gradient of every gain of `model` before each step of `optimizer`.

    The decay of the optimizer itself adds weight_decay * gain; with weight_decay * target taken
    away the gain goes towards the target instead of 0.
    """
    gains = [each.parameter for each in trained(model) if each.role == "gain"]

    def before_step(*_: object) -> None:
        for gain in gains:
            if gain.grad is not None:
                gain.grad.sub_(pull)

    optimizer.register_step_pre_hook(before_step)
