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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import sqrt
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from normbench.models.blocks import (
    V1,
    V2,
    BlockV1,
    BlockV2,
    Conv,
    Order,
    Shortcut,
    Stages,
    ZeroInit,
    basic,
    bottleneck,
    convolution,
    fan_in_normal,
    initialize,
    require_residual,
    truncated_fan_in_normal,
    zero_last_gains,
)
from normbench.models.dropout import Dropout, Fraction, linear_rates
from normbench.norms.base.activations import IDENTITY
from normbench.norms.base.layer import Normalizer
from normbench.norms.base.same_padding import SameMaxPool2d

Init = Literal["fan_in", "truncated_fan_in"]
Padding = Literal["same", "same_pool"]

EXPANSION = 4  # channels of a bottleneck's output over those of its stage


class ResNet(nn.Module):
    """(N, in_chans, H, W) -> logits (N, num_classes).

    Args:
        depths: blocks of each stage.
        bottleneck: 1x1, 3x3 and 1x1 convolutions with 4 times the channels; false: two of 3x3.
        order: conv_norm_act is post-activation (v1), norm_act_conv pre-activation (v2); in
            act_norm_conv (Brock et al. 2021, figure 2) convolutions follow normalizations directly.
        width: channels of the first stage; a bottleneck's output has 4 times as many.
        cardinality: groups of a bottleneck's 3x3 convolution.
        base_width: channels of such a group in a first stage of width 64.
        strides: of each stage.
        shortcut: where shapes change: projection (a 1x1 convolution) or, in v1, identity (zeros).
        excite: hidden width of squeeze-excite at the end of every branch, as a share; null: none.
        act: the activation, by its name in torch.nn.functional; identity makes the network linear.
        init: fan_in starts convolutions as N(0, g^2 / fan-in), g^2 = 2 behind an activation and 1
            behind a normalization or the identity (Brock et al. 2021); truncated_fan_in starts all
            weights with variance 1 / fan-in, from a normal cut off at two standard deviations, and
            the classifier's bias at 0 (EvoNorm's code; Labatie et al. 2021, appendix A); null:
            N(0, 2 / fan-out), the classifier as torch does.
        head_std: starts the classifier as N(0, head_std^2), its bias at 0 (EvoNorm's code: 0.01);
            null: as `init` says. nf, skipinit and fixup have a start of their own, which takes the
            place of `init` and `head_std` wherever it sets a weight.
        stem_size: kernel of the first convolution.
        stem_stride: stride of the first convolution.
        stem_pool: 3x3 max pooling of stride 2 after the stem.
        padding: same pads strided convolutions and the max pooling as SAME of TensorFlow and JAX,
            on even maps at one side alone (the code of Brock et al. 2021, Graphcore's); same_pool
            does so in the max pooling alone (EvoNorm's code); null: both sides of all maps.
        zero_init_last: start the last gain of a v1 block's branch at 0: of all blocks (EvoNorm's
            code for BN) or of those with an identity shortcut (Graphcore's code); null: at 1.
        dropout: rate before the classifier.
        stochastic_depth: rate that grows linearly from 0 in the first block.
        max_groups: cap on the normalizer's groups; null leaves the normalizer's own number.

    Raises:
        ValueError: options contradict each other, such as stages and strides differ in number.
        Impossible: the normalizer needs residual branches that these blocks do not have, or
            cannot normalize without an activation.
    """

    #: For `normbench.training.parameter_groups.number_blocks`.
    block_patterns: ClassVar[dict[str, Any]] = {
        "stem": r"^(?:stem|norm)\b",
        "blocks": [(r"^blocks\.(\d+)", None), (r"^last\b", (99999,))],
    }

    def __init__(
        self,
        norm: Normalizer,
        num_classes: int,
        in_chans: int = 3,
        *,
        depths: Stages = (3, 4, 6, 3),
        bottleneck: bool = True,
        order: Order = "conv_norm_act",
        width: PositiveInt = 64,
        cardinality: PositiveInt = 1,
        base_width: PositiveInt = 64,
        strides: Stages = (1, 2, 2, 2),
        shortcut: Shortcut = "projection",
        excite: Annotated[float, Field(gt=0, le=1)] | None = None,
        act: str = "relu",
        init: Init | None = None,
        head_std: PositiveFloat | None = None,
        stem_size: PositiveInt = 7,
        stem_stride: PositiveInt = 2,
        stem_pool: bool = True,
        padding: Padding | None = None,
        zero_init_last: ZeroInit | None = None,
        dropout: Fraction = 0.0,
        stochastic_depth: Fraction = 0.0,
        max_groups: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        v1 = order == "conv_norm_act"
        require_residual(norm, V1 if v1 else V2)
        if len(depths) != len(strides):
            raise ValueError(f"strides={list(strides)}: {len(depths)} stages need as many")
        if not bottleneck and (cardinality, base_width) != (1, 64):
            raise ValueError("cardinality: basic blocks have no groups; bottleneck=true has")
        if not v1:
            refuse_in_preactivation(shortcut, zero_init_last)
        norm = norm.with_max_groups(max_groups)  # narrow stages leave many groups a channel each
        same = padding == "same"
        stem = Conv(in_chans, width, stem_size, stem_stride, same=same)
        self.stem = convolution(norm, stem, bias=False)
        self.norm = norm.layer(width, act) if v1 else nn.Identity()
        self.pool = pool_after_stem(stem_pool, padding)
        groups = cardinality if bottleneck else 0  # 0 stands for basic blocks
        branches = list_branches(depths, strides, width, groups, base_width, excite or 0.0, same)
        betas = chain(*norm.residual.deviations(depths))  # of all blocks in a row
        rates = linear_rates(stochastic_depth, sum(depths))
        self.blocks = nn.Sequential()
        for convs, beta, rate in zip(branches, betas, rates, strict=True):
            if v1:
                self.blocks.append(BlockV1(norm, convs, shortcut, act=act, rate=rate))
            else:
                self.blocks.append(BlockV2(norm, convs, beta, act=act, order=order, rate=rate))
        channels = branches[-1][-1].width
        self.last = nn.Identity() if v1 else norm.final_layer(channels, act)
        self.before_head = norm.residual.before_conv()  # a shift in FixUp, else the identity
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(channels, num_classes)
        gain = 1.0 if order == "act_norm_conv" or act == IDENTITY else sqrt(2)
        self._initialize(norm, init, gain, head_std, zero_init_last)

    def _initialize(
        self,
        norm: Normalizer,
        init: Init | None,
        gain: float,
        head_std: float | None,
        zero_init_last: ZeroInit | None,
    ) -> None:
        """Draw all weights as the options say; `gain` is the g of init=fan_in."""
        if init == "truncated_fan_in":
            truncated_fan_in_normal(self.head.weight)
        if head_std is not None:
            nn.init.normal_(self.head.weight, std=head_std)
        if init == "truncated_fan_in" or head_std is not None:
            nn.init.zeros_(self.head.bias)
        initialize(self, norm, self.blocks, self.head, start_of_convolutions(init, gain))
        if zero_init_last:
            zero_last_gains(self.blocks, zero_init_last)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.blocks(self.pool(self.norm(self.stem(x)))))
        logits: Tensor = self.head(self.dropout(self.before_head(x.mean(dim=(2, 3)))))
        return logits


