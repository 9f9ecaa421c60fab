"""ResNets for small images (He et al. 2016, section 4.2): 6n + 2 layers in basic blocks.

A 3x3 stem, three stages of n blocks with 1, 2 and 4 times the width and maps halved from stage to
stage, global mean pooling and a linear classifier. Where the width grows, the shortcut of a
post-activation (v1) block takes every second pixel and either pads with zero channels (the paper's
option A, which it uses for these nets) or is a normalized 1x1 convolution (option B, which it uses
on ImageNet); that of a pre-activation (v2) block is a 1x1 convolution.
"""

from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from normbench.models.blocks import Order, Shortcut, ZeroInit
from normbench.models.dropout import Fraction
from normbench.models.resnet import Init, ResNet
from normbench.norms.base.layer import Normalizer

STRIDES = (1, 2, 2)


class CifarResNet(ResNet):
    """Post-activation blocks: (N, in_chans, H, W) -> logits (N, num_classes).

    Args:
        depth: 6n + 2 layers.
        shortcut: "identity" (option A) or "projection" (option B).
        stem_stride: 1 as in the paper; 2 makes the net four times cheaper and its maps tiny.
        padding: same pads strided convolutions as SAME of TensorFlow and JAX; null: at both sides.
        dropout: rate before the classifier; null: none.
        stochastic_depth: rate that grows linearly from 0 in the first block; null: none.

    All others are those of `ResNet`.

    Raises:
        ValueError: no n gives `depth`.
        Impossible: the normalizer needs residual branches that these blocks do not have.
    """

    order: ClassVar[Order] = "conv_norm_act"

    def __init__(
        self,
        norm: Normalizer,
        num_classes: int,
        in_chans: int = 3,
        *,
        depth: int = 20,
        width: PositiveInt = 16,
        shortcut: Shortcut = "identity",
        init: Init | None = None,
        head_std: PositiveFloat | None = None,
        stem_stride: PositiveInt = 1,
        padding: Literal["same"] | None = None,
        zero_init_last: ZeroInit | None = None,
        dropout: Fraction | None = None,
        stochastic_depth: Fraction | None = None,
        max_groups: PositiveInt | None = None,
    ) -> None:
        super().__init__(
            norm, num_classes, in_chans, depths=depths(depth), bottleneck=False, order=self.order,
            width=width, strides=STRIDES, shortcut=shortcut, init=init, head_std=head_std,
            stem_size=3, stem_stride=stem_stride, stem_pool=False, padding=padding,
            zero_init_last=zero_init_last,
            dropout=dropout or 0.0, stochastic_depth=stochastic_depth or 0.0,
            max_groups=max_groups,
        )  # fmt: skip


class CifarResNetV2(CifarResNet):
    """Pre-activation blocks, whose shortcuts are projections; all else as in `CifarResNet`."""

    order = "norm_act_conv"

    def __init__(
        self,
        norm: Normalizer,
        num_classes: int,
        in_chans: int = 3,
        *,
        depth: int = 20,
        width: PositiveInt = 16,
        init: Init | None = None,
        head_std: PositiveFloat | None = None,
        stem_stride: PositiveInt = 1,
        padding: Literal["same"] | None = None,
        dropout: Fraction | None = None,
        stochastic_depth: Fraction | None = None,
        max_groups: PositiveInt | None = None,
    ) -> None:
        super().__init__(
            norm, num_classes, in_chans, depth=depth, width=width, shortcut="projection",
            init=init, head_std=head_std, stem_stride=stem_stride, padding=padding, dropout=dropout,
            stochastic_depth=stochastic_depth, max_groups=max_groups,
        )  # fmt: skip


def depths(depth: int) -> tuple[int, int, int]:
    """Return the blocks of the three stages of a network with `depth` layers.

    Raises:
        ValueError: no n gives `depth`.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth={depth}: this family has 6n + 2 layers, as 8, 14, 20 or 56")
    n = (depth - 2) // 6  # two convolutions in each block of three stages
    return n, n, n
