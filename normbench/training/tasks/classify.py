"""Classification: a class for every image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from normbench.data.dataset import Dataset
from normbench.training.regularization import Regularization
from normbench.training.tasks.task import SplitMetrics, Task


@dataclass(frozen=True)
class Classify(Task):
    """Images (N, C, H, W) -> logits (N, classes)."""

    metric = "top1"
    score = "top1"
    by_image = True
    loss_by_worker = False

    def loss(
        self,
        output: Tensor,
        targets: Sequence[Tensor],
        reg: Regularization,
        workers: int,  # noqa: ARG002 (all have equally many images, so the mean is that of all)
    ) -> Tensor:
        return reg.loss(output, *targets)

    def score_input(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002 (see `scores`)
        return output

    def scores(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return inputs.argmax(1) == labels  # of all passes of a chunk at once

    def split_metrics(self, data: Dataset) -> SplitMetrics:
        from normbench.training.metrics import Evaluation  # torchmetrics takes two seconds

        return Evaluation(data.classes)

    def explain_failure(self, train_loss: float, data: Dataset) -> str:
        # A dead network still learns class frequencies, which gives a loss just below ln(classes).
        if train_loss < 0.99 * math.log(data.classes):
            return ""
        return (
            f"the final training loss of {train_loss:.3f} is not 1 % below ln({data.classes}), "
            "that of guessing; the learning rate is too high or the training too short"
        )
