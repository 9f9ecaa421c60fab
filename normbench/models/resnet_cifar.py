"""The ResNets of He et al. 2016 for small images (section 4.2): 6n + 2 layers in basic blocks.

A 3x3 stem, three stages of n post-activation blocks with 1, 2 and 4 times the width and maps
halved from stage to stage, global mean pooling and a linear classifier. Where the width grows, the
shortcut takes every second pixel and either pads with zero channels (the paper's option A, which it
uses for these nets) or is a normalized 1x1 convolution (option B, which it uses on ImageNet).

After the addition stands a plain ReLU for every normalizer. A block's second normalization and that
of its shortcut are layers without activation.
"""

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from normbench.norms.layer import Normalizer

Shortcut = Literal["identity", "projection"]


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
        ValueError: no n gives `depth`, or the normalizer asks for more than this family offers.
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
        _require(norm, depth, width, stem_stride, max_groups)
        norm = norm.capped(max_groups)  # narrow stages leave many groups a channel each
        self.stem = _conv(in_chans, width, stem_stride)
        self.norm = norm.layer(width)
        widths = (width, width, 2 * width, 4 * width)
        blocks = []
        for stage, (before, after) in enumerate(pairwise(widths)):
            blocks.append(Block(norm, before, after, 2 if stage else 1, shortcut))
            blocks += [Block(norm, after, after, 1, shortcut) for _ in range((depth - 2) // 6 - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # The init of the papers' ResNets; torch's own has a sixth of its variance.
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.norm(self.stem(x)))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """Two 3x3 convolutions and the shortcut around them."""

    def __init__(
        self, norm: Normalizer, channels: int, width: int, stride: int, shortcut: Shortcut
    ) -> None:
        super().__init__()
        self.conv1 = _conv(channels, width, stride)
        self.norm1 = norm.layer(width)
        self.conv2 = _conv(width, width, 1)
        self.norm2 = norm.layer(width, None)
        self.shortcut: nn.Module = nn.Identity()
        if channels != width and shortcut == "identity":
            self.shortcut = Pad(width - channels, stride)
        elif channels != width:
            project = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, norm.layer(width, None))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        return F.relu(self.shortcut(x) + branch)


class Pad(nn.Module):
    """Every `stride`-th pixel, and `channels` more channels, all zeros."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels = channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.channels))


def _conv(channels: int, width: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)


def _require(
    norm: Normalizer, depth: int, width: int, stem_stride: int, max_groups: int | None
) -> None:
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth={depth}: this family has 6n + 2 layers, as 8, 14, 20 or 56")
    sizes = {"width": width, "stem_stride": stem_stride, "max_groups": max_groups}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: it must be at least 1")
    if norm.residual != "plain" or norm.conv is not None:
        raise ValueError(
            "norm: this family has plain residual branches and plain convolutions; "
            f"the normalizer asks for residual={norm.residual}, conv={norm.conv}"
        )
