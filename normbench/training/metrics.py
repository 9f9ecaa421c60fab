"""What a network is worth on the images of a split."""

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

Record = dict[str, float]


class Evaluation(nn.Module):
    """Accuracy and loss over the images of one split, by torchmetrics."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.top1 = MulticlassAccuracy(classes, average="micro")
        # With fewer than five classes every image is a hit of the top 5.
        self.top5 = MulticlassAccuracy(classes, top_k=min(5, classes), average="micro")
        self.loss = MeanMetric()

    def reset(self) -> None:
        """Forget all images."""
        for metric in (self.top1, self.top5, self.loss):
            metric.reset()

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count the images of logits (N, classes) and labels (N,)."""
        logits = logits.float()  # under autocast they are half precision
        self.top1.update(logits, labels)
        self.top5.update(logits, labels)
        self.loss.update(F.cross_entropy(logits, labels, reduction="none"))

    def summary(self, split: str) -> Record:
        """Top-1 and top-5 accuracy in percent and the loss, named after the `split`."""
        return {
            f"{split}_top1": 100 * float(self.top1.compute()),
            f"{split}_top5": 100 * float(self.top5.compute()),
            f"{split}_loss": float(self.loss.compute()),
        }
