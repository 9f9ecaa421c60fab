"""Semantic segmentation: the loss of each worker, and the mean intersection over union."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

VOID = 255  # class of pixels that count nowhere


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


class SegmentationMetrics(nn.Module):
    """Mean intersection over union and accuracy of the pixels of a split, without void ones.

    The union and intersection of a class are those of all images together, and classes that occur
    neither in targets nor in predictions are left out of the mean, as in Pascal VOC.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.miou = MulticlassJaccardIndex(classes, ignore_index=VOID)
        self.accuracy = MulticlassAccuracy(classes, average="micro", ignore_index=VOID)

    def reset(self) -> None:
        """Forget all images."""
        self.miou.reset()
        self.accuracy.reset()

    def update(self, logits: Tensor, classes: Tensor) -> None:
        """Count the pixels of logits (N, classes, H, W) and classes (N, H, W)."""
        predicted = logits.argmax(1)
        self.miou.update(predicted, classes)
        self.accuracy.update(predicted, classes)

    def summary(self, split: str) -> dict[str, float]:
        """Return both in percent, named after the `split`."""
        return {
            f"{split}_miou": 100 * float(self.miou.compute()),
            f"{split}_pixel_accuracy": 100 * float(self.accuracy.compute()),
        }


def upsample(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return logits (N, classes, h, w) at `size` (H, W), bilinearly, as FCN and DeepLab do."""
    if logits.shape[2:] == torch.Size(size):
        return logits
    return F.interpolate(logits, size, mode="bilinear", align_corners=False)
