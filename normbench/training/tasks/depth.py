"""Estimation of depth: the reverse Huber loss of each worker, and five numbers."""

import torch
from torch import Tensor
from torchmetrics import Metric

#: Bounds of the ratio of prediction and truth (Eigen et al. 2014).
DELTA = 1.25


def reverse_huber(predicted: Tensor, depth: Tensor, workers: int = 1) -> Tensor:
    """Return the mean over workers of the reverse Huber loss (Laina et al. 2016, section 3.3):

        B(x) = |x|                  if |x| <= c
               (x^2 + c^2) / (2c)   otherwise,         c = max |x| / 5

    where x are the errors of all pixels of a worker's images. The threshold c has no gradient.
    Pixels without depth (0 or less) do not count, and a worker of these alone has the loss 0.

    Args:
        predicted: (N, 1, H, W).
        depth: (N, H, W), in the same unit.
        workers: W, which divides N.
    """
    known = depth > 0
    errors = (predicted[:, 0] - depth).masked_fill(~known, 0).abs()
    per_worker = errors.view(-1, workers, *errors.shape[1:])  # (N / W, W, H, W)
    threshold = per_worker.detach().amax(dim=(0, 2, 3), keepdim=True) / 5
    safe = threshold.clamp(min=torch.finfo(errors.dtype).tiny)
    losses = torch.where(
        per_worker <= threshold, per_worker, (per_worker**2 + threshold**2) / (2 * safe)
    )
    pixels = known.view_as(per_worker).sum(dim=(0, 2, 3))
    return (losses.sum(dim=(0, 2, 3)) / pixels.clamp(min=1)).mean()


class DepthMetrics(Metric):
    """Shares of pixels within factors of 1.25, 1.25^2 and 1.25^3, root mean squared and relative
    error, over all pixels with depth of a split (Eigen et al. 2014; Brock et al. 2021, table 7)."""

    sums: Tensor  # of the three shares, of squared and of relative errors
    pixels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(5, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("pixels", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, depth: Tensor) -> None:
        """Count the pixels of predictions (N, 1, H, W) and depths (N, H, W)."""
        known = depth > 0
        found, true = predicted[:, 0][known].double(), depth[known].double()
        # A prediction below 0 is beyond every factor.
        factor = torch.maximum(found / true, true / found.clamp(min=1e-9))
        values = [
            *(factor < DELTA**power for power in (1, 2, 3)),
            (found - true) ** 2,
            (found - true).abs() / true,
        ]
        self.sums += torch.stack([each.double().sum() for each in values])
        self.pixels += known.sum()

    def compute(self) -> dict[str, float]:
        """Return the shares in percent and the errors, without a name of the split."""
        first, second, third, squared, relative = (self.sums / self.pixels).tolist()
        return {
            "delta1": 100 * first,
            "delta2": 100 * second,
            "delta3": 100 * third,
            "rms": squared**0.5,
            "rel": relative,
        }
