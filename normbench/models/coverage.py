"""Count, in the finished network, the layers that its normalizer reached and missed."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import nn

from normbench.models.layer_types import (
    STANDARDIZED_CONVS,
    is_activation,
    is_norm,
)
from normbench.norms.base.layer import Activation, NormAct, Normalizer, Scale
from normbench.norms.base.standardized_conv import StandardizedConv2d
from normbench.norms.batch import BatchNorm, is_batch_norm
from normbench.norms.frn import ThresholdedLinear
from normbench.norms.layer_norm_2d import LayerNorm2d


@dataclass(frozen=True)
class Coverage:
    """Counts of layers of a network, by what the normalizer did with them."""

    pairs: int  # normalization and activation in one layer
    alone: int  # normalizations without a following activation
    scales: int  # learned ones at the end of residual branches with standardized weights
    activations: int  # without a preceding normalization, as after a v1 addition
    convs: int
    standardized: int  # convolutions whose weights the normalizer standardizes
    adjusted: dict[str, int]  # layers with fewer groups than asked for; keys as "16 of 32"
    kept: dict[str, int]  # layers that keep the network's eps or momentum, by setting
    untouched: dict[str, int]  # activations that stay, as in squeeze-excite, by class
    left: dict[str, int]  # normalizations and standardized convolutions that stay, by class

    def __str__(self) -> str:
        """Return one line for the terminal, the log and the row."""
        counts = [f"{count} {label}" for label, count in self.counts()]
        kinds = [f"{label}: {classes}" for label, classes in self.kinds()]
        return "; ".join(counts + kinds)

    def counts(self) -> list[tuple[str, str]]:
        """Return pairs (label, count); rare kinds only if present."""
        activations = self.pairs + self.activations
        usual = [
            ("norm + activation", f"{self.pairs:,}"),
            ("norm alone", f"{self.alone:,}"),
            ("activations with a norm before them", f"{self.pairs:,} of {activations:,}"),
            ("convolutions standardized", f"{self.standardized:,} of {self.convs:,}"),
        ]
        rare = {"scales at ends of branches": self.scales}
        rare |= {f"layers with {groups} groups": count for groups, count in self.adjusted.items()}
        rare |= {f"layers that keep {setting}": count for setting, count in self.kept.items()}
        return usual + [(label, f"{count:,}") for label, count in rare.items() if count]

    def kinds(self) -> list[tuple[str, str]]:
        """Return pairs (label, classes) of what the normalizer did not reach."""
        untouched = [("untouched", _join_counts(self.untouched))] if self.untouched else []
        return [*untouched, ("left", _join_counts(self.left) or "nothing")]


def coverage(network: nn.Module, norm: Normalizer) -> Coverage:
    """Count what `norm` reached in `network`."""
    layers = list(network.modules())
    norms = [layer for layer in layers if isinstance(layer, NormAct)]
    groups = getattr(norm, "groups", None)  # the number that its yaml asks for
    return Coverage(
        pairs=sum(layer.act is not None for layer in norms),
        alone=sum(layer.act is None and not isinstance(layer, Scale) for layer in norms),
        scales=sum(isinstance(layer, Scale) for layer in norms),
        activations=sum(isinstance(layer, Activation | ThresholdedLinear) for layer in layers),
        convs=sum(isinstance(layer, nn.Conv2d) for layer in layers),
        standardized=sum(isinstance(layer, StandardizedConv2d) for layer in layers),
        adjusted=_count_kinds(
            f"{layer.groups} of {groups}"
            for layer in norms
            if groups is not None and getattr(layer, "groups", groups) != groups
        ),
        kept=_count_kinds(_inherited_settings(norms, norm)),
        untouched=_count_kinds(type(layer).__name__ for layer in layers if is_activation(layer)),
        left=_count_kinds(
            type(layer).__name__
            for layer in layers
            if is_norm(layer) or is_batch_norm(layer) or isinstance(layer, STANDARDIZED_CONVS)
        ),
    )


def _inherited_settings(layers: list[NormAct], norm: Normalizer) -> Iterator[str]:
    """Yield eps and momentum that layers have inherited, where they are not the normalizer's."""
    for name in ("eps", "momentum") if isinstance(norm, BatchNorm | LayerNorm2d) else ():
        usual = getattr(norm, name, None)
        for layer in layers:
            if (setting := getattr(layer, name, usual)) != usual:
                yield f"{name}={setting:g}"


def _join_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _count_kinds(kinds: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(kinds).items()))
