"""Which parameters weight decay pulls on: by the roles that modules declare for them.

weight      of convolutions and linear layers
bias        of convolutions and linear layers
gain        multiplies a normalized channel (also EvoNorm's v)
shift       is added to it, or is a threshold of it (FRN's tau)
scalar      one of a whole layer (DyT's alpha, FRN's learned eps)
proxy       mean and deviation of proxy normalization's Gaussian
ratio       logits of switchable normalization's ratios
residual    a scalar on a residual branch
"""

from collections.abc import Collection, Iterator
from typing import Any, get_args

from torch import nn
from torch.optim import Optimizer

from normbench.norms.layer import Role

ROLES: tuple[Role, ...] = get_args(Role)
_BUILT_IN: dict[str, Role] = {"weight": "weight", "bias": "bias"}


def roles(model: nn.Module) -> Iterator[tuple[nn.Parameter, Role]]:
    """Every parameter of `model` once, with its role.

    Raises:
        TypeError: a module has a parameter whose role it does not declare in `roles`.
    """
    seen: set[int] = set()
    for module in model.modules():
        built_in = isinstance(module, nn.modules.conv._ConvNd | nn.Linear)
        declared = getattr(module, "roles", _BUILT_IN if built_in else {})
        for name, parameter in module.named_parameters(recurse=False):
            if name not in declared:
                kind = type(module).__name__
                raise TypeError(f"{kind}.{name} has no role: say one of {ROLES} in {kind}.roles")
            if id(parameter) not in seen:  # shared parameters belong to the first that has them
                seen.add(id(parameter))
                yield parameter, declared[name]


def groups(model: nn.Module, weight_decay: float, decayed: Collection[str]) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: the `decayed` roles, and the others without decay."""
    pairs = list(roles(model))
    return [
        {"params": [p for p, role in pairs if role in decayed], "weight_decay": weight_decay},
        {"params": [p for p, role in pairs if role not in decayed], "weight_decay": 0.0},
    ]


def pull_gains(model: nn.Module, optimizer: Optimizer, pull: float) -> None:
    """Take `pull` from the gradient of every gain of `model` before each step of `optimizer`.

    The decay of the optimizer itself adds weight_decay * gain; with weight_decay * target taken
    away the gain goes towards the target instead of 0.
    """
    gains = [parameter for parameter, role in roles(model) if role == "gain"]

    def before_step(*_: object) -> None:
        for gain in gains:
            if gain.grad is not None:
                gain.grad.sub_(pull)

    optimizer.register_step_pre_hook(before_step)
