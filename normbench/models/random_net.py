"""Random nets (Labatie et al. 2021, definition 1), the networks of theorem 1.

Layers of a 3x3 convolution with periodic boundaries, normalization, affine and activation, without
shortcuts; the first convolution halves the maps. All parameters are random (appendix A.2.1):
weights from a truncated normal distribution over the square root of the fan-in, gains from
N(1, 0.2^2), shifts from N(0, 0.2^2). `normbench.probe power` measures deep ones: with layer
normalization the non-constant share of the power at layer l is at most about

    rho^(l - 1),   rho = F_gain^2 / (F_gain^2 + F_shift^2)                      (theorem 1, eq. 6)

with F the root mean squares of gains and shifts, for sufficient width.
"""

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from normbench.models.blocks import PLAIN, require_residual
from normbench.norms.base.layer import Normalizer


class RandomNet(nn.Module):
    """(N, in_chans, H, W) -> logits (N, num_classes).

    Args:
        depth: layers, each a convolution and its normalization.
        width: channels of every layer.
        act: the activation; identity makes the network linear except for its normalizations.
        gain: standard deviation of the gains, around 1.
        shift: standard deviation of the shifts, around 0.
        max_groups: cap on the normalizer's groups; null leaves the normalizer's own number.

    Raises:
        Impossible: the normalizer asks for residual branches, of which there are none.
    """

    def __init__(
        self,
        norm: Normalizer,
        num_classes: int,
        in_chans: int = 3,
        *,
        depth: PositiveInt = 50,
        width: PositiveInt = 128,
        act: str = "relu",
        gain: NonNegativeFloat = 0.2,
        shift: NonNegativeFloat = 0.2,
        max_groups: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        require_residual(norm, PLAIN)
        norm = norm.with_max_groups(max_groups)
        layers: list[nn.Module] = []
        for number in range(depth):
            conv = nn.Conv2d(
                width if number else in_chans, width, 3, 1 if number else 2, 1,
                bias=norm.conv_bias, padding_mode="circular",
            )  # fmt: skip
            nn.init.trunc_normal_(conv.weight, std=1.0, a=-2.0, b=2.0)
            with torch.no_grad():
                conv.weight /= conv.weight[0].numel() ** 0.5  # the fan-in
            layer = norm.layer(width, act)
            if layer.weight is not None:
                nn.init.normal_(layer.weight, 1.0, gain)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, 0.0, shift)
            layers += [conv if norm.conv is None else norm.conv.apply(conv), layer]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_classes)
        # The mean square of gains around 1 is 1 + their variance (theorem 1).
        self.rho = (1 + gain**2) / (1 + gain**2 + shift**2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(x).mean(dim=(2, 3)))
        return logits
