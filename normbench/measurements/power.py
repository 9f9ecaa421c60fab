"""Power decomposition of normalized maps (Labatie et al. 2021, eq. 5), layer by layer.

y is the normalized map before gain, shift and activation. For a channel of y, with m_x and s_x its
mean and standard deviation over the positions of image x:

    P1 = (E_x m_x)^2     a constant: a channel with all its power here has collapsed
    P2 = Var_x m_x       the means of images differ
    P3 = (E_x s_x)^2     the positions of an image differ
    P4 = Var_x s_x       the deviations of images differ

    P1 + P2 + P3 + P4 = E[y^2]

The terms of a layer are means over its channels. With bn, ln, in and gn they sum to 1, or with the
layer's eps to the mean of var / (var + eps). With in P1 = P2 = P4 = 0 (theorem 2).

linearity (eq. 8 and 9) is the share of the power of a layer's output z = act(affine(y)) that the
best affine function of y explains, channel by channel: 1 - E[(z - z_hat)^2] / E[z^2] with
z_hat = a * y + b by least squares and powers summed over channels. It is 1 where the layer adds no
effective depth. The formula of the measure in the paper's figure 5 is not in our text of the paper;
this one is ours.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import Impossible
from normbench.models.random_net import RandomNet
from normbench.norms.base.layer import NormAct, Normalizing
from normbench.norms.base.tensors import upcast
from normbench.norms.frn import FilterResponseNormAct
from normbench.norms.measuring import StatisticsSource, measuring
from normbench.records.probes import Record, group_by, network_label

CURVE = ("power_p1", "power_p2", "power_p3", "power_p4")
HEAD = ("network", "layer", "P1", "P2", "P3", "P4", "sum", "linearity")


@dataclass(frozen=True)
class LayerPower:
    """Power terms of a layer, means over its channels."""

    name: str
    depth: int  # from 1 on, in the order of the calls
    p1: float
    p2: float
    p3: float
    p4: float
    linearity: float | None  # None: the layer has no activation

    @property
    def total(self) -> float:
        return self.p1 + self.p2 + self.p3 + self.p4


def power(
    network: nn.Module, x: Tensor, statistics: StatisticsSource = "batch"
) -> list[LayerPower]:
    """Return the power of every layer of `network` with a normalized map, for images (N, C, H, W).

    Raises:
        Impossible: no layer normalizes before its affine, as with EvoNorm and without any
            normalization.
    """
    layers = {m: name for name, m in network.named_modules() if isinstance(m, Normalizing)}
    if not layers:
        kinds = sorted({type(m).__name__ for m in network.modules() if isinstance(m, NormAct)})
        raise Impossible(
            f"the power decomposition needs layers with normalized maps before an affine, as those "
            f"of bn, ln, in, gn and sn; this network has {', '.join(kinds) or 'none of normbench'}"
        )
    powers_of_layers: list[LayerPower] = []
    normalized: dict[Normalizing, Tensor] = {}

    def before(layer: Normalizing, inputs: tuple[Tensor, ...]) -> None:
        if reason := layer.refusal(inputs[0].shape):
            raise Impossible(reason)
        # Before the layer runs: batch renormalization reads running statistics that it then moves.
        normalized[layer] = layer.normalize(inputs[0])

    def after(layer: Normalizing, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        y = normalized.pop(layer)
        p1, p2, p3, p4 = powers(y).mean(dim=1).tolist()
        share = None if layer.act is None else linearity(y, output)
        depth = len(powers_of_layers) + 1
        powers_of_layers.append(LayerPower(layers[layer], depth, p1, p2, p3, p4, share))

    with measuring(network, statistics), ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(before).remove)
            hooks.callback(layer.register_forward_hook(after).remove)
        network(x)
    return powers_of_layers


def powers(y: Tensor) -> Tensor:
    """Return P1 to P4 of every channel, (4, C), of maps (N, C, H, W)."""
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
    """Return the share of the power of `z` that an affine function of each channel of `y` has."""
    (y, z), axes = (upcast(y), upcast(z)), (0, 2, 3)
    centered_y = y - y.mean(axes, keepdim=True)
    centered_z = z - z.mean(axes, keepdim=True)
    covariance, var_y = (centered_y * centered_z).mean(axes), centered_y.square().mean(axes)
    # A constant y explains the mean of z alone.
    explained = torch.where(var_y > 0, covariance.square() / var_y, torch.zeros_like(var_y))
    # Where all is explained, rounding can leave a tiny negative rest.
    unexplained = (centered_z.square().mean(axes) - explained).clamp(min=0.0).sum()
    total = z.square().mean(axes).sum()
    return float(1 - unexplained / total) if total > 0 else 1.0


def set_eps(network: nn.Module, eps: float) -> int:
    """Set the `eps`, which may be 0, of every layer that has one; return their number.

    0 becomes the smallest positive number, since torch's batch normalization refuses 0; adding it
    to a variance changes nothing.
    """
    value, layers = eps or sys.float_info.min, 0
    for layer in network.modules():
        options: Any = getattr(layer, "options", None)  # of switchable normalization
        if isinstance(layer, FilterResponseNormAct):  # its `eps` is learned, or none
            layer.least, layers = value, layers + 1
        elif isinstance(layer, NormAct) and hasattr(layer, "eps"):
            layer.eps, layers = value, layers + 1  # type: ignore[assignment]
        elif isinstance(layer, NormAct) and hasattr(options, "eps"):
            layer.options, layers = replace(options, eps=value), layers + 1
    return layers


def measure(
    network: nn.Module, images: Tensor, statistics: StatisticsSource = "batch"
) -> list[Record]:
    """Return a record for each layer; in a random net with the bound of theorem 1."""
    layers = power(network, images, statistics)
    records: list[Record] = [{**asdict(layer), "total": layer.total} for layer in layers]
    if isinstance(network, RandomNet):
        for record in records:
            record["bound"] = network.rho ** (record["depth"] - 1)
    return records


def curve_means(records: Sequence[Record]) -> dict[str, float]:
    """Return the means over layers, by the names in `CURVE`."""
    return {name: fmean(layer[name.removeprefix("power_")] for layer in records) for name in CURVE}


def table(records: Sequence[Record]) -> list[list[object]]:
    """Return a row for the first, the middle and the last layer with an activation."""
    rows: list[list[object]] = []
    for network, layers in group_by(records, "network", "epoch").items():
        active = [layer for layer in layers if layer["linearity"] is not None] or layers
        for layer in (active[0], active[len(active) // 2], active[-1]):
            terms = [f"{float(layer[name]):.4f}" for name in ("p1", "p2", "p3", "p4", "total")]
            share = "" if layer["linearity"] is None else f"{layer['linearity']:.4f}"
            rows.append([network_label(network), layer["depth"], *terms, share])
    return rows
