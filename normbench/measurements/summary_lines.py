"""What probes of a forward pass see, as lines of `normbench.run_files`."""

from collections.abc import Callable
from dataclasses import asdict

from torch import Tensor, nn

from normbench.measurements.observing import Statistics
from normbench.measurements.power import power
from normbench.measurements.ratios import divergence, groups, ratios
from normbench.measurements.spp import propagation
from normbench.norms.switchable import MEMBERS
from normbench.run_files import Record


def spp_lines(network: nn.Module, images: Tensor, statistics: Statistics = "batch") -> list[Record]:
    """A line for each residual block."""
    blocks = propagation(network, images, statistics)
    return [{"block": number, **asdict(block)} for number, block in enumerate(blocks, 1)]


def power_lines(
    network: nn.Module, images: Tensor, statistics: Statistics = "batch"
) -> list[Record]:
    """A line for each layer."""
    layers = power(network, images, statistics)
    return [{**asdict(layer), "total": layer.total} for layer in layers]


def ratio_lines(
    network: nn.Module, images: Tensor, _statistics: Statistics = "batch"
) -> list[Record]:
    """Two lines for each layer, of its means and of its variances."""
    channels, height, width = images.shape[1:]
    layers = ratios(network, (channels, height, width))
    group = groups([layer.field for layer in layers])
    lines: list[Record] = []
    for layer in layers:
        own = divergence(layer.mean, layer.var)
        for of, values in (("mean", layer.mean), ("var", layer.var)):
            place = {"layer": layer.name, "depth": layer.depth, "field": layer.field}
            shares: Record = {str(m): share for m, share in zip(MEMBERS, values, strict=True)}
            lines.append(
                {**place, "group": group[layer.field], "of": of, **shares, "divergence": own}
            )
    return lines


LINES: dict[str, Callable[[nn.Module, Tensor, Statistics], list[Record]]] = {
    "spp": spp_lines,
    "power": power_lines,
    "ratios": ratio_lines,
}
