"""The ratios of switchable normalization in a network: read, set and harden them.

The study of switchable normalization (Luo et al. 2019, table 2) takes the ratios that a network has
learned, hardens each layer's largest one, and continues training, or starts again with them:

    from normbench.norms.ratios import harden, ratios, set_ratios
    learned = ratios(network)                   # {"layer": {"mean": [in, ln, bn], "var": [...]}}
    harden(network)                             # keep only the largest ratio of each layer
    set_ratios(another, learned, hard=True)     # the same for a new network
"""

from collections.abc import Mapping, Sequence

from torch import nn

from normbench.norms.switchable import SwitchableNormAct, are_ratios

Ratios = Mapping[str, Mapping[str, Sequence[float]]]


def ratios(model: nn.Module) -> dict[str, dict[str, list[float]]]:
    """Return {"mean": [...], "var": [...]} of every switchable layer of `model`, by name."""
    by_layer = {}
    for name, layer in switchable_layers(model):
        mean, var = layer.ratios()
        by_layer[name] = {"mean": mean.tolist(), "var": var.tolist()}
    return by_layer


def mean_ratios(model: nn.Module) -> dict[str, float]:
    """Return the ratios averaged over layers, as {"mean.bn": 0.3, ...}; {} without any layer."""
    sums: dict[str, list[float]] = {}
    for layer in model.modules():
        if isinstance(layer, SwitchableNormAct):
            for statistic, values in zip(("mean", "var"), layer.ratios(), strict=True):
                for member, value in zip(layer.options.over, values.tolist(), strict=True):
                    sums.setdefault(f"{statistic}.{member}", []).append(value)
    return {key: sum(values) / len(values) for key, values in sums.items()}


def set_ratios(model: nn.Module, learned: Ratios, *, hard: bool = False) -> None:
    """Set the ratios of each switchable layer of `model` to those that `ratios` returned.

    Args:
        model: the network.
        learned: ratios by the name of the layer.
        hard: keep only the largest ratio of each layer, and stop learning ratios.

    Raises:
        ValueError: a layer has no ratios in `learned`, too many or few, or their sum is not 1;
            or it would make soft ratios sparse.
    """
    for name, layer in switchable_layers(model):
        if name not in learned:
            raise ValueError(f"no ratios for the layer {name}")
        members = len(layer.options.over)
        values = {"mean": learned[name]["mean"], "var": learned[name]["var"]}
        if not all(are_ratios(each, members) for each in values.values()):
            raise ValueError(
                f"the ratios {values} of the layer {name} are not {members} with sum 1"
            )
        if layer.options.tied and list(values["mean"]) != list(values["var"]):
            raise ValueError(f"the layer {name} has one vector of ratios; {values} are two")
        layer.choose(values["mean"], values["var"], hard=hard)
        for key, logits in layer.named_parameters(recurse=False):
            if key.endswith("logits"):
                chosen = list(values["var" if key.startswith("var") else "mean"])
                if hard:  # in the logits too, so that a saved state keeps them
                    chosen = [float(k == chosen.index(max(chosen))) for k in range(members)]
                logits.data.copy_(layer.logits_of(tuple(chosen)))
                logits.requires_grad_(not hard)


def harden(model: nn.Module) -> None:
    """Keep only the largest ratio of each switchable layer, permanently."""
    set_ratios(model, ratios(model), hard=True)


def switchable_layers(model: nn.Module) -> list[tuple[str, SwitchableNormAct]]:
    """Return the switchable layers of `model` with their names.

    Raises:
        ValueError: there are none.
    """
    named = model.named_modules()
    layers = [(name, layer) for name, layer in named if isinstance(layer, SwitchableNormAct)]
    if not layers:
        raise ValueError("the network has no switchable normalization; norm=sn has it")
    return layers
