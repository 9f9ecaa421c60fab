"""Up-projections: maps (N, C, h, w) -> depth, in the paper (N, 1, 16 h, 16 w) (Laina et al.
2016)."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import Impossible
from normbench.models.blocks import Conv, convolution
from normbench.norms.base.layer import Normalizer


class UpProjection(nn.Module):
    """Unpooling to twice the side, and a residual block of 5x5 and 3x3 convolutions whose shortcut
    is another 5x5 (Laina et al. 2016, section 3.2 and figure 2c)."""

    def __init__(self, norm: Normalizer, channels: int, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            convolution(norm, Conv(channels, width, 5)),
            norm.layer(width, "relu"),
            convolution(norm, Conv(width, width, 3)),
            norm.layer(width, None),
        )
        self.shortcut = nn.Sequential(
            convolution(norm, Conv(channels, width, 5)), norm.layer(width, None)
        )
        self.activation = norm.activation(width, "relu")

    def forward(self, x: Tensor) -> Tensor:
        x = unpool(x)
        out: Tensor = self.activation(self.branch(x) + self.shortcut(x))
        return out


class DepthHead(nn.Sequential):
    """A normalized 1x1 convolution to half of the channels, up-projections that halve them, four in
    the paper, and a 3x3 to depth.

    Raises:
        Impossible: there are fewer channels than can be halved so often.
    """

    def __init__(self, norm: Normalizer, channels: int, projections: int = 4) -> None:
        if channels < 2 ** (projections + 1):
            raise Impossible(
                f"task.projections={projections}: the network's last maps have {channels} "
                f"channels, and each projection halves them; {channels.bit_length() - 2} work"
            )
        widths = [channels // 2**power for power in range(1, projections + 2)]
        super().__init__(
            convolution(norm, Conv(channels, widths[0], 1)),
            norm.layer(widths[0], None),
            *(UpProjection(norm, before, width) for before, width in pairwise(widths)),
            nn.Conv2d(widths[-1], 1, 3, padding=1),
        )


def unpool(x: Tensor) -> Tensor:
    """Return maps (N, C, 2 H, 2 W) with x at the even positions and zeros elsewhere."""
    rows = F.pad(x[:, :, :, None, :, None], (0, 1, 0, 0, 0, 1))  # (N, C, H, 2, W, 2)
    return rows.flatten(4, 5).flatten(2, 3)
