"""ResNets (He et al. 2016) and ResNeXts in every order of layers, for large and small images.

A stem, stages of residual blocks whose maps shrink and whose channels double from stage to stage,
the mean over positions, dropout and a linear classifier. Blocks are basic or bottlenecks; with a
`cardinality` above 1 the 3x3 of a bottleneck falls into that many groups, of `base_width` channels
each in a first stage of width 64 (Xie et al. 2017). Depths 288 and 600 are those of Brock et al.
2021: stages of 24 and of 50 blocks.

Post-activation networks (v1) normalize and activate after the stem, pre-activation networks (v2)
once more before the mean. Stochastic depth grows linearly with depth from 0 and rescales nothing,
as in the code of Brock et al. 2021.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import sqrt
from typing import Literal

from torch import Tensor, nn

from normbench.models.blocks import (
    V1,
    V2,
    BlockV1,
    BlockV2,
    Conv,
    Order,
    Shortcut,
    basic,
    bottleneck,
    convolution,
    initialize,
    require_at_least,
    require_residual,
)
from normbench.models.dropout import Dropout, linear_rates, require_rates
from normbench.norms.base.activations import IDENTITY
from normbench.norms.base.layer import Normalizer

EXPANSION = 4  # channels of a bottleneck's output over those of its stage


class ResNet(nn.Module):
    """(N, in_chans, H, W) -> logits (N, num_classes).

    Args:
        norm: the normalizer of every normalization in the network.
        num_classes: classes to tell apart.
        in_chans: channels of an image.
        depths: blocks of each stage.
        bottleneck: 1x1, 3x3, 1x1 with 4 times the channels, and not two 3x3.
        order: conv_norm_act is post-activation (v1), norm_act_conv pre-activation (v2); in
            act_norm_conv (Brock et al. 2021, figure 2) a convolution sees what was just normalized.
        width: channels of the first stage; a bottleneck's output has 4 times as many.
        cardinality: groups of a bottleneck's 3x3 convolution.
        base_width: channels of such a group in a first stage of width 64.
        strides: of each stage.
        shortcut: where shapes change: projection (a 1x1 convolution) or, in v1, identity (zeros).
        excite: hidden width of squeeze-excite at the end of every branch, as a share; null: none.
        act: the activation, by its name in torch.nn.functional; identity makes the network linear.
        init: fan_in starts convolutions as N(0, g^2 / fan-in), g^2 = 2 behind an activation and 1
            behind a normalization or the identity (Brock et al. 2021); null: N(0, 2 / fan-out).
        stem_size: kernel of the first convolution.
        stem_stride: stride of the first convolution.
        stem_pool: 3x3 max pooling of stride 2 after the stem.
        dropout: rate before the classifier.
        stochastic_depth: rate that grows linearly from 0 in the first block.
        max_groups: cap on the normalizer's groups; null leaves the normalizer's own number.

    Raises:
        ValueError: a size is out of range, or stages and strides differ in number.
        Impossible: the normalizer needs residual branches that these blocks do not have, or
            cannot normalize without an activation.
    """

    def __init__(
        self,
        norm: Normalizer,
        num_classes: int,
        in_chans: int = 3,
        *,
        depths: tuple[int, ...] = (3, 4, 6, 3),
        bottleneck: bool = True,
        order: Order = "conv_norm_act",
        width: int = 64,
        cardinality: int = 1,
        base_width: int = 64,
        strides: tuple[int, ...] = (1, 2, 2, 2),
        shortcut: Shortcut = "projection",
        excite: float | None = None,
        act: str = "relu",
        init: Literal["fan_in"] | None = None,
        stem_size: int = 7,
        stem_stride: int = 2,
        stem_pool: bool = True,
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        max_groups: int | None = None,
    ) -> None:
        super().__init__()
        v1 = order == "conv_norm_act"
        require_residual(norm, V1 if v1 else V2)
        _require_stages(depths, strides)
        require_at_least(1, width=width, cardinality=cardinality, base_width=base_width)
        require_at_least(1, stem_size=stem_size, stem_stride=stem_stride, max_groups=max_groups)
        require_rates(dropout=dropout, stochastic_depth=stochastic_depth)
        if not bottleneck and (cardinality, base_width) != (1, 64):
            raise ValueError("cardinality: basic blocks have no groups; bottleneck=true has")
        if width * base_width < 64:
            raise ValueError(f"base_width={base_width}: at width={width} a group has no channel")
        if excite is not None and not 0 < excite <= 1:
            raise ValueError(f"excite={excite}: a share of a block's width, above 0 and at most 1")
        if shortcut == "identity" and not v1:
            raise ValueError("shortcut=identity: pre-activation blocks have shortcut=projection")
        norm = norm.with_max_groups(max_groups)  # narrow stages leave many groups a channel each
        self.stem = convolution(norm, Conv(in_chans, width, stem_size, stem_stride), bias=False)
        self.norm = norm.layer(width, act) if v1 else nn.Identity()
        self.pool = nn.MaxPool2d(3, 2, padding=1) if stem_pool else nn.Identity()
        shapes = [
            [(*convs[:-1], replace(convs[-1], excite=excite or 0.0)) for convs in stage]
            for stage in stages(
                depths, strides, width, cardinality if bottleneck else 0, base_width
            )
        ]
        betas = chain(*norm.residual.deviations(depths))
        rates = linear_rates(stochastic_depth, sum(depths))
        blocks = [
            BlockV1(norm, convs, shortcut, act=act, rate=rate)
            if v1
            else BlockV2(norm, convs, beta, act=act, order=order, rate=rate)
            for convs, beta, rate in zip(chain(*shapes), betas, rates, strict=True)
        ]
        self.blocks = nn.Sequential(*blocks)
        channels = shapes[-1][-1][-1].width
        self.last = nn.Identity() if v1 else norm.final_layer(channels, act)
        self.before_head = norm.residual.before_conv()
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(channels, num_classes)
        gain = 1.0 if order == "act_norm_conv" or act == IDENTITY else sqrt(2)
        initialize(self, norm, blocks, self.head, gain if init == "fan_in" else None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.blocks(self.pool(self.norm(self.stem(x)))))
        logits: Tensor = self.head(self.dropout(self.before_head(x.mean(dim=(2, 3)))))
        return logits


def stages(
    depths: Sequence[int], strides: Sequence[int], width: int, cardinality: int, base_width: int
) -> list[list[tuple[Conv, ...]]]:
    """Return the convolutions of every block of every stage; cardinality 0: basic blocks."""
    by_stage, channels = [], width
    for number, (depth, step) in enumerate(zip(depths, strides, strict=True)):
        planes = width * 2**number
        stage = []
        for block in range(depth):
            stride = step if block == 0 else 1
            if cardinality:
                inner = planes * base_width // 64 * cardinality
                convs = bottleneck(channels, inner, EXPANSION * planes, stride, cardinality)
            else:
                convs = basic(channels, planes, stride)
            stage.append(convs)
            channels = convs[-1].width
        by_stage.append(stage)
    return by_stage


def _require_stages(depths: Sequence[int], strides: Sequence[int]) -> None:
    if len(depths) != len(strides):
        raise ValueError(f"strides={list(strides)}: {len(depths)} stages need as many")
    for name, values in (("depths", depths), ("strides", strides)):
        if min(values, default=0) < 1:
            raise ValueError(f"{name}={list(values)}: each must be at least 1")
