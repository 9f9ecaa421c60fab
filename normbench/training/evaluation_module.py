"""Evaluation of a network during and after its training, by Lightning's hooks.

The evaluated network is the moving average, if there is one. Its running statistics are means over
all devices; after the training they may be computed anew (`recipe.recalibration`), and images may
count in their own statistics (`recipe.example_weight`).
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from normbench.norms.base.running import NetworkStatistics
from normbench.norms.inference import set_example_weight
from normbench.norms.recalibration import recalibrate
from normbench.norms.whole_step import has_synchronized_statistics
from normbench.norms.workers import set_workers
from normbench.training.batches import EvaluationBatch
from normbench.training.datamodule import DataModule
from normbench.training.ema import MovingAverage
from normbench.training.example_weight import AlphaCurve, lacks_statistics, statistics_steps
from normbench.training.experiment import Experiment
from normbench.training.metrics import Hits
from normbench.training.ranks import Ranks

SHOWN = 4  # test images in the picture of predictions

force_eager = partial(torch.compiler.set_stance, "force_eager")


class EvaluationModule(LightningModule):
    """One network from images (N, C, H, W) to predictions, evaluated as its experiment says."""

    def __init__(self, network: nn.Module, experiment: Experiment, datamodule: DataModule) -> None:
        super().__init__()
        self.cell, self.datamodule = experiment.cell, datamodule
        self.recipe, self.plan = experiment.recipe, experiment.plan
        channels_last = self.cell.trainer.channels_last
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = network.to(memory_format=self.format)
        set_workers(network, self.plan.per_forward)
        #: Batch statistics are of all passes of a step, when they are computed anew, too.
        self.joins_passes = self.plan.accumulation > 1 and has_synchronized_statistics(network)
        self.statistics = NetworkStatistics(network)
        self.ranks = Ranks(self, self.plan.devices)
        self.ema: MovingAverage | None = None
        if self.recipe.ema is not None:
            per_epoch = self.recipe.ema_unit == "epoch"
            self.ema = MovingAverage(network, self.recipe.ema, per_epoch=per_epoch)
        self.task = experiment.task
        self.validation: Any = self.task.split_metrics(experiment.data)
        self.testing: Any = self.task.split_metrics(experiment.data)
        images = len(datamodule.splits.test.labels)
        self.test_hits = Hits(images) if self.task.by_image else None
        self.picture: Tensor | None = None  # of predictions of the first test images
        self.shown: list[tuple[Any, ...]] = []  # images, targets and predictions of that picture
        self.missing = SHOWN  # images of it
        self.example_weight: float | None = None  # None: the layers' usual one
        self.alpha_curve: AlphaCurve | None = None

    @property
    def evaluated(self) -> nn.Module:
        """The network that evaluations run: the moving average, if there is one."""
        return self.model if self.ema is None else self.ema.network

    def average_statistics(self) -> None:
        """Replace running statistics by their mean over all devices."""
        if self.ranks.number > 1:
            averages = [] if self.ema is None else [NetworkStatistics(self.ema.network)]
            self.ranks.average([self.statistics, *averages])

    def recalibrate(self, steps: int) -> None:
        """Compute running statistics from `steps` global batches under the final weights."""
        images = self.datamodule.batches_after_training(steps, joined=self.joins_passes)
        batches = (batch.to(self.device).to(self.dtype) for batch in images)
        with self.trainer.precision_plugin.forward_context(), force_eager():
            recalibrate(self.evaluated, batches, self.ranks.reduce)

    def cast(self, images: Tensor) -> Tensor:
        """Convert images to the data type and the memory format of the network."""
        return images.to(self.dtype, memory_format=self.format)

    def on_validation_epoch_start(self) -> None:
        self.validation.reset()
        self.average_statistics()
        if self.example_weight is not None:
            if lacks_statistics(self.evaluated):
                self.recalibrate(statistics_steps(self.cell.global_batch))
            set_example_weight(self.evaluated, self.example_weight)

    def on_test_epoch_start(self) -> None:
        self.testing.reset()
        self.shown, self.missing = [], SHOWN
        if self.test_hits is not None:
            self.test_hits.reset()
        if self.example_weight is not None:
            set_example_weight(self.evaluated, self.example_weight)

    def validation_step(self, batch: EvaluationBatch, _index: int) -> None:
        if len(batch.labels):  # a device gets none if there are fewer images than devices
            self.validation.update(self._predict(batch), batch.target)

    def test_step(self, batch: EvaluationBatch, _index: int) -> None:
        if len(batch.labels):
            output = self._predict(batch)
            self.testing.update(output, batch.target)
            if self.test_hits is not None:
                self.test_hits.update(output, batch)
            if self.missing > 0:
                of_batch = (batch.images, batch.target, output)
                self.shown.append(tuple(each[: self.missing] for each in of_batch))
                self.missing -= len(batch.labels)
                self.picture = self.task.draw(*map(_join, zip(*self.shown, strict=True)))
                if self.missing <= 0:
                    self.shown = []  # parts keep whole batches

    def _predict(self, batch: EvaluationBatch) -> Any:
        with force_eager():  # a few passes of other sizes are not worth compiling
            return self.evaluated(self.cast(batch.images))


def _join(parts: Sequence[Any]) -> Any:
    """Return tensors, or lists of detections, of several batches as one."""
    return torch.cat([*parts]) if isinstance(parts[0], Tensor) else [*chain(*parts)]
