"""Semantic segmentation: a class for every pixel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from normbench.data.dataset import Dataset
from normbench.data.maps import CLASS, VOID, class_map
from normbench.models.backbone import backbone
from normbench.models.dense_network import DenseNetwork
from normbench.models.heads.segmentation import AuxiliaryHead, DeepLabV2Head, FcnHead
from normbench.norms.base.layer import Normalizer
from normbench.records.history import CurveRecord
from normbench.training.metrics import mean_metric
from normbench.training.regularization import Regularization
from normbench.training.tasks.pictures import color_classes, side_by_side
from normbench.training.tasks.task import Task


@dataclass(frozen=True)
class Segment(Task):
    """Images (N, C, H, W) -> logits (N, classes, H, W).

    Args:
        head: fcn or deeplab_v2 (`normbench.models.heads.segmentation`).
        width: channels of the head's convolutions; deeplab_v2 has none.
        dilation: of the 3x3 convolutions of the fcn head.
        output_stride: largest side of an image over that of the last maps.
        auxiliary: weight of the loss of a second head on the last but one stage; null: none.
    """

    head: Literal["fcn", "deeplab_v2"]
    width: PositiveInt
    dilation: PositiveInt
    output_stride: PositiveInt
    auxiliary: PositiveFloat | None

    metric = "miou"
    score = "pixel_accuracy"
    maps = (CLASS,)

    def build_network(self, classifier: nn.Module, norm: Normalizer, data: Dataset) -> nn.Module:
        network = backbone(classifier, data.image_shape, self.output_stride)
        *_, before, channels = network.channels
        head: nn.Module = DeepLabV2Head(channels, data.classes)
        if self.head == "fcn":
            head = FcnHead(norm, channels, data.classes, self.width, self.dilation)
        second = None if self.auxiliary is None else AuxiliaryHead(norm, before, data.classes)
        return DenseNetwork(network, head, second)

    def loss(
        self, output: Tensor, targets: Sequence[Tensor], reg: Regularization, workers: int
    ) -> Tensor:
        (maps,) = targets
        classes, smoothing = class_map(maps), reg.label_smoothing
        if self.auxiliary is None:
            return segmentation_loss(output, classes, workers, smoothing)
        first, second = output.chunk(2, dim=1)
        of_second = segmentation_loss(second, classes, workers, smoothing)
        return segmentation_loss(first, classes, workers, smoothing) + self.auxiliary * of_second

    def score_input(self, output: Tensor, target: Tensor) -> Tensor:
        first = output if self.auxiliary is None else output.chunk(2, dim=1)[0]
        return share_of_right_pixels(first, class_map(target))

    def draw(self, images: Tensor, target: Tensor, output: Tensor) -> Tensor:
        classes = (class_map(target), output.argmax(1))
        return side_by_side(images, *map(color_classes, classes))

    def split_metrics(self, data: Dataset) -> "SegmentationMetrics":
        return SegmentationMetrics(data.classes)


def segmentation_loss(
    logits: Tensor, classes: Tensor, workers: int = 1, label_smoothing: float = 0.0
) -> Tensor:
    """Return the mean over workers of the mean cross-entropy over a worker's pixels.

    Void pixels do not count. As they are not equally many for every worker, this is not the mean
    over all pixels. A worker of void pixels alone has the loss 0.

    Args:
        logits: (N, classes, H, W).
        classes: (N, H, W) int64.
        workers: W, which divides N.
        label_smoothing: share of the target that is spread evenly over all classes.
    """
    losses = F.cross_entropy(
        logits, classes, ignore_index=VOID, label_smoothing=label_smoothing, reduction="none"
    )
    pixels = (classes != VOID).flatten(1).sum(1).view(-1, workers).sum(0)
    sums = losses.flatten(1).sum(1).view(-1, workers).sum(0)
    return (sums / pixels.clamp(min=1)).mean()


def share_of_right_pixels(logits: Tensor, classes: Tensor) -> Tensor:
    """Return for each image the share (N,) of its pixels, without void ones, that are right.

    An image of void pixels alone has none.
    """
    known = classes != VOID
    right = (logits.argmax(1) == classes) & known
    return right.flatten(1).sum(1) / known.flatten(1).sum(1).clamp(min=1)


class IntersectionOverUnion(MulticlassJaccardIndex):
    """Mean intersection over union of classes (N, H, W), without void pixels.

    Counted by torch's own `bincount`: with deterministic algorithms torchmetrics compares every
    pixel with every pair of classes instead, which for 150 classes takes 41 GB.
    """

    confmat: Tensor  # (classes, classes) pixels by target and prediction

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count the pixels of predictions and targets."""
        number, known = len(self.confmat), target != self.ignore_index
        pairs = target[known] * number + preds[known]
        self.confmat += torch.bincount(pairs, minlength=number**2).view(number, number)


class SegmentationMetrics(nn.Module):
    """Mean intersection over union and accuracy of the pixels of a split, without void ones.

    The union and intersection of a class are those of all images together, and classes that occur
    neither in targets nor in predictions are left out of the mean, as in Pascal VOC. The loss is
    the mean over images of the mean cross-entropy over an image's pixels.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.miou = IntersectionOverUnion(classes, ignore_index=VOID)
        self.accuracy = MulticlassAccuracy(classes, average="micro", ignore_index=VOID)
        self.loss = mean_metric()

    def reset(self) -> None:
        """Forget all images."""
        for metric in self.children():
            metric.reset()  # type: ignore[operator]

    def update(self, output: Tensor, target: Tensor) -> None:
        """Count the pixels of logits (N, classes, H, W) and maps (N, T, H, W)."""
        logits, classes = output.float(), class_map(target)  # half precision under autocast
        predicted = logits.argmax(1)
        self.miou.update(predicted, classes)
        self.accuracy.update(predicted, classes)
        self.loss.update(segmentation_loss(logits, classes, workers=len(logits)), len(logits))

    def summary(self, split: str) -> CurveRecord:
        """Return both in percent and the loss, named after the `split`."""
        return {
            f"{split}_miou": 100 * float(self.miou.compute()),
            f"{split}_pixel_accuracy": 100 * float(self.accuracy.compute()),
            f"{split}_loss": float(self.loss.compute()),
        }
