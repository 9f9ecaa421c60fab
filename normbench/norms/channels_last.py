"""Tokens (N, T, C) and maps with channels last (N, H, W, C).

Every layer of this package takes maps (N, C, H, W). `ChannelsLast` applies it to tokens and to maps
with channels last, as transformers and ConvNeXt's blocks have them. T tokens are a map of T x 1
positions, so statistics are over:

    channels (ln2d, rms)            the channels of a token
    channels, positions (ln, gn)    all tokens of an image: with groups, of a group of channels
    positions (in, frn, evonorm_s)  one channel of all tokens of an image
    images, positions (bn, ...)     one channel of all tokens of a worker's images
    none (dyt, derf)                single values

A class token counts as any other, and heads of an attention as positions. `norm=ln2d` is what
transformers call layer normalization.
"""

from torch import Tensor, nn

from normbench.norms.base.layer import NormAct


class ChannelsLast(nn.Module):
    """A layer for (N, C), (N, T, C) or (N, H, W, C), which returns the same shape.

    Args:
        layer: the layer for maps (N, C, H, W).
    """

    def __init__(self, layer: NormAct) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Normalize and activate `x`.

        Raises:
            ValueError: `x` has another number of axes or channels.
        """
        if not 2 <= x.dim() <= 4:
            raise ValueError(
                f"expected (N, C), tokens (N, T, C) or maps (N, H, W, C), got {tuple(x.shape)}"
            )
        maps = x.movedim(-1, 1)
        maps = maps.reshape(*maps.shape, *(1,) * (4 - x.dim()))
        y: Tensor = self.layer(maps)
        return y.movedim(1, -1).reshape(x.shape)
