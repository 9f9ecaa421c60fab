"""Losses and accuracies of the images of a split, and losses and scores of training steps."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy

from normbench.records.history import CurveRecord
from normbench.training.batches import EvaluationBatch

#: Loss of an optimizer step, and the sum of the scores of its images: of classification the number
#: of those that are classified correctly.
LossAndHits = tuple[float, float]


def mean_metric() -> MeanMetric:
    """Return the mean of losses, NaN if one of them is: torchmetrics leaves such out by default."""
    return MeanMetric(nan_strategy=math.nan)


class Evaluation(nn.Module):
    """Accuracy and loss over the images of one split, by torchmetrics."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.top1 = MulticlassAccuracy(classes, average="micro")
        # With fewer than five classes every image is a hit of the top 5.
        self.top5 = MulticlassAccuracy(classes, top_k=min(5, classes), average="micro")
        self.loss = mean_metric()

    def reset(self) -> None:
        """Forget all images."""
        for metric in self.children():
            metric.reset()  # type: ignore[operator]

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count the images of logits (N, classes) and labels (N,)."""
        logits = logits.float()  # under autocast they are half precision
        self.top1.update(logits, labels)
        self.top5.update(logits, labels)
        self.loss.update(F.cross_entropy(logits, labels, reduction="none"))

    def summary(self, split: str) -> CurveRecord:
        """Return top-1 and top-5 accuracy in percent and the loss, named after the `split`."""
        return {
            f"{split}_top1": 100 * float(self.top1.compute()),
            f"{split}_top5": 100 * float(self.top5.compute()),
            f"{split}_loss": float(self.loss.compute()),
        }


class Hits(Metric):
    """The test images that are classified correctly, in the order of the test set.

    Every device counts images of its own; `compute` gathers those of all.
    """

    right: Tensor  # (images,) 1 or 0

    def __init__(self, images: int) -> None:
        super().__init__()
        self.add_state("right", torch.zeros(images, dtype=torch.uint8), dist_reduce_fx="sum")

    def update(self, logits: Tensor, batch: EvaluationBatch) -> None:
        """Count the images of a batch, whose logits are (N, classes)."""
        # In fp32 as by `Evaluation`, so that the number of hits is that of the accuracy.
        self.right[batch.indices] = (logits.float().argmax(1) == batch.labels).to(torch.uint8)

    def compute(self) -> list[bool]:
        """Return for each test image whether it is classified correctly."""
        hits: list[bool] = self.right.bool().tolist()
        return hits


class PassOutput(NamedTuple):
    """Result of a forward pass."""

    loss: Tensor  # (), its part of the loss of the step
    score_input: Tensor  # (N, ...), of the task, as the logits


def reduce_steps(
    steps: Sequence[Sequence[PassOutput]],
    labels: Tensor,
    scores: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return the loss and the sum of the scores of K steps of A passes each, (K, 2).

    Args:
        steps: the outputs of each pass of each step.
        labels: (K, A, N).
        scores: of the task.
    """
    outputs = [output for passes in steps for output in passes]
    losses = torch.stack([output.loss for output in outputs]).view(labels.shape[:2])
    inputs = torch.cat([output.score_input for output in outputs])  # (K * A * N, ...)
    hits = scores(inputs, labels.flatten()).view(len(labels), -1).sum(1)
    loss = losses[:, 0]
    for others in losses.unbind(1)[1:]:  # one after the other: a sum's order changes its rounding
        loss = loss + others
    return torch.stack([loss, hits.to(losses.dtype)], dim=1)


class StepMetrics:
    """Losses and scores of training steps, averaged for the curve and for the row."""

    def __init__(self, steps: int, steps_per_epoch: int, global_batch: int, score: str) -> None:
        self.global_batch, self.score = global_batch, score
        #: Of the steps since the latest record of the curve.
        self.pending: list[LossAndHits] = []
        #: Of the end of the training: the last epoch, or the last tenth of all steps if that is
        #: shorter, as one epoch may be the whole training.
        self.final: deque[LossAndHits] = deque(maxlen=max(1, min(steps_per_epoch, steps // 10)))

    def add(self, steps: Sequence[LossAndHits]) -> None:
        """Count further steps."""
        self.pending += steps
        self.final.extend(steps)

    def take_pending(self) -> CurveRecord:
        """Return the means since the last call, the score in percent."""
        loss, score = self._means(self.pending)
        self.pending = []
        return {"train_loss": loss, f"train_{self.score}": score}

    def final_means(self) -> tuple[float, float]:
        """Return loss and score in percent at the end of the training."""
        return self._means(self.final)

    def _means(self, steps: Iterable[LossAndHits]) -> tuple[float, float]:
        losses, hits = zip(*steps, strict=True)
        return fmean(losses), 100 * fmean(hits) / self.global_batch
