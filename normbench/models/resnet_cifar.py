"""The ResNets of He et al. 2016 for small images (section 4.2): 6n + 2 layers in basic blocks.

A 3x3 stem, three stages of n post-activation (v1) blocks with 1, 2 and 4 times the width and maps
halved from stage to stage, global mean pooling and a linear classifier. Where the width grows, the
shortcut takes every second pixel and either pads with zero channels (the paper's option A, which it
uses for these nets) or is a normalized 1x1 convolution (option B, which it uses on ImageNet).

After the addition stands the normalizer's activation alone: ReLU, and for filter response
normalization TLU. A block's second normalization and that of its shortcut are layers without
activation. A normalizer that asks for standardized weights gets them in every convolution. Residual
branches are plain, or FixUp's with its scalars and its initialization.
"""

from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import Impossible
from normbench.norms.layer import Normalizer
from normbench.norms.residual import FixUp, NormalizerFree, Residual, SkipInit

Shortcut = Literal["identity", "projection"]
Schemes = tuple[type[Residual], ...]

#: Residual branches of post-activation and of pre-activation blocks.
V1: Schemes = (Residual, FixUp)
V2: Schemes = (Residual, SkipInit, NormalizerFree)


class ResNet(nn.Module):
    """(N, in_chans, H, W) -> logits (N, num_classes).

    Args:
        norm: the normalizer of every normalization in the network.
        num_classes: classes to tell apart.
        in_chans: channels of an image.
        depth: 6n + 2 layers.
        width: channels of the first stage.
        shortcut: "identity" (option A) or "projection" (option B).
        stem_stride: 1 as in the paper; 2 makes the net four times cheaper and its maps tiny.
        max_groups: cap on the normalizer's groups; None leaves the normalizer's own number.

    Raises:
        ValueError: no n gives `depth`.
        Impossible: the normalizer asks for residual branches that these blocks do not have.
    """

    def __init__(
        self,
        norm: Normalizer,
        num_classes: int,
        in_chans: int = 3,
        *,
        depth: int = 20,
        width: int = 16,
        shortcut: Shortcut = "identity",
        stem_stride: int = 1,
        max_groups: int | None = None,
    ) -> None:
        super().__init__()
        require_sizes(depth, width, stem_stride, max_groups)
        require_residual(norm, V1)
        norm = norm.capped(max_groups)  # narrow stages leave many groups a channel each
        self.stem = convolution(norm, in_chans, width, 3, stem_stride, bias=False)
        self.norm = norm.layer(width)
        self.blocks = nn.Sequential(
            *(Block(norm, *shape, shortcut) for stage in stages(depth, width) for shape in stage)
        )
        self.before_head = norm.residual.before_conv()
        self.head = nn.Linear(4 * width, num_classes)
        initialize(self, norm, self.blocks, self.head)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.norm(self.stem(x)))
        logits: Tensor = self.head(self.before_head(x.mean(dim=(2, 3))))
        return logits


class Block(nn.Module):
    """Two 3x3 convolutions and the shortcut around them."""

    def __init__(
        self, norm: Normalizer, channels: int, width: int, stride: int, shortcut: Shortcut
    ) -> None:
        super().__init__()
        self.before1, self.before2 = norm.residual.before_conv(), norm.residual.before_conv()
        self.conv1 = convolution(norm, channels, width, 3, stride)
        self.norm1 = norm.layer(width)
        self.conv2 = convolution(norm, width, width, 3, 1)
        self.norm2 = norm.layer(width, None)
        self.join = norm.residual.join()
        self.shortcut: nn.Module = nn.Identity()
        if channels != width and shortcut == "identity":
            self.shortcut = Pad(width - channels, stride)
        elif channels != width:
            project = convolution(norm, channels, width, 1, stride)
            self.shortcut = nn.Sequential(project, norm.layer(width, None))
        self.activation = norm.activation(width)

    def forward(self, x: Tensor) -> Tensor:
        entered = self.before1(x)
        branch = self.norm2(self.conv2(self.before2(self.norm1(self.conv1(entered)))))
        # What stands before the branch stands before a shortcut that does something, too.
        shortcut = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(entered)
        out: Tensor = self.activation(self.join(shortcut, branch))
        return out


class Pad(nn.Module):
    """Every `stride`-th pixel, and `channels` more channels, all zeros."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels = channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.channels))


def convolution(
    norm: Normalizer, channels: int, width: int, size: int, stride: int, *, bias: bool = True
) -> nn.Conv2d:
    """A convolution as the normalizer asks for it, never with a bias if `bias` is false."""
    bias = bias and norm.conv_bias
    conv = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=bias)
    return conv if norm.conv is None else norm.conv.convert(conv)


def stages(depth: int, width: int) -> list[list[tuple[int, int, int]]]:
    """Channels, width and stride of every block of the three stages."""
    n = (depth - 2) // 6
    return [
        [(before, after, stride), *[(after, after, 1)] * (n - 1)]
        for before, after, stride in (
            (width, width, 1),
            (width, 2 * width, 2),
            (2 * width, 4 * width, 2),
        )
    ]


def initialize(
    network: nn.Module, norm: Normalizer, blocks: Iterable[Any], head: nn.Linear
) -> None:
    """The starts of a network: the papers', then those of the normalizer's residual branches.

    Convolutions start as in the papers' ResNets; torch's own have a sixth of that variance.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    norm.residual.initialize(network, [(block.conv1, block.conv2) for block in blocks], head)


def require_sizes(depth: int, width: int, stem_stride: int, max_groups: int | None) -> None:
    """Raise ValueError for a depth that no n gives, or a size below 1."""
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth={depth}: this family has 6n + 2 layers, as 8, 14, 20 or 56")
    sizes = {"width": width, "stem_stride": stem_stride, "max_groups": max_groups}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: it must be at least 1")


def require_residual(norm: Normalizer, offered: Schemes) -> None:
    """Raise Impossible for a normalizer whose residual branches are not among those `offered`."""
    if type(norm.residual) not in offered:
        v1, v2 = (", ".join(scheme.kind for scheme in schemes) for schemes in (V1, V2))
        raise Impossible(
            f"the normalizer asks for residual branches of kind {norm.residual}, which this model "
            f"does not have; post-activation models (model=resnet14) have {v1}, and pre-activation "
            f"models (model=resnet14_v2) {v2}"
        )
