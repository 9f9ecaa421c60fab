"""Estimation of depth: a distance for every pixel."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torchmetrics import Metric

from normbench.data.dataset import Dataset
from normbench.data.maps import DEPTH, depth_map
from normbench.models.backbone import backbone
from normbench.models.dense_network import DenseNetwork
from normbench.models.heads.depth import DepthHead
from normbench.norms.base.layer import Normalizer
from normbench.records.history import CurveRecord
from normbench.training.metrics import mean_metric
from normbench.training.regularization import Regularization
from normbench.training.tasks.pictures import shade_depth, side_by_side
from normbench.training.tasks.task import Task

#: Bound of the ratio of prediction and depth, and its powers (Eigen et al. 2014).
DELTA = 1.25


@dataclass(frozen=True)
class Depth(Task):
    """Images (N, C, H, W) -> depth (N, 1, H, W).

    Args:
        output_stride: largest side of an image over that of the last maps.
        projections: up-projections of the head, each of which doubles the side.
    """

    output_stride: PositiveInt
    projections: PositiveInt

    metric = "rms"
    score = "delta1"
    maps = (DEPTH, DEPTH + 1)
    smooths_labels = False

    def build_network(self, classifier: nn.Module, norm: Normalizer, data: Dataset) -> nn.Module:
        network = backbone(classifier, data.image_shape, self.output_stride)
        return DenseNetwork(network, DepthHead(norm, network.channels[-1], self.projections))

    def loss(
        self,
        output: Tensor,
        targets: Sequence[Tensor],
        reg: Regularization,  # noqa: ARG002 (nothing of it concerns depth)
        workers: int,
    ) -> Tensor:
        (maps,) = targets
        return reverse_huber(output, depth_map(maps), workers)

    def score_input(self, output: Tensor, target: Tensor) -> Tensor:
        depth = depth_map(target)
        known = (depth > 0).flatten(1).sum(1)
        return (_factor(output[:, 0], depth) < DELTA).flatten(1).sum(1) / known.clamp(min=1)

    def draw(self, images: Tensor, target: Tensor, output: Tensor) -> Tensor:
        depth = depth_map(target)
        farthest = float(depth.max())
        pair = (depth, output[:, 0])
        return side_by_side(images, *(shade_depth(each, farthest) for each in pair))

    def split_metrics(self, data: Dataset) -> "DepthMetrics":  # noqa: ARG002 (of any data)
        return DepthMetrics()


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


def _factor(predicted: Tensor, depth: Tensor) -> Tensor:
    """Return the larger of the ratios of prediction and depth; infinite where depth is unknown."""
    # A prediction of 0 or below is beyond every factor.
    ratio = predicted.clamp(min=torch.finfo(predicted.dtype).tiny) / depth
    return torch.maximum(ratio, 1 / ratio)


class PixelSums(Metric):
    """Sums over the pixels with depth of a split, in double precision."""

    sums: Tensor  # of the three shares, of squared and of relative errors
    pixels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(5, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("pixels", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, depth: Tensor) -> None:
        """Count the pixels of predictions (N, H, W) and depths (N, H, W)."""
        known = depth > 0
        predicted, depth = predicted[known].double(), depth[known].double()
        factor = _factor(predicted, depth)
        values = [
            *(factor < DELTA**power for power in (1, 2, 3)),
            (predicted - depth) ** 2,
            (predicted - depth).abs() / depth,
        ]
        self.sums += torch.stack([each.double().sum() for each in values])
        self.pixels += known.sum()

    def compute(self) -> Tensor:
        """Return the means."""
        return self.sums / self.pixels


class DepthMetrics(nn.Module):
    """Shares of pixels within factors of 1.25, 1.25^2 and 1.25^3, root mean squared and relative
    error, over all pixels with depth of a split (Eigen et al. 2014; Brock et al. 2021, table 7).

    The loss is the mean over images of the reverse Huber loss of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.means, self.loss = PixelSums(), mean_metric()

    def reset(self) -> None:
        """Forget all images."""
        self.means.reset()
        self.loss.reset()

    def update(self, output: Tensor, target: Tensor) -> None:
        """Count the pixels of predictions (N, 1, H, W) and maps (N, T, H, W)."""
        predicted, depth = output.float(), depth_map(target)  # half precision under autocast
        self.means.update(predicted[:, 0], depth)
        self.loss.update(reverse_huber(predicted, depth, workers=len(depth)), len(depth))

    def summary(self, split: str) -> CurveRecord:
        """Return the shares in percent, the errors and the loss, named after the `split`."""
        first, second, third, squared, relative = self.means.compute().tolist()
        return {
            f"{split}_delta1": 100 * first,
            f"{split}_delta2": 100 * second,
            f"{split}_delta3": 100 * third,
            f"{split}_rms": squared**0.5,
            f"{split}_rel": relative,
            f"{split}_loss": float(self.loss.compute()),
        }
