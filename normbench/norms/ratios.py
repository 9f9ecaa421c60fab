"""The ratios of switchable normalization in a network: read them, give them, make them hard.

The study of switchable normalization (Luo et al. 2019, table 2) takes the ratios that a network has
learned, makes each layer's largest one hard, and trains on, or anew with these from the beginning:

    from normbench.norms.ratios import harden, ratios, set_ratios
    learned = ratios(network)                   # {"layer": {"mean": [in, ln, bn], "var": [...]}}
    harden(network)                             # the largest of each layer alone, from now on
    set_ratios(another, learned, hard=True)     # the same for a network that is to be trained anew
"""

from collections.abc import Mapping, Sequence

from torch import nn

from normbench.norms.switchable import SwitchableNormAct, are_ratios, logits_of

Ratios = Mapping[str, Mapping[str, Sequence[float]]]


def ratios(model: nn.Module) -> dict[str, dict[str, list[float]]]:
    """{"mean": [...], "var": [...]} of every switchable layer of `model`, by its name."""
    found = {}
    for name, layer in switchable_layers(model):
        mean, var = layer.ratios()
        found[name] = {"mean": mean.tolist(), "var": var.tolist()}
    return found


def mean_ratios(model: nn.Module) -> dict[str, float]:
    """Means of the ratios over all switchable layers, as {"mean.bn": 0.3, ...}; {} without any."""
    sums: dict[str, list[float]] = {}
    for layer in model.modules():
        if isinstance(layer, SwitchableNormAct):
            for of, values in zip(("mean", "var"), layer.ratios(), strict=True):
                for member, value in zip(layer.options.over, values.tolist(), strict=True):
                    sums.setdefault(f"{of}.{member}", []).append(value)
    return {key: sum(values) / len(values) for key, values in sums.items()}


def set_ratios(model: nn.Module, given: Ratios, *, hard: bool = False) -> None:
    """Give each switchable layer of `model` the ratios that `ratios` found, perhaps hard ones.

    Raises:
        ValueError: a layer has no ratios in `given`, or too many or few, or they do not sum to 1.
    """
    for name, layer in switchable_layers(model):
        if name not in given:
            raise ValueError(f"no ratios are given for the layer {name}")
        members = len(layer.options.over)
        own = {"mean": given[name]["mean"], "var": given[name]["var"]}
        if not all(are_ratios(each, members) for each in own.values()):
            raise ValueError(f"the ratios {own} of the layer {name} are not {members} with sum 1")
        if layer.options.tied and list(own["mean"]) != list(own["var"]):
            raise ValueError(f"the layer {name} has one vector of ratios; {own} are two")
        for key, logits in layer.named_parameters(recurse=False):
            if key.endswith("logits"):
                chosen = list(own["var" if key.startswith("var") else "mean"])
                if hard:  # in the logits too, so that a saved state keeps them
                    chosen = [float(k == chosen.index(max(chosen))) for k in range(members)]
                logits.data.copy_(logits_of(tuple(chosen), members))
                logits.requires_grad_(not hard)
        layer.hard = hard


def harden(model: nn.Module) -> None:
    """From now on the largest ratio of each switchable layer counts alone, for good."""
    set_ratios(model, ratios(model), hard=True)


def switchable_layers(model: nn.Module) -> list[tuple[str, SwitchableNormAct]]:
    """The switchable layers of `model` by their names.

    Raises:
        ValueError: there are none.
    """
    named = model.named_modules()
    found = [(name, layer) for name, layer in named if isinstance(layer, SwitchableNormAct)]
    if not found:
        raise ValueError("the network has no switchable normalization")
    return found
