"""Optimizers of timm by name."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from timm.optim import get_optimizer_class, get_optimizer_info, list_optimizers
from torch import nn
from torch.optim import Optimizer

from normbench.errors import choose_from, one_line


def create(
    name: str,
    groups: list[dict[str, Any]],
    lr: float,
    momentum: float,
    nesterov: bool,
    betas: Sequence[float] | None,
) -> Optimizer:
    """Return the optimizer `name` of parameter groups; other arguments are `TimmRecipe`'s."""
    info = get_optimizer_info(name)
    options: dict[str, Any] = {}
    if info.has_betas:
        options["betas"] = (momentum, *(betas or _default_betas(name)[1:]))
    if info.has_momentum:
        options["momentum"] = momentum
    if _can_be_nesterov(name):
        options["nesterov"] = nesterov
    make: Any = get_optimizer_class(name, bind_defaults=True)
    optimizer: Optimizer = make(groups, lr=lr, **options)
    return optimizer


def require(name: str, momentum: float, nesterov: bool, betas: Sequence[float] | None) -> None:
    """Refuse an optimizer that normbench cannot use, and options that it does not have.

    Raises:
        ValueError: the message begins with the option.
    """
    names = [str(each) for each in list_optimizers()]
    if name not in names:
        raise ValueError(f"optimizer={name}: {choose_from(name, names)}")
    info = get_optimizer_info(name)
    if info.second_order:
        raise ValueError(f"optimizer={name}: it needs second derivatives; adamw needs none")
    if reason := _explain_unusable(name):
        raise ValueError(f"optimizer={name}: {reason}; adamw, lamb, lion and muon work")
    if nesterov and not _can_be_nesterov(name):
        raise ValueError(
            "nesterov=true: timm's optimizers have it by their names; nadamw with nesterov=false "
            "works"
        )
    further = len(_default_betas(name)) - 1 if info.has_betas else 0
    if betas is not None and len(betas) != further:
        has = f"the first one of {name} is recipe.momentum, and it has {further} more"
        if not further:
            has = f"{name} has none besides recipe.momentum"
        raise ValueError(f"betas={list(betas)}: {has}; null leaves its own")
    if not momentum < 1:
        raise ValueError(f"momentum={momentum}: it must be below 1")


def _can_be_nesterov(name: str) -> bool:
    return "nesterov" in (get_optimizer_info(name).defaults or {})


@cache
def _default_betas(name: str) -> tuple[float, ...]:
    make: Any = get_optimizer_class(name, bind_defaults=True)
    betas: tuple[float, ...] = make([nn.Parameter(torch.zeros(1))]).defaults.get("betas", ())
    return betas


@cache
def _explain_unusable(name: str) -> str:
    """Return why an optimizer cannot train here, or "": it is tried on two parameters."""
    info = get_optimizer_info(name)
    parameters = [nn.Parameter(torch.ones(shape, device="cpu")) for shape in ((2, 3), (3,))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    try:
        if not (info.has_momentum or (info.has_betas and _default_betas(name))):
            return "it has no momentum, which a recipe sets"
        optimizer = create(name, [{"params": parameters}], 0.1, 0.9, False, None)
        before = dict(optimizer.param_groups[0])
        optimizer.step()
    except Exception as error:  # needs another package or device, or another kind of step
        return one_line(error)
    after = optimizer.param_groups[0]
    changed = [
        key for key in after if key not in ("params", "step") and after[key] != before.get(key)
    ]
    for tried, state in optimizer.state.items():
        tensors = [each for each in state.values() if isinstance(each, torch.Tensor)]
        if changed or any(each.dim() and each.shape != tried.shape for each in tensors):
            return "checkpoints cannot keep its state"
    return ""
