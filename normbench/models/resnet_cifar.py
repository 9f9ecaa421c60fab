"""The ResNets of He et al. 2016 for small images (section 4.2): 6n + 2 layers in basic blocks.

A 3x3 stem, three stages of n post-activation blocks with 1, 2 and 4 times the width and maps
halved from stage to stage, global mean pooling and a linear classifier. Shortcuts have no weights:
where the width grows they take every second pixel and pad with zero channels (option A).

The layer after the addition is a plain ReLU for every normalizer; the second normalization of a
block and nothing else is a layer without activation.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from normbench.norms.layer import Normalizer


class ResNet(nn.Module):
    """(N, in_chans, H, W) -> logits (N, num_classes).

    Args:
        norm: the normalizer of every normalization in the network.
        num_classes: classes to tell apart.
        in_chans: channels of an image.
        depth: 6n + 2 layers.
        width: channels of the first stage.
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
        stem_stride: int = 1,
        max_groups: int | None = None,
    ) -> None:
        super().__init__()
        _require(norm, depth, width, stem_stride, max_groups)
        norm = norm.capped(max_groups)
        self.stem = _conv(in_chans, width, stem_stride)
        self.norm = norm.layer(width)
        self.stages = nn.Sequential(
            _stage(norm, width, width, 1, depth),
            _stage(norm, width, 2 * width, 2, depth),
            _stage(norm, 2 * width, 4 * width, 2, depth),
        )
        self.head = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.norm(self.stem(x)))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """Two 3x3 convolutions and the shortcut around them."""

    def __init__(self, norm: Normalizer, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.grown = width - channels
        self.conv1 = _conv(channels, width, stride)
        self.norm1 = norm.layer(width)
        self.conv2 = _conv(width, width, 1)
        self.norm2 = norm.layer(width, None)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        return F.relu(self._shortcut(x) + branch)

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.grown:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.grown))
        return x


def _stage(norm: Normalizer, channels: int, width: int, stride: int, depth: int) -> nn.Sequential:
    blocks = [Block(norm, channels, width, stride)]
    blocks += [Block(norm, width, width, 1) for _ in range((depth - 2) // 6 - 1)]
    return nn.Sequential(*blocks)


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

