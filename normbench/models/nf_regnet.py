"""NF-RegNet B0 to B5 (Brock, De and Smith 2021, section 6 and appendix D), with any normalizer.

RegNets of pre-activation, expanding bottlenecks: 1x1, 3x3 in groups of 8 channels, squeeze-excite,
1x1. The stem is a 3x3 convolution of stride 2 without activation; every stage begins with stride 2,
and its shortcut averages 2x2 positions before its 1x1 convolution. A last 1x1 convolution precedes
the activation and the mean. The very first block does not expand. Activations are SiLU; in
squeeze-excite the released code has ReLU and appendix D's listing SiLU (`excite_act`).

Elsewhere: timm's networks of that name have the activation's gain in the convolutions, no SkipInit
scalar, and rescale branches that stochastic depth keeps.
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from normbench.models.blocks import (
    V2,
    BlockV2,
    Conv,
    Stages,
    bottleneck,
    convolution,
    initialize,
    require_residual,
)
from normbench.models.dropout import Dropout, Fraction, linear_rates
from normbench.norms.base.layer import Normalizer

ACT = "silu"
WIDTH = 0.75  # of the widths that the paper's listing names
EXPANSION = 2.25
GROUP = 8
EXCITE = 0.5


class NFRegNet(nn.Module):
    """(N, in_chans, H, W) -> logits (N, num_classes).

    Args:
        norm: the normalizer; nf makes it the paper's network.
        widths: of each stage, before they are multiplied by 0.75.
        depths: blocks of each stage.
        excite_act: activation in squeeze-excite, silu in appendix D's listing; null: relu, as in
            the released code.
        padding: same pads strided convolutions as SAME of JAX, on even maps at one side alone (the
            released code); null: at both sides.
        dropout: rate before the classifier.
        stochastic_depth: rate that grows linearly from 0; kept branches are not rescaled.
        max_groups: cap on the normalizer's groups; null leaves the normalizer's own number.

    Raises:
        ValueError: widths and depths differ in number.
        Impossible: the normalizer needs residual branches that these blocks do not have.
    """

    #: For `normbench.training.parameter_groups.number_blocks`.
    block_patterns: ClassVar[dict[str, Any]] = {
        "stem": r"^stem\b",
        "blocks": [(r"^blocks\.(\d+)", None), (r"^(?:conv|norm)\b", (99999,))],
    }

    def __init__(
        self,
        norm: Normalizer,
        num_classes: int,
        in_chans: int = 3,
        *,
        widths: tuple[Annotated[int, Field(ge=16)], ...],
        depths: Stages,
        excite_act: Literal["relu", "silu"] | None = None,
        padding: Literal["same"] | None = None,
        dropout: Fraction = 0.0,
        stochastic_depth: Fraction = 0.0,
        max_groups: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        require_residual(norm, V2)
        if len(widths) != len(depths):
            raise ValueError(f"depths={list(depths)}: {len(widths)} stages need as many")
        norm = norm.with_max_groups(max_groups)
        channels = int(widths[0] * WIDTH)  # the stem is as wide as the first stage
        same = padding == "same"
        self.stem = convolution(norm, Conv(in_chans, channels, 3, 2, same=same), bias=False)
        betas = [beta for stage in norm.residual.deviations(depths) for beta in stage]
        rates = linear_rates(stochastic_depth, sum(depths))
        blocks: list[BlockV2] = []
        for width, depth in zip(widths, depths, strict=True):
            for block in range(depth):
                convs = _convs(
                    channels, int(width * WIDTH), excite_act or "relu",
                    first=not blocks, strided=block == 0, same=same,
                )  # fmt: skip
                beta, rate = betas[len(blocks)], rates[len(blocks)]
                blocks.append(BlockV2(norm, convs, beta, act=ACT, pool=True, rate=rate))
                channels = convs[-1].width
        self.blocks = nn.Sequential(*blocks)
        final = 1280 * channels // 440
        self.conv = convolution(norm, Conv(channels, final, 1))
        self.norm = norm.final_layer(final, ACT)
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(final, num_classes)
        initialize(self, norm, self.blocks, self.head)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(self.blocks(self.stem(x))))
        logits: Tensor = self.head(self.dropout(x.mean(dim=(2, 3))))
        return logits


def _convs(
    channels: int, width: int, excite_act: str, *, first: bool, strided: bool, same: bool
) -> tuple[Conv, ...]:
    groups = int(channels * (1 if first else EXPANSION)) // GROUP  # rounded down to whole groups
    stride = 2 if strided else 1
    expand, grouped, project = bottleneck(channels, groups * GROUP, width, stride, groups, EXCITE)
    return expand, replace(grouped, excite_act=excite_act, same=same), project
