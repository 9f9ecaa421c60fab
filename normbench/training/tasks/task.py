"""Tasks: the output of a network, its loss and its metrics."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from normbench.data.dataset import Dataset
from normbench.norms.base.layer import Normalizer
from normbench.records.history import CurveRecord
from normbench.training.regularization import Regularization


class SplitMetrics(Protocol):
    """Metrics over the images of one split; devices exchange theirs when they are read."""

    def reset(self) -> None:
        """Forget all images."""

    def update(self, output: Any, target: Tensor) -> None:
        """Count the images of an output of the network and their target (N, ...)."""

    def summary(self, split: str) -> CurveRecord:
        """Return the metrics and, where it is known, the loss as `{split}_loss`."""


@dataclass(frozen=True)
class Task(ABC):
    """A task as its yaml describes it.

    Args:
        global_batch: images of an optimizer step under protocol=fixed_global_batch, unless typed.
    """

    global_batch: PositiveInt

    metric: ClassVar[str]  # the main one of a run, without the name of the split
    score: ClassVar[str]  # metric of training steps, in percent
    maps: ClassVar[Sequence[int]] = ()  # channels of the data set's maps that it predicts
    by_image: ClassVar[bool] = False  # an image is right or wrong
    smooths_labels: ClassVar[bool] = True  # the loss takes `Regularization.label_smoothing`
    loss_by_worker: ClassVar[bool] = True  # the loss depends on which images share a worker
    by_region: ClassVar[bool] = False  # parts of the network get any number of regions of an image

    @property
    def test_metric(self) -> str:
        """The main metric on the test images, as rows name it."""
        return f"test_{self.metric}"

    def build_network(self, classifier: nn.Module, norm: Normalizer, data: Dataset) -> nn.Module:
        """Return the network of the task, which may take over the `classifier` of an image.

        Args:
            classifier: the model, whose logits are those of the data set's classes.
            norm: the normalizer of further layers.
            data: whose images (N, C, H, W) the network gets.

        Raises:
            Impossible: the classifier has no maps that the task could use.
        """
        del norm, data
        return classifier

    def run_training_pass(
        self, network: nn.Module, images: Tensor, targets: Sequence[Tensor]
    ) -> Any:
        """Return the output of a forward pass of training; some networks need the targets in it.

        Args:
            network: of `build_network`.
            images: (N, C, H, W).
            targets: `normbench.training.batches.Chunk.targets` of these images.
        """
        del targets
        return network(images)

    @abstractmethod
    def loss(
        self, output: Any, targets: Sequence[Tensor], reg: Regularization, workers: int
    ) -> Tensor:
        """Return the mean over workers of the loss of a worker's images.

        Args:
            output: of `run_training_pass`.
            targets: `normbench.training.batches.Chunk.targets` of these images.
            reg: regularization, which may smooth labels.
            workers: W, which divides N.
        """

    def example_targets(self, images: int, data: Dataset) -> tuple[Tensor, ...]:
        """Return targets of `images` images of noise, for measurements of time and memory."""
        numbers = torch.arange(images) % data.classes
        if self.by_image:
            return (numbers,)
        _, height, width = data.image_shape
        bytes_ = (1 + numbers).to(torch.uint8)[:, None, None, None]
        return (bytes_.expand(-1, data.maps, height, width).contiguous(),)

    @abstractmethod
    def score_input(self, output: Any, target: Tensor) -> Tensor:
        """Return what `scores` needs of the output of a forward pass of training (N, ...)."""

    def scores(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the score (N,) of each image, between 0 and 1; here `score_input` itself."""
        del labels
        return inputs

    def draw(self, images: Tensor, target: Tensor, output: Any) -> Tensor | None:
        """Return a picture (3, H, W) uint8 of predictions beside their targets; None: of nothing.

        Args:
            images: the network's input (N, C, H, W).
            target: (N, ...).
            output: of the network, of these images.
        """
        del images, target, output
        return None

    @abstractmethod
    def split_metrics(self, data: Dataset) -> SplitMetrics:
        """Return empty metrics, a module."""

    def explain_failure(self, train_loss: float, data: Dataset) -> str:
        """Return why a network with this loss at the end of its training has not learned, or ""."""
        del train_loss, data
        return ""
