"""Ratios that switchable normalization has learned (Luo et al. 2019, section 4).

For each layer the ratios of in, ln and bn in its means and in its variances, with the receptive
field of the layer. The paper groups the layers of a classifier by receptive fields, and those of
Mask R-CNN by the parts of this network (figures 8 and 10). Two vectors of ratios, those of a
layer's means and variances or those of one layer in two networks, differ by

    D(p || q) = KL(p || q) + KL(q || p)
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from torch import Tensor, nn

from normbench.measurements.receptive_field import receptive_fields
from normbench.models.mask_rcnn import MaskRcnn
from normbench.norms.measuring import StatisticsSource
from normbench.norms.ratios import switchable_layers
from normbench.norms.switchable import MEMBERS
from normbench.records.probes import Record, group_by

#: Upper ends of the paper's ranges of receptive fields; 427 is that of ResNet-50's last layer.
EDGES = (49, 99, 199, 299, 427)
CURVE = tuple(f"ratio_{of}_{member}" for of in ("mean", "var") for member in MEMBERS)
#: The paper's names for the parts of Mask R-CNN.
PARTS = {
    "backbone": "backbone",
    "pyramid": "FPN",
    "heads.box_head": "box stream",
    "heads.mask_head": "mask stream",
}
HEAD = ("network", "of", "group", "layers", *MEMBERS, "D(mean || var)", "seeds")


@dataclass(frozen=True)
class LayerRatios:
    """Ratios of a switchable layer in the order in, ln, bn; 0 for a member that it does not mix."""

    name: str
    depth: int
    field: int | None  # pixels along a side of the image; None behind the backbone of Mask R-CNN
    mean: tuple[float, ...]
    var: tuple[float, ...]


def ratios(network: nn.Module, image: tuple[int, int, int]) -> list[LayerRatios]:
    """Return the ratios of the switchable layers of `network`, in order of depth.

    The receptive fields are those for images of the shape `image` (C, H, W).

    Raises:
        ValueError: the network has no switchable layer.
    """
    fields = fields_of_layers(network, image)
    layers = dict(switchable_layers(network))
    ratios_of_layers = []
    for depth, (name, field) in enumerate(fields.items(), 1):
        layer = layers[name]
        mean, var = (
            dict(zip(layer.options.over, values.tolist(), strict=True)) for values in layer.ratios()
        )
        both = [tuple(each.get(member, 0.0) for member in MEMBERS) for each in (mean, var)]
        ratios_of_layers.append(LayerRatios(name, depth, field, *both))
    return ratios_of_layers


def fields_of_layers(network: nn.Module, image: tuple[int, int, int]) -> dict[str, int | None]:
    """Return `LayerRatios.field` of the switchable layers by their names, in order of depth.

    They are those that an evaluation calls, without an auxiliary head. Those of Mask R-CNN behind
    its backbone are in the order in which its modules are listed.

    Raises:
        ValueError: the network has no switchable layer.
    """
    switchable = [name for name, _ in switchable_layers(network)]
    if not isinstance(network, MaskRcnn):
        fields = receptive_fields(network, image)
        # Modules are listed as they were assigned, which need not be the order of the calls.
        return {name: field for name, field in fields.items() if name in switchable}
    backbone = fields_of_layers(network.backbone, image)
    named = {f"backbone.{name}": field for name, field in backbone.items()}
    return {**named, **dict.fromkeys(name for name in switchable if name not in named)}


def largest_member(record: Record) -> str:
    """Return the member with the largest ratio in a record of `measure`."""
    return max(MEMBERS, key=lambda member: float(record[member]))


def divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """Return KL(p || q) + KL(q || p); infinite where only one of two ratios is 0."""
    total = 0.0
    for one, other in zip(p, q, strict=True):
        if one == other:
            continue
        total += (one - other) * (math.log(one) - math.log(other)) if one and other else math.inf
    return total


def field_groups(fields: Sequence[int]) -> Mapping[int, str]:
    """Return the group of every receptive field, as "RF 50 to 99".

    The groups are the paper's ranges, as far as the network reaches. Where all fields lie in one or
    two of these ranges, they are thirds of the layers.
    """
    edges = [edge for edge in EDGES if edge < max(fields)]
    if len(edges) < 2:
        ordered = sorted(fields)
        edges = sorted({ordered[len(ordered) * part // 3 - 1] for part in (1, 2)} - {max(fields)})
    edges = [*edges, max(fields)]
    groups = {}
    for field in sorted(set(fields)):
        place = bisect_left(edges, field)
        least = edges[place - 1] + 1 if place else min(fields)
        groups[field] = f"RF {least} to {edges[place]}"
    return groups


def measure(
    network: nn.Module, images: Tensor, _statistics: StatisticsSource = "batch"
) -> list[Record]:
    """Return two records for each layer, of its means and of its variances.

    Ratios do not depend on images; only the shape of `images` (N, C, H, W) is read.
    """
    channels, height, width = images.shape[1:]
    layers = ratios(network, (channels, height, width))
    groups = groups_of_layers({layer.name: layer.field for layer in layers})
    return [
        {
            "layer": layer.name, "depth": layer.depth, "field": layer.field,
            "group": groups[layer.name], "of": of, **dict(zip(MEMBERS, values, strict=True)),
            "divergence": divergence(layer.mean, layer.var),
        }
        for layer in layers
        for of, values in (("mean", layer.mean), ("var", layer.var))
    ]  # fmt: skip


def groups_of_layers(fields: Mapping[str, int | None]) -> dict[str, str]:
    """Return the group of each layer of `fields` (`fields_of_layers`) by its name.

    Where layers without a receptive field are among them, it is the part of Mask R-CNN.
    """
    with_field = {name: field for name, field in fields.items() if field is not None}
    if len(with_field) < len(fields):
        return {name: _part(name) for name in fields}
    by_field = field_groups([*with_field.values()])
    return {name: by_field[field] for name, field in with_field.items()}


def _part(layer: str) -> str:
    for part, title in PARTS.items():
        if layer.startswith(f"{part}."):
            return title
    raise ValueError(f"{layer} has no receptive field and is in no part of Mask R-CNN")


def curve_means(records: Sequence[Record]) -> dict[str, float]:
    """Return the means over layers, by the names in `CURVE`."""
    return {
        f"ratio_{of}_{member}": fmean(record[member] for record in layers)
        for of, layers in group_by(records, "of").items()
        for member in MEMBERS
    }


def table(records: Sequence[Record]) -> list[list[object]]:
    """Return a row for the means over each group of layers, and over all layers, of a network."""
    rows: list[list[object]] = []
    for (network, of), layers in group_by(records, "network", "of").items():
        for group, chosen in [*group_by(layers, "group").items(), ("all", layers)]:
            shares = [f"{fmean(layer[m] for layer in chosen):.3f}" for m in MEMBERS]
            difference = f"{fmean(layer['divergence'] for layer in chosen):.3f}"
            seeds = len(group_by(chosen, "run"))
            rows.append([network, of, group, len(chosen) // seeds, *shares, difference, seeds])
    return rows