def pool_after_stem(pool: bool, padding: Padding | None) -> nn.Module:
    """Return the max pooling after the stem, or the identity if there is no `pool`.

    Raises:
        ValueError: `padding` is that of a pooling, and there is none.
    """
    if pool:
        return SameMaxPool2d(3, 2) if padding else nn.MaxPool2d(3, 2, padding=1)
    if padding == "same_pool":
        raise ValueError("padding=same_pool: this network has no max pooling; padding=same works")
    return nn.Identity()


def refuse_in_preactivation(shortcut: Shortcut, zero_init_last: ZeroInit | None) -> None:
    """Raise ValueError for options that pre-activation blocks do not have."""
    if shortcut == "identity":
        raise ValueError("shortcut=identity: pre-activation blocks have shortcut=projection")
    if zero_init_last:
        raise ValueError(
            f"zero_init_last={zero_init_last}: pre-activation blocks end with a convolution; "
            "zero_init_last=null works"
        )


def start_of_convolutions(init: Init | None, gain: float) -> Callable[[Tensor], object] | None:
    """Return the function that draws a convolution's weight, or None for N(0, 2 / fan-out)."""
    if init == "fan_in":
        return partial(fan_in_normal, gain=gain)
    return truncated_fan_in_normal if init == "truncated_fan_in" else None


def list_branches(
    depths: Sequence[int],
    strides: Sequence[int],
    width: int,
    cardinality: int,
    base_width: int,
    excite: float,
    same: bool,
) -> list[tuple[Conv, ...]]:
    """Return the convolutions of the branch of each block.

    Options are those of `ResNet`; with a `cardinality` of 0 blocks are basic. `same` is the padding
    of their convolutions.

    Raises:
        ValueError: a group has no channel.
    """
    if width * base_width < 64:
        raise ValueError(f"base_width={base_width}: at width={width} a group has no channel")
    branches, channels = [], width
    for number, (depth, step) in enumerate(zip(depths, strides, strict=True)):
        planes = width * 2**number
        for block in range(depth):
            stride = step if block == 0 else 1  # the first block of a stage shrinks the maps
            if cardinality:
                inner = planes * base_width // 64 * cardinality
                convs = bottleneck(channels, inner, EXPANSION * planes, stride, cardinality)
            else:
                convs = basic(channels, planes, stride)
            convs = tuple(replace(conv, same=same) for conv in convs)
            branches.append((*convs[:-1], replace(convs[-1], excite=excite)))
            channels = convs[-1].width
    return branches
