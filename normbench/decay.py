"""Which parameters weight decay pulls on: by the roles that modules declare for them.

weight      of convolutions and linear layers
bias        of convolutions and linear layers
gain        multiplies a normalized channel (also EvoNorm's v)
shift       is added to it
residual    a scalar on a residual branch
"""

from collections.abc import Collection, Iterator
from typing import Any, get_args

from torch import nn

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
        declared = _BUILT_IN if built_in else getattr(module, "roles", {})
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
