"""What switchable normalization has learned (Luo et al. 2019, section 4).

For each layer the ratios of in, ln and bn in its means and in its variances, with the receptive
field of the layer, by which the paper groups them; and how far two vectors of ratios are apart:

    D(p || q) = KL(p || q) + KL(q || p)

of a layer's means and variances, or of one layer in two networks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from normbench.measurements.receptive import receptive_fields
from normbench.norms.ratios import switchable_layers
from normbench.norms.switchable import MEMBERS

#: Of the paper's figures; the last is the field of ResNet-50's last layer.
EDGES = (49, 99, 199, 299, 427)


@dataclass(frozen=True)
class Layer:
    """A switchable layer; ratios in the order in, ln, bn, 0 for one that it does not mix."""

    name: str
    depth: int
    field: int  # pixels along a side of the image
    mean: tuple[float, ...]
    var: tuple[float, ...]


def ratios(network: nn.Module, image: tuple[int, int, int]) -> list[Layer]:
    """Every switchable layer of `network` for images (C, H, W), in order of depth.

    Raises:
        ValueError: there is none.
    """
    named = switchable_layers(network)
    fields = receptive_fields(network, image)
    order = {name: place for place, name in enumerate(fields)}
    found = []
    for depth, (name, layer) in enumerate(sorted(named, key=lambda pair: order[pair[0]]), 1):
        over = layer.options.over
        mean, var = (dict(zip(over, each.tolist(), strict=True)) for each in layer.ratios())
        whole = [tuple(each.get(member, 0.0) for member in MEMBERS) for each in (mean, var)]
        found.append(Layer(name, depth, fields[name], *whole))
    return found


def divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """KL(p || q) + KL(q || p); infinite where one has a ratio of 0 and the other has not."""
    total = 0.0
    for one, other in zip(p, q, strict=True):
        if one == other:
            continue
        total += (one - other) * (math.log(one) - math.log(other)) if one and other else math.inf
    return total


def groups(fields: Sequence[int]) -> Mapping[int, str]:
    """The group of every receptive field: the paper's ranges, as far as a network reaches.

    Where all fields lie in two of them, thirds of the layers instead.
    """
    edges = [edge for edge in EDGES if edge < max(fields)]
    if len(edges) < 2:
        ordered = sorted(fields)
        edges = sorted({ordered[len(ordered) * part // 3 - 1] for part in (1, 2)} - {max(fields)})
    edges = [*edges, max(fields)]
    found = {}
    for field in set(fields):
        place = next(place for place, edge in enumerate(edges) if field <= edge)
        least = edges[place - 1] + 1 if place else min(fields)
        found[field] = f"RF {least} to {edges[place]}"
    return dict(sorted(found.items()))
