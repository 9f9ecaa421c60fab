"""Training and evaluation of one network: loss, metrics, optimizer, as a LightningModule.

Optimization is manual: one `training_step` takes all optimizer steps of a chunk and asks the device
for their losses once. How many steps a chunk has changes no number.
"""

import math
import time
from collections.abc import Callable
from statistics import fmean

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from normbench.errors import Impossible
from normbench.loaders import Chunk, Images, Loaders
from normbench.models.dropping import dropping, set_draws
from normbench.norms.recalibration import recalibrate
from normbench.norms.renorm import changing, set_progress
from normbench.norms.workers import PerWorker, set_workers
from normbench.plan import Plan
from normbench.recipe import Recipe
from normbench.reg import Regularization

Record = dict[str, float]


class Diverged(Exception):  # noqa: N818 (a result, not an error)
    """The loss of an optimizer step was not finite."""


def _ignored(*_: object) -> None:
    """Nobody listens."""


class Task(LightningModule):
    """One network under one recipe.

    Args:
        model: images (N, C, H, W) -> logits (N, classes).
        recipe: optimizer and schedule.
        reg: what is asked of the loss.
        plan: how the workers are laid on the hardware.
        classes: classes to tell apart.
        global_batch: images of an optimizer step.
        steps: optimizer steps of the whole training.
        steps_per_epoch: of them, in one pass over the training images.
        log_every: optimizer steps between two records of the curve within an epoch.
        curve: takes each record: step, epoch, lr, training loss and accuracy, at the end of an
            epoch those of the validation images too. Accuracies in percent.
        progress: takes the steps done and the latest loss, once a chunk.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        reg: Regularization,
        plan: Plan,
        *,
        classes: int,
        global_batch: int,
        steps: int,
        steps_per_epoch: int,
        log_every: int,
        curve: Callable[[Record], None] = _ignored,
        progress: Callable[[int, float], None] = _ignored,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # a Lightning batch is a chunk of many steps
        self.model = model
        self.recipe, self.reg, self.plan = recipe, reg, plan
        self.global_batch, self.steps, self.steps_per_epoch = global_batch, steps, steps_per_epoch
        self.log_every, self.curve, self.progress = log_every, curve, progress
        self.done = 0
        self.training_seconds = 0.0
        self.losses: list[float] = []  # a step each
        self.hits: list[float] = []
        self.recorded = 0  # steps that the curve has
        self.rate = 0.0  # learning rate of the latest step
        self.changing = changing(model)
        self.dropping = dropping(model)
        self.validation, self.testing = Evaluation(classes), Evaluation(classes)
        _lay(model, plan)

    def configure_optimizers(self) -> tuple[list[object], list[object]]:  # type: ignore[override]
        optimizer = self.recipe.optimizer(self.model, self.global_batch)
        return [optimizer], [self.recipe.scheduler(optimizer, self.steps)]

    def on_train_epoch_start(self) -> None:
        self._since = time.monotonic()

    def training_step(self, chunk: Chunk, _index: int) -> None:
        """As many optimizer steps as the chunk holds, and one look at the device.

        Raises:
            Diverged: a loss was not finite.
        """
        # K pairs (loss, hits), each a tensor of its own until the chunk is done.
        seen = [self._update(chunk, ahead) for ahead in range(len(chunk.images))]
        losses, hits = torch.stack(seen).T.tolist()  # the one wait for the device in a chunk
        for loss in losses:
            self.done += 1
            if not math.isfinite(loss):
                raise Diverged(f"the loss of step {self.done} of {self.steps} was {loss}")
        self.losses += losses
        self.hits += hits
        now = (
            time.monotonic()
        )  # from the end of the last chunk: loading counts, validation does not
        self.training_seconds += now - self._since
        self._since = now
        self.progress(self.done, losses[-1])
        if self.done % self.log_every == 0 and not chunk.ends_epoch:
            self._record({})

    def _update(self, chunk: Chunk, ahead: int) -> Tensor:
        """The optimizer step on images (A, N, C, H, W): its mean loss and number of hits, (2,)."""
        set_progress(self.changing, (self.done + ahead) / self.steps)
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        # Everything stays on the device: asking for a number here would wait for it every step.
        optimizer.zero_grad()  # type: ignore[union-attr]
        total = torch.zeros(2, device=self.device)
        passes = zip(chunk.images[ahead], chunk.labels[ahead], strict=True)
        for turn, (x, y) in enumerate(passes):  # x (N, C, H, W), y (N,)
            set_draws(self.dropping, chunk.draws(ahead, turn))
            logits = self.model(x)
            smoothing = self.reg.label_smoothing
            # Passes have equally many images, so the mean of their means is the mean over all.
            loss = F.cross_entropy(logits, y, label_smoothing=smoothing) / len(chunk.images[ahead])
            self.manual_backward(loss)
            total += torch.stack([loss.detach(), (logits.argmax(1) == y).sum()])
        self.rate = optimizer.param_groups[0]["lr"]  # type: ignore[union-attr]
        optimizer.step()  # type: ignore[union-attr]
        scheduler.step()  # type: ignore[union-attr]
        return total

    def on_train_end(self) -> None:
        steps = self.recipe.recalibration
        if steps and any(name.endswith("running_var") for name, _ in self.model.named_buffers()):
            loaders: Loaders = self.trainer.datamodule  # type: ignore[attr-defined]
            batches = (images.to(self.device) for images in loaders.after_training(steps))
            with self.trainer.precision_plugin.forward_context():
                recalibrate(self.model, batches)

    def on_train_epoch_end(self) -> None:
        # Lightning has validated before it ends the epoch, if images are held out at all.
        self._record(self.validation.summary("val") if self.validation.images else {})

    def _record(self, more: Record) -> None:
        fresh = slice(self.recorded, None)  # the steps since the last record
        self.recorded = len(self.losses)
        self.curve(
            {
                "step": self.done,
                "epoch": self.done / self.steps_per_epoch,
                "lr": self.rate,
                "train_loss": fmean(self.losses[fresh]),
                "train_top1": 100 * fmean(self.hits[fresh]) / self.global_batch,
                **{name: more[name] for name in ("val_loss", "val_top1") if name in more},
            }
        )

    def final_means(self) -> tuple[float, float]:
        """Loss and accuracy in percent at the end: over the last epoch, or tenth of the steps.

        The shorter of the two, since a last epoch may be a fragment or all there was.
        """
        last = max(1, min(self.steps_per_epoch, self.steps // 10))
        hits = fmean(self.hits[-last:]) / self.global_batch
        return fmean(self.losses[-last:]), 100 * hits

    def on_validation_epoch_start(self) -> None:
        self.validation.reset()  # every epoch looks at all held-out images anew

    def validation_step(self, batch: Images, _index: int) -> None:
        self.validation.update(self.model(batch.images), batch.labels)

    def test_step(self, batch: Images, _index: int) -> None:
        self.testing.update(self.model(batch.images), batch.labels)


class Evaluation(nn.Module):
    """Accuracy and loss over the images of one split, by torchmetrics."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.top1 = MulticlassAccuracy(classes, average="micro")
        # With fewer than five classes every image is a hit of the top 5.
        self.top5 = MulticlassAccuracy(classes, top_k=min(5, classes), average="micro")
        self.loss = MeanMetric()

    @property
    def images(self) -> int:
        """Images seen since the last reset."""
        return int(self.loss.weight)

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


def _lay(model: nn.Module, plan: Plan) -> None:
    layers = [module for module in model.modules() if isinstance(module, PerWorker)]
    per_worker = any(not getattr(layer, "batch_independent", False) for layer in layers)
    if plan.accumulation > 1 and per_worker:
        # Their running statistics would move once a pass instead of once a step.
        raise Impossible(f"{plan}: batch statistics need all workers of a device in one pass")
    set_workers(model, plan.per_forward)
