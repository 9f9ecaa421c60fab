"""Heads of semantic segmentation: maps (N, C, h, w) -> logits (N, classes, h, w)."""

from collections.abc import Sequence

from torch import Tensor, nn

from normbench.models.blocks import Conv, convolution
from normbench.models.dropout import Dropout
from normbench.norms.base.layer import Normalizer

FCN_WIDTH = 256
FCN_DILATION = 6
DEEPLAB_RATES = (6, 12, 18, 24)


class FcnHead(nn.Sequential):
    """Two normalized 3x3 convolutions of dilation 6 and a 1x1 (He et al. 2020, MoCo; Brock et al.
    2021, appendix H.1).

    Args:
        norm: the normalizer of the 3x3 convolutions.
        channels: of the maps.
        classes: of a pixel.
        width: channels of the 3x3 convolutions, 256 in MoCo; Brock et al. give none.
        dilation: of the 3x3 convolutions.
    """

    def __init__(
        self,
        norm: Normalizer,
        channels: int,
        classes: int,
        width: int = FCN_WIDTH,
        dilation: int = FCN_DILATION,
    ) -> None:
        super().__init__(
            convolution(norm, Conv(channels, width, dilation=dilation)),
            norm.layer(width, "relu"),
            convolution(norm, Conv(width, width, dilation=dilation)),
            norm.layer(width, "relu"),
            nn.Conv2d(width, classes, 1),
        )


class DeepLabV2Head(nn.Module):
    """The sum of four 3x3 convolutions to classes with the rates 6, 12, 18 and 24, and no
    normalization: atrous spatial pyramid pooling (Chen et al. 2017, DeepLab, section 3.2)."""

    def __init__(self, channels: int, classes: int, rates: Sequence[int] = DEEPLAB_RATES) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Conv2d(channels, classes, 3, padding=rate, dilation=rate) for rate in rates
        )

    def forward(self, x: Tensor) -> Tensor:
        first, *others = (branch(x) for branch in self.branches)
        logits: Tensor = first
        for other in others:
            logits = logits + other
        return logits


class AuxiliaryHead(nn.Sequential):
    """A normalized 3x3 convolution to a quarter of the channels, dropout of 0.1 and a 1x1, on the
    maps of the last but one stage (Zhao et al. 2017, PSPNet, section 3.3 and its code)."""

    def __init__(self, norm: Normalizer, channels: int, classes: int) -> None:
        width = channels // 4
        super().__init__(
            convolution(norm, Conv(channels, width)),
            norm.layer(width, "relu"),
            Dropout(0.1, whole_maps=True),
            nn.Conv2d(width, classes, 1),
        )
