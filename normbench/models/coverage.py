"""What of a network its normalizer reached: counted in the finished network, not promised."""

from collections import Counter
from dataclasses import dataclass

from torch import nn

from normbench.models.graph import is_batch_norm, is_norm, is_standardized
from normbench.norms.convolution import StandardizedConv2d
from normbench.norms.frn import ThresholdedLinear
from normbench.norms.layer import Activation, NormAct, Normalizer, Scale


@dataclass(frozen=True)
class Coverage:
    """Counts of layers.

    Args:
        pairs: normalization and activation in one.
        alone: normalizations that no activation follows.
        scales: learned scales at the end of residual branches with standardized weights.
        activations: activations that no normalization precedes, as after a v1 addition.
        convs: convolutions.
        standardized: those of them whose weights the normalizer standardizes.
        adjusted: layers by their groups, as "16 of 32", where channels or a cap allow no more.
        left: normalizations of others' that are still there, by kind; convolutions that others
            standardize, too.
    """

    pairs: int
    alone: int
    scales: int
    activations: int
    convs: int
    standardized: int
    adjusted: dict[str, int]
    left: dict[str, int]

    def __str__(self) -> str:
        """One line for the terminal and the log."""
        activations = self.pairs + self.activations
        parts = [
            f"{self.pairs} norm + activation, {self.alone} norm alone",
            f"{self.pairs} of {activations} activations have a norm before them",
            f"{self.standardized} of {self.convs} convolutions standardized",
        ]
        parts += [f"{self.scales} scales at ends of branches"] if self.scales else []
        adjusted = [
            f"{times} layers with {groups} groups" for groups, times in self.adjusted.items()
        ]
        left = [f"{times} {kind}" for kind, times in self.left.items()]
        return "; ".join([*parts, *adjusted, f"left: {', '.join(left) or 'nothing'}"])

    def table(self) -> list[tuple[str, str]]:
        """What was counted, and how much of it."""
        adjusted = [(f"layers with {groups} groups", n) for groups, n in self.adjusted.items()]
        left = [(f"left: {kind}", n) for kind, n in self.left.items()] or [("left", 0)]
        counts = [
            ("norm and activation in one", self.pairs),
            ("norm alone", self.alone),
            ("activation without norm", self.activations),
            ("scale at a branch's end", self.scales),
            ("convolutions", self.convs),
            ("standardized convolutions", self.standardized),
        ]
        return [(what, f"{times:,}") for what, times in [*counts, *adjusted, *left]]


def coverage(network: nn.Module, norm: Normalizer) -> Coverage:
    """What of `network` is `norm`'s."""
    layers = list(network.modules())
    norms = [layer for layer in layers if isinstance(layer, NormAct)]
    asked = getattr(norm, "groups", None)
    return Coverage(
        pairs=sum(layer.act is not None for layer in norms),
        alone=sum(layer.act is None and not isinstance(layer, Scale) for layer in norms),
        scales=sum(isinstance(layer, Scale) for layer in norms),
        activations=sum(isinstance(layer, Activation | ThresholdedLinear) for layer in layers),
        convs=sum(isinstance(layer, nn.Conv2d) for layer in layers),
        standardized=sum(isinstance(layer, StandardizedConv2d) for layer in layers),
        adjusted=_counted(
            f"{layer.groups} of {asked}"
            for layer in norms
            if asked is not None and getattr(layer, "groups", asked) != asked
        ),
        left=_counted(
            type(layer).__name__
            for layer in layers
            if is_norm(layer) or is_batch_norm(layer) or is_standardized(layer)
        ),
    )


def _counted(kinds: object) -> dict[str, int]:
    return dict(sorted(Counter(kinds).items()))  # type: ignore[call-overload]
