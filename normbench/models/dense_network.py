"""Networks of dense tasks: a backbone, a head on its maps, and predictions for every pixel."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.models.backbone import Backbone


class DenseNetwork(nn.Module):
    """Images (N, C, H, W) -> predictions (N, K, H, W).

    In training, with an auxiliary head, also those of this head follow: (N, 2 K, H, W).

    Args:
        backbone: whose last maps the head gets.
        head: maps (N, C', h, w) -> predictions (N, K, h', w'), which are enlarged bilinearly.
        auxiliary: a second head for training, on the maps of the last but one stage.
    """

    def __init__(
        self, backbone: Backbone, head: nn.Module, auxiliary: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.auxiliary = backbone, head, auxiliary
        self.trains_as_evaluated = auxiliary is None

    def forward(self, x: Tensor) -> Tensor:
        *_, before, last = self.backbone(x)
        size = x.shape[2:]
        predicted = upsample(self.head(last), size)
        if self.auxiliary is None or not self.training:
            return predicted
        return torch.cat([predicted, upsample(self.auxiliary(before), size)], dim=1)


def upsample(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return maps (N, K, h, w) at `size` (H, W), bilinearly, as FCN and DeepLab do."""
    return F.interpolate(maps, size, mode="bilinear", align_corners=False)
