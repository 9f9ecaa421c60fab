"""Normalizations inside of modules that torch.fx does not trace, as MobileViT's blocks.

What follows a layer there is unknown. So only batch normalizations of timm that activate by
themselves are replaced; the others stay, and the swap refuses batch normalizations that stay.
"""

from copy import deepcopy

from torch import fx, nn

from normbench.errors import Impossible, count
from normbench.models.fx_graph import CallGraph
from normbench.models.layer_types import activation_name
from normbench.norms.base.layer import NormAct, Normalizer
from normbench.norms.batch import TORCH_BATCH_NORMS, is_batch_norm


def copy_untraced(graph: CallGraph) -> None:
    """Copy modules that are not traced, whose layers may be replaced; parameters stay shared."""
    # Known to deepcopy as copied already. One for all modules, which may share layers.
    memo: dict[int, object] = {}
    for _, module in graph.untraced():
        memo |= {id(each): each for each in (*module.parameters(), *module.buffers())}
    for call, module in graph.untraced():
        graph.replace(call, deepcopy(module, memo))


def replace_untraced(
    graph: CallGraph, norm: Normalizer, *, allow_left: bool
) -> dict[nn.Module, NormAct]:
    """Replace batch normalizations that activate by themselves; return the new layers by the old.

    Raises:
        Impossible: the normalizer standardizes convolutions, and `allow_left` is False.
    """
    layers: dict[nn.Module, NormAct] = {}
    for call, module in graph.untraced():
        for path, old in list(module.named_modules()):
            place = f"{call.target}.{path}"
            if not is_batch_norm(old) or (act := own_activation(old, place)) is None:
                continue
            if norm.conv is not None and not allow_left:
                raise Impossible(
                    f"torch.fx does not trace {type(module).__name__} {call.target}, so its "
                    "convolutions cannot be standardized; use a normalizer without weight "
                    "standardization"
                )
            require_separable(old, place)
            if old not in layers:
                layers[old] = norm.inherit_options(old).layer(int(old.num_features), act)
                fit_in(graph.module, layers[old])
                layers[old].inherit_parameters(old)
            module.set_submodule(path, layers[old])
    return layers


def require_no_batch_norm(network: fx.GraphModule) -> None:
    """Raise Impossible if a batch normalization is left."""
    left = [(name, layer) for name, layer in network.named_modules() if is_batch_norm(layer)]
    if left:
        name, layer = left[0]
        raise Impossible(
            f"{count(len(left), 'batch normalization')} would be left, "
            f"{'such as ' if len(left) > 1 else ''}{type(layer).__name__} {name}: "
            f"{_why_left(network, name, layer)}; model.allow_left=true keeps such layers"
        )


def _why_left(network: fx.GraphModule, name: str, layer: nn.Module) -> str:
    """Return why a batch normalization was not replaced."""
    called = [str(call.target) for call in network.graph.nodes if call.op == "call_module"]
    if outer := next((each for each in called if name.startswith(f"{each}.")), ""):
        kind = type(network.get_submodule(outer)).__name__
        return f"torch.fx does not trace {kind} {outer}, so the activation behind it is unknown"
    if isinstance(layer, TORCH_BATCH_NORMS):
        return (
            "it normalizes neither maps (N, C, H, W) nor (N, C) nor tokens between "
            "x.flatten(0, 1) and reshape_as(x)"
        )
    return "normbench does not know its type"


def own_activation(layer: nn.Module, place: str) -> str | None:
    """Return the name of the activation inside of a normalization, as timm's may have one.

    Raises:
        Impossible: it is none that normalizers know.
    """
    act = getattr(layer, "act", None)
    if isinstance(act, nn.Identity | None):
        return None
    name = activation_name(act)
    if name is None:
        raise unknown_activation(f"{type(act).__name__} of {place}")
    return name


def unknown_activation(activation: str) -> Impossible:
    """Return the error about an activation."""
    return Impossible(
        f"the activation {activation} is none that normalizers know; choose another network"
    )


def require_separable(old: nn.Module, place: str) -> None:
    """Raise Impossible if a layer does more than normalize and then activate."""
    kind = f"{type(old).__name__} at {place}"
    if getattr(old, "apply_act", False):
        raise Impossible(f"{kind} is normalization and activation in one")
    if not isinstance(getattr(old, "drop", None), nn.Identity | None):
        raise Impossible(f"{kind} drops values between normalization and activation")


def fit_in(network: nn.Module, layer: nn.Module) -> nn.Module:
    """Move a new layer to the device and the precision of a network, and return it."""
    known = next((each for each in network.parameters() if each.is_floating_point()), None)
    return layer if known is None else layer.to(known.device, known.dtype)
