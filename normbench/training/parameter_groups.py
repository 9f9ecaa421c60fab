"""Parameter groups of an optimizer: weight decay and learning rate by the role of a parameter.

Modules declare the roles of their parameters in `roles`; those of convolutions and linear layers
are built in.

weight      of convolutions and linear layers
bias        of convolutions and linear layers; embeddings that a network exempts from decay
gain        multiplies a normalized channel (also EvoNorm's v)
shift       is added to it, or is a threshold of it (FRN's tau)
scalar      one of a whole layer (DyT's alpha, FRN's learned eps)
proxy       mean and deviation of proxy normalization's Gaussian
ratio       logits of switchable normalization's ratios
residual    a scalar on a residual branch

A module may also declare factors of the learning rate, by parameter, in `rates`.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from torch import nn
from torch.optim import Optimizer

from normbench.norms.base.layer import Role

ROLES: tuple[Role, ...] = get_args(Role)
#: In place of roles: all parameters and buffers but those of the classifier.
FEATURES = "features"
_BUILT_IN: dict[str, Role] = {"weight": "weight", "bias": "bias"}


class TrainedParameter(NamedTuple):
    """A parameter with its role."""

    parameter: nn.Parameter
    role: Role
    rate: float  # factor of the learning rate


def list_parameters(model: nn.Module) -> Iterator[TrainedParameter]:
    """Yield every parameter of `model` once.

    Raises:
        TypeError: a module has a parameter whose role it does not declare in `roles`.
    """
    listed: set[int] = set()
    for module in model.modules():
        built_in = isinstance(module, nn.modules.conv._ConvNd | nn.Linear)
        roles = getattr(module, "roles", _BUILT_IN if built_in else {})
        rates: Mapping[str, float] = getattr(module, "rates", {})
        for name, parameter in module.named_parameters(recurse=False):
            if name not in roles:
                kind = type(module).__name__
                raise TypeError(
                    f"{kind}.{name} has no role; set {kind}.roles[{name!r}] to one of {ROLES}"
                )
            if id(parameter) not in listed:  # shared parameters belong to their first module
                listed.add(id(parameter))
                yield TrainedParameter(parameter, roles[name], rates.get(name, 1.0))


def classifier_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the last linear layer by its name, and others of its shape, as a second head."""
    linear = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    if not linear:
        return {}
    shape = [*linear.values()][-1].weight.shape
    return {name: each for name, each in linear.items() if each.weight.shape == shape}


def number_blocks(model: nn.Module) -> dict[str, int]:
    """Return for each parameter, by name, the number of its residual block.

    Those of the stem have 0, those behind the last block the largest number. `model` tells its
    blocks by `block_patterns`, in the form of `timm.models.group_parameters`.

    Raises:
        ValueError: it does not.
    """
    patterns = getattr(model, "block_patterns", None)
    if patterns is None:
        raise ValueError("this network does not tell which parameters belong to which block")
    from timm.models import group_parameters  # here, as timm takes a second to import

    numbers: dict[str, int] = group_parameters(model, patterns, reverse=True)
    return numbers


def build_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float,
    decayed: Collection[str],
    layer_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Build parameter groups: the `decayed` roles with weight decay, the others without.

    The first two groups have the learning rate `lr`; parameters with a factor of it have groups of
    their own. With `layer_decay` the factor of each block is that of the next one times
    `layer_decay`.
    """
    depth_rates: dict[nn.Parameter, float] = {}
    if layer_decay is not None:
        numbers = number_blocks(model)
        last = max(numbers.values())
        depth_rates = {
            parameter: layer_decay ** (last - numbers[name])
            for name, parameter in model.named_parameters()
        }
    # By factor of the learning rate and weight decay.
    members: dict[tuple[float, float], list[nn.Parameter]] = {(1, weight_decay): [], (1, 0): []}
    for parameter, role, rate in list_parameters(model):
        key = (rate * depth_rates.get(parameter, 1), weight_decay if role in decayed else 0.0)
        members.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "lr": lr * rate, "weight_decay": decay}
        for (rate, decay), parameters in members.items()
    ]


def subtract_from_gain_gradients(model: nn.Module, optimizer: Optimizer, offset: float) -> None:
    """Subtract `offset` from the gradient of every gain before each step of `optimizer`.

    The optimizer's decay adds weight_decay * gain; with offset = weight_decay * target, gains decay
    towards the target instead of 0 (Summers and Dinneen 2020, section 3.3).
    """
    gains = [each.parameter for each in list_parameters(model) if each.role == "gain"]

    def before_step(*_: object) -> None:
        for gain in gains:
            if gain.grad is not None:
                gain.grad.sub_(offset)

    optimizer.register_step_pre_hook(before_step)
