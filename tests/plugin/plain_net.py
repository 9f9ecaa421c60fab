"""A network of a user's own without dropout and stochastic depth."""

from torch import nn

from normbench.norms.base.layer import Normalizer


def plain(norm: Normalizer, num_classes: int, in_chans: int = 3, **_: object) -> nn.Module:
    """A convolution and a classifier."""
    return nn.Sequential(
        nn.Conv2d(in_chans, 8, 3), norm.layer(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, num_classes),
    )  # fmt: skip
