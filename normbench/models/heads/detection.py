"""Parts of Mask R-CNN, with any normalizer: the feature pyramid and the heads of its regions."""

from collections.abc import Sequence

from torch import nn
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from normbench.models.blocks import Conv, add_biases, convolution
from normbench.norms.base.layer import Normalizer


def feature_pyramid(norm: Normalizer, channels: Sequence[int], width: int) -> FeaturePyramidNetwork:
    """Return a feature pyramid (Lin et al. 2017) with a normalization behind every convolution.

    Args:
        norm: the normalizer.
        channels: of the maps of each stage.
        width: channels of the results, of which there is one more: the last one, pooled.
    """
    pyramid = FeaturePyramidNetwork(
        [*channels], width, LastLevelMaxPool(), lambda channels: norm.layer(channels, None)
    )
    if norm.conv is not None:
        for name, layer in [*pyramid.named_modules()]:
            if isinstance(layer, nn.Conv2d):
                pyramid.set_submodule(name, norm.conv.apply(layer))
    if norm.conv_bias:
        add_biases(pyramid)
    return pyramid


def box_head(
    norm: Normalizer, width: int, side: int, convolutions: int, hidden: int
) -> nn.Sequential:
    """Return normalized 3x3 convolutions and a linear layer: maps (R, C, S, S) -> (R, hidden).

    With 4 convolutions this is the head 4conv1fc of Wu and He 2018.

    Args:
        norm: the normalizer.
        width: C, channels of the maps and of the convolutions.
        side: S.
        convolutions: their number.
        hidden: units of the linear layer.
    """
    return nn.Sequential(
        *_convolutions(norm, width, convolutions),
        nn.Flatten(),
        nn.Linear(width * side * side, hidden),
        nn.ReLU(),
    )


def mask_head(norm: Normalizer, width: int, convolutions: int = 4) -> nn.Sequential:
    """Return normalized 3x3 convolutions of `width` channels (He et al. 2017, figure 4)."""
    return nn.Sequential(*_convolutions(norm, width, convolutions))


def _convolutions(norm: Normalizer, width: int, number: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(number):
        conv = convolution(norm, Conv(width, width))
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        layers += [conv, norm.layer(width, "relu")]
    return layers
