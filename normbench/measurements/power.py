"""The power decomposition of normalized maps (Labatie et al. 2021, eq. 5), layer by layer.

For a channel of y, which is what comes before gain, shift and activation, m_x and s_x its mean and
deviation over the positions of image x:

    P1 = (E_x m_x)^2     a constant: all power here is a channel that has collapsed
    P2 = Var_x m_x       images differ in their mean
    P3 = (E_x s_x)^2     positions of an image differ
    P4 = Var_x s_x       images differ in how much

P1 + P2 + P3 + P4 = E[y^2]. Of a layer these are means over channels; with bn, ln, in and gn they
sum to 1, or with the layer's eps to the mean of var / (var + eps). With in P1 = P2 = P4 = 0
(theorem 2).

linearity (eq. 8 and 9) is how much of a layer's output z = act(affine(y)) the best affine function
of y, channel by channel, accounts for: 1 - E[(z - z_hat)^2] / E[z^2], z_hat = a * y + b by least
squares, powers summed over channels. It is 1 where the layer adds no effective depth. The measure
drawn in the paper's figure 5 stands in a formula that our text of it lacks; this one is ours.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import Impossible
from normbench.measurements.observing import Statistics, observed
from normbench.norms.base.layer import NormAct, Normalizing, upcast


@dataclass(frozen=True)
class Layer:
    """The power terms of a layer, means over its channels."""

    name: str
    depth: int  # from 1 on, in the order in which the layers are called
    p1: float
    p2: float
    p3: float
    p4: float
    linearity: float | None  # None: the layer has no activation

    @property
    def total(self) -> float:
        return self.p1 + self.p2 + self.p3 + self.p4


def power(network: nn.Module, x: Tensor, statistics: Statistics = "batch") -> list[Layer]:
    """Every layer of `network` that normalizes before its affine, for images `x` (N, C, H, W).

    Raises:
        Impossible: there is none, as with EvoNorm and in networks without normalization.
    """
    layers = {layer: name for name, layer in network.named_modules() if _has_y(layer)}
    if not layers:
        kinds = sorted({type(m).__name__ for m in network.modules() if isinstance(m, NormAct)})
        raise Impossible(
            f"no layer of this network ({', '.join(kinds) or 'none is ours'}) has normalized maps "
            "before an affine, which is what the power decomposition is of; bn, ln, in, gn, sn and "
            "their relatives have"
        )
    found: list[Layer] = []
    normalized: dict[Normalizing, Tensor] = {}

    def before(layer: Normalizing, given: tuple[Tensor, ...]) -> None:
        if reason := layer.refusal(given[0].shape):
            raise Impossible(reason)
        # Batch renormalization reads running statistics, which the forward pass moves.
        normalized[layer] = layer.normalize(given[0])

    def behind(layer: Normalizing, _given: tuple[Tensor, ...], output: Tensor) -> None:
        y = normalized.pop(layer)
        p1, p2, p3, p4 = powers(y).mean(dim=1).tolist()
        share = None if layer.act is None else linearity(y, output)
        found.append(Layer(layers[layer], len(found) + 1, p1, p2, p3, p4, share))

    with observed(network, statistics), ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(before).remove)
            hooks.callback(layer.register_forward_hook(behind).remove)
        network(x)
    return found


def powers(y: Tensor) -> Tensor:
    """P1 to P4 of every channel, (4, C), of maps (N, C, H, W)."""
    var, mean = torch.var_mean(upcast(y), dim=(2, 3), correction=0)  # (N, C)
    deviation = var.sqrt()
    return torch.stack(
        [
            mean.mean(0).square(),
            mean.var(0, correction=0),
            deviation.mean(0).square(),
            deviation.var(0, correction=0),
        ]
    )


def linearity(y: Tensor, z: Tensor) -> float:
    """The share of the power of `z` that an affine function of `y` of each channel has."""
    (y, z), axes = (upcast(y), upcast(z)), (0, 2, 3)
    centered_y = y - y.mean(axes, keepdim=True)
    centered_z = z - z.mean(axes, keepdim=True)
    covariance, var_y = (centered_y * centered_z).mean(axes), centered_y.square().mean(axes)
    # Of a constant y nothing but the mean of z is accounted for.
    explained = torch.where(var_y > 0, covariance.square() / var_y, torch.zeros_like(var_y))
    left = (centered_z.square().mean(axes) - explained).clamp(min=0.0).sum()
    whole = z.square().mean(axes).sum()
    return float(1 - left / whole) if whole > 0 else 1.0


def set_eps(network: nn.Module, eps: float) -> int:
    """Give every layer that has one another `eps`, 0 included; how many have one.

    For torch's batch normalization, which takes no 0, it is the least positive number, which added
    to a variance changes nothing.
    """
    value, found = eps or sys.float_info.min, 0
    for layer in network.modules():
        options: Any = getattr(layer, "options", None)  # of switchable normalization
        if isinstance(layer, NormAct) and hasattr(layer, "eps"):
            layer.eps, found = value, found + 1  # type: ignore[assignment]
        elif isinstance(layer, NormAct) and hasattr(options, "eps"):
            layer.options, found = replace(options, eps=value), found + 1
    return found


def _has_y(layer: nn.Module) -> bool:
    return isinstance(layer, Normalizing)
