"""The pre-activation (v2) ResNets of He et al. 2016b for small images: 6n + 2 layers, basic blocks.

Normalization and activation stand before each convolution, so that every activation is preceded by
a normalization (which proxy normalization asks for), and once more before the mean over positions.
Where the width grows, the shortcut is a 1x1 convolution of the normalized and activated input.

Residual branches are plain, SkipInit's or NF's. In NF the activated input is divided by the
standard deviation that the block's input has at initialization, and in the first block of a stage
that widens, a transition, the shortcut sees the divided input, so that its variance is 1 again.
With weight standardization one learned scale per channel follows a branch's last convolution, which
has no normalization after it (Proxy Norm, appendix A.1).
"""

from itertools import chain

from torch import Tensor, nn

from normbench.models.resnet_cifar import (
    V2,
    convolution,
    initialize,
    require_residual,
    require_sizes,
    stages,
)
from normbench.norms.layer import Affine, Normalizer


class ResNetV2(nn.Module):
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
        stem_stride: int = 1,
        max_groups: int | None = None,
    ) -> None:
        super().__init__()
        require_sizes(depth, width, stem_stride, max_groups)
        require_residual(norm, V2)
        norm = norm.capped(max_groups)  # narrow stages leave many groups a channel each
        self.stem = convolution(norm, in_chans, width, 3, stem_stride, bias=False)
        shapes = stages(depth, width)
        betas = norm.residual.deviations([len(stage) for stage in shapes])
        placed = zip(chain(*shapes), chain(*betas), strict=True)
        self.blocks = nn.Sequential(*(BlockV2(norm, *shape, beta) for shape, beta in placed))
        self.norm = norm.last(4 * width)
        self.head = nn.Linear(4 * width, num_classes)
        initialize(self, norm, self.blocks, self.head)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.stem(x)))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class BlockV2(nn.Module):
    """Two 3x3 convolutions, each after its normalization, and the shortcut around them."""

    def __init__(
        self, norm: Normalizer, channels: int, width: int, stride: int, beta: float
    ) -> None:
        super().__init__()
        self.beta = beta
        self.norm1 = norm.layer(channels)
        self.conv1 = convolution(norm, channels, width, 3, stride)
        self.norm2 = norm.layer(width)
        self.conv2 = convolution(norm, width, width, 3, 1)
        scaled = norm.conv is not None and norm.conv.kind == "ws"
        self.scale = Affine(width, None, shift=False) if scaled else nn.Identity()
        widens = channels != width
        self.project = convolution(norm, channels, width, 1, stride) if widens else None
        self.join = norm.residual.join()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        h = h if self.beta == 1 else h / self.beta  # after the activation, as in the paper's code
        shortcut = x if self.project is None else self.project(h)
        out: Tensor = self.join(shortcut, self.scale(self.conv2(self.norm2(self.conv1(h)))))
        return out
