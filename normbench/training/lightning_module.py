"""Training and evaluation of one network: loss, metrics, optimizer, as a LightningModule.

Optimization is manual: one `training_step` takes all optimizer steps of a chunk and asks the device
for their losses once. How many steps a chunk has changes no number.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import fmean
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from normbench.config.plan import Plan
from normbench.errors import BadInput, Impossible
from normbench.measurements.training_probes import TrainingProbes
from normbench.models.drop import drop_layers, set_draws
from normbench.norms.base.running import NetworkStatistics
from normbench.norms.impl import Impl, set_impl
from normbench.norms.recalibration import recalibrate
from normbench.norms.renorm import renorm_layers, set_progress
from normbench.norms.workers import set_workers
from normbench.training.checkpoint import Checkpoints, State, gathered, restore
from normbench.training.cuda_graph import Graph
from normbench.training.datamodule import Chunk, Images, Loaders, Step
from normbench.training.ema import Average
from normbench.training.metrics import Evaluation, Record
from normbench.training.recipe import Recipe
from normbench.training.regularization import Regularization


class Diverged(Exception):  # noqa: N818 (a result, not an error)
    """The loss of an optimizer step was not finite."""


Told = tuple[Tensor, Tensor]  # of a forward pass: its part of the loss, (), and logits (N, classes)
EAGER = partial(torch.compiler.set_stance, "force_eager")


def ignored(*_: object) -> None:
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
        channels_last: images and weights lie in memory as (N, H, W, C).
        impl: how training steps compute the network: eager, lean
        (`normbench.norms.base.recompute`), compile,
            as torch.compile makes it, or triton, by kernels of our own
            (`normbench.norms.kernels.dispatch`).
            Evaluations are never compiled.
        graphs: replay the passes of a step as one CUDA graph.
        curve: takes each record: step, epoch, lr, training loss and accuracy, at the end of an
            epoch those of the validation images too. Accuracies in percent; of mixed images those
            that have their own label.
        progress: takes the steps done and the latest loss, once a chunk.
        checkpoints: where states of the training go; None: nowhere.
        state: of the same training or of another that this one goes on from; None: from the start.
        probes: measure the network before training and after epochs.
        probe_images: number of training images for them.
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
        channels_last: bool = False,
        impl: Impl = "eager",
        graphs: bool = False,
        curve: Callable[[Record], None] = ignored,
        progress: Callable[[int, float], None] = ignored,
        checkpoints: Checkpoints | None = None,
        state: State | None = None,
        probes: TrainingProbes | None = None,
        probe_images: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # a Lightning batch is a chunk of many steps
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model.to(memory_format=self.format)
        self.recipe, self.reg, self.plan = recipe, reg, plan
        self.global_batch, self.steps, self.steps_per_epoch = global_batch, steps, steps_per_epoch
        self.log_every, self.curve, self.progress = log_every, curve, progress
        self.checkpoints = checkpoints
        self.done = self.began = 0  # optimizer steps; those of another run before this one
        self.training_seconds = 0.0
        self.resumed = 0  # how often it has gone on from a checkpoint
        self.rate = 0.0  # learning rate of the latest step
        # Pairs of loss and hits: of the steps that the curve lacks, and of those at the end, which
        # are the last epoch or tenth of all steps, the shorter, as an epoch may be all there was.
        self.fresh: list[tuple[float, float]] = []
        self.last: deque[tuple[float, float]] = deque(
            maxlen=max(1, min(steps_per_epoch, steps // 10))
        )
        self.changing = renorm_layers(model)
        self.dropping = drop_layers(model)
        self.validation, self.testing = Evaluation(classes), Evaluation(classes)
        _lay(model, plan)
        self.statistics = NetworkStatistics(model)
        self.of_epochs = recipe.ema_unit == "epoch"
        self.average = (
            None if recipe.ema is None else Average(model, recipe.ema, rises=not self.of_epochs)
        )
        self.impl = impl
        set_impl(model, impl)  # after the average, a copy that evaluations see as it is
        self.graphs = graphs
        self.gradients: Callable[[Step], list[Told]] = self._gradients
        if graphs:
            self.gradients = Graph(self._gradients, model)
        self.probes, self.probe_images = probes, probe_images
        self._state = state
        if state is not None:
            self._take_up(state)

    @property
    def evaluated(self) -> nn.Module:
        """The network that evaluations see."""
        return self.model if self.average is None else self.average.network

    def configure_optimizers(self) -> tuple[list[object], list[object]]:  # type: ignore[override]
        optimizer = self.recipe.optimizer(self.model, self.global_batch)
        if self._state is not None:
            restore(optimizer, self.model, self._state["optimizer"])
        return [optimizer], [self.scheduled(optimizer)]

    def scheduled(self, optimizer: Optimizer) -> LRScheduler:
        """The schedule of the training's `optimizer`, at the step where the training is."""
        scheduler = self.recipe.scheduler(optimizer, self.steps)
        if self._state is not None:
            place = {"last_epoch": self.done - 1, "_step_count": self.done + 1}
            scheduler.load_state_dict({**scheduler.state_dict(), **place})
            scheduler.step()  # schedules are functions of the step, so this is where it would be
        return scheduler

    def on_fit_start(self) -> None:
        plugin = self.trainer.precision_plugin
        # Lightning's turn round every backward pass and step costs a small network a third of a
        # millisecond; without a scale of the loss and other devices there is nothing to do in it.
        alone = self.plan.devices == 1 and getattr(plugin, "scaler", None) is None
        self.optimizer: Any = self.optimizers(use_pl_optimizer=not alone)
        self.schedule: Any = self.lr_schedulers()
        self.backpropagate = Tensor.backward if alone else self.manual_backward
        self.begin(self.trainer.datamodule)  # type: ignore[attr-defined]

    def begin(self, loaders: Loaders) -> None:
        """On these images; go on where another training was, and look at the network as it is."""
        self.loaders = loaders
        if self._state is not None:
            if self._state["precision"]:  # of another precision there is none
                self.trainer.precision_plugin.load_state_dict(self._state["precision"])
            torch.set_rng_state(self._state["random"])
            if len(self._state["random_cuda"]) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(self._state["random_cuda"])
            self._state = None  # it is as large as the network
        if self.probes is not None:
            self._probed = loaders.some(self.probe_images)
            if not self.done and (means := self._probe(0)):
                self.curve({"step": 0, "epoch": 0.0, **means})

    def on_train_epoch_start(self) -> None:
        self._since = time.monotonic()

    def training_step(self, chunk: Chunk, _index: int) -> None:
        """As many optimizer steps as the chunk holds, and one look at the device.

        Raises:
            Diverged: a loss was not finite.
        """
        told = [self._update(chunk, ahead) for ahead in range(len(chunk.images))]
        due = self.checkpoints is not None and self.checkpoints.due()
        self.account(*self._agreed(seen(told, chunk.labels), due), ends_epoch=chunk.ends_epoch)

    def account(self, pairs: list[tuple[float, float]], due: bool, *, ends_epoch: bool) -> None:
        """Take note of optimizer steps: the loss and the hits of each, and a checkpoint if due.

        Raises:
            Diverged: a loss was not finite.
        """
        for loss, _ in pairs:
            self.done += 1
            if not math.isfinite(loss):
                raise Diverged(f"the loss of step {self.done} of {self.steps} was {loss}")
        self.fresh += pairs
        self.last.extend(pairs)
        # From the end of the last chunk: loading counts, validation does not.
        now = time.monotonic()
        self.training_seconds += now - self._since
        self._since = now
        self.progress(self.done, pairs[-1][0])
        if ends_epoch and self.average is not None and self.of_epochs:
            self._share_statistics()
            self.average.update(self.model, (self.done - 1) // self.steps_per_epoch)
        if not ends_epoch:  # at the end of an epoch validation comes before either
            if self.done % self.log_every == 0:
                self._record({})
            if due:
                self._save()

    def _agreed(self, seen: Tensor, due: bool) -> tuple[list[tuple[float, float]], bool]:
        """Losses and hits (K, 2) over all devices, and whether the first of them wants to save.

        The one wait for the device in a chunk.
        """
        # Every process must take the same turn, whatever its own clock and its own images say.
        told = torch.cat([seen.flatten(), seen.new_tensor([float(due)])])
        *numbers, saves = self._over_devices(told, "sum").tolist()
        losses = [loss / self.plan.devices for loss in numbers[::2]]
        return list(zip(losses, numbers[1::2], strict=True)), saves > 0

    def _over_devices(self, own: Tensor, how: str = "mean") -> Tensor:
        if self.plan.devices == 1:
            return own
        reduced: Tensor = self.trainer.strategy.reduce(own, reduce_op=how)
        return reduced

    def _update(self, chunk: Chunk, ahead: int) -> list[Told]:
        """The optimizer step on images (A, N, C, H, W): what each of its A passes tells."""
        set_progress(self.changing, (self.done + ahead) / self.steps)
        # Everything stays on the device: asking for a number here would wait for it every step.
        told = self.gradients(chunk.step(ahead))
        if self.statistics.read_in_training:
            self._share_statistics()
        self.rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.schedule.step()
        if self.average is not None and not self.of_epochs:
            self.average.update(self.model, self.done + ahead)
        return told

    def _gradients(self, step: Step) -> list[Told]:
        """Leaves the gradients of a step's passes; what each tells."""
        self.optimizer.zero_grad()
        return [self._pass(step, turn) for turn in self.statistics.passes(len(step.images))]

    def _pass(self, step: Step, turn: int) -> Told:
        """Adds the gradients of a forward pass; its part of the mean loss, and the logits."""
        x, passes = step.images[turn], len(step.images)  # (N, C, H, W)
        if self.dropping:
            set_draws(self.dropping, step.draws(turn))
        logits = self.model(x.to(self.dtype, memory_format=self.format))
        # Passes have equally many images, so the mean of their means is the mean over all.
        others = (each[turn] for each in step.partners)
        loss = self.reg.loss(logits, step.labels[turn], *others) / passes
        # Processes exchange gradients once a step, when the last pass has added its own.
        exchange = turn == passes - 1 or self.plan.devices == 1
        strategy: Any = self.trainer.strategy
        with nullcontext() if exchange else strategy.block_backward_sync():
            self.backpropagate(loss)
        return loss.detach(), logits.detach()

    def _share_statistics(self) -> None:
        """Running statistics become the mean over all devices."""
        if self.plan.devices == 1:
            return
        shared = [self.statistics] + ([NetworkStatistics(self.evaluated)] if self.average else [])
        for each in filter(None, shared):
            each.write(self._over_devices(each.read()))

    def on_train_end(self) -> None:
        self.gradients = self._gradients  # a graph has memory of its own, which evaluations may use
        self._share_statistics()
        steps = self.recipe.recalibration
        if steps and NetworkStatistics(self.evaluated):
            images = self.loaders.after_training(steps)
            batches = (each.to(self.device).to(self.dtype) for each in images)
            with self.trainer.precision_plugin.forward_context(), EAGER():
                recalibrate(self.evaluated, batches, self._over_devices)
        if self.checkpoints is not None and self.checkpoints.final:
            self._save()

    def on_train_epoch_end(self) -> None:
        # Lightning has validated before it ends the epoch, if images are held out at all.
        held_out = len(self.loaders.splits.val.labels)
        found = self.validation.summary("val") if held_out else {}
        known = {name: found[name] for name in ("val_loss", "val_top1") if name in found}
        self._record(known | self._probe(math.ceil(self.done / self.steps_per_epoch)))
        if self.checkpoints is None:
            return
        epoch, within = divmod(self.done, self.steps_per_epoch)
        if not within and epoch in self.checkpoints.epochs:
            self.checkpoints.keep(self.state(), epoch)
        due = torch.tensor(float(self.checkpoints.due()), device=self.device)
        if self._over_devices(due, "sum") > 0 and self.done < self.steps:
            self._save()

    def _probe(self, epoch: int) -> Record:
        """Return the means that probes measure in the network; nothing in it changes."""
        if self.probes is None or not self.probes.due(epoch, last=self.done == self.steps):
            return {}
        images = self._probed.to(self.device)
        images = images.to(self.dtype, memory_format=self.format)
        # All devices take part, as synchronized statistics are of all of them.
        with self.trainer.precision_plugin.forward_context(), EAGER():
            return self.probes.measure(self.evaluated, images, epoch)

    def _save(self) -> None:
        state = self.state()  # all processes take part in it, and one of them writes
        assert self.checkpoints is not None
        self.checkpoints.save(state)
        self._since = time.monotonic()  # writing is no training

    def state(self) -> State:
        """All that this training needs to go on from here, under whatever plan."""
        self._share_statistics()
        # Lightning's wrapper of an optimizer may remember an older state of it.
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        on_gpu = self.device.type == "cuda"
        return {
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": gathered(optimizer, self.model),
            "precision": self.trainer.precision_plugin.state_dict(),
            "random": torch.get_rng_state(),  # for layers of other people's
            "random_cuda": torch.cuda.get_rng_state_all() if on_gpu else [],
            "done": self.done,
            "steps_per_epoch": self.steps_per_epoch,
            "fresh": self.fresh,
            "last": list(self.last),
            "began": self.began,
            "training_seconds": self.training_seconds,
            "resumed": self.resumed,
        }

    def _take_up(self, state: State) -> None:
        over = state["done"] > self.steps or (state["done"] == self.steps and not state["last"])
        if state["steps_per_epoch"] != self.steps_per_epoch or over:
            raise BadInput(
                f"init_from: there {state['done']} steps were done, {state['steps_per_epoch']} in "
                f"an epoch; here an epoch has {self.steps_per_epoch} and the training "
                f"{self.steps}: data, global batch and recipe must let it go on"
            )
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            missing = str(error).partition("\n")[2].strip().partition("\n")[0]
            raise BadInput(
                f"init_from: the network there is not the one of this cell ({missing}); model and "
                "norm must have the same parameters, as norm=sn and norm=sn norm.hard=true have"
            ) from None
        if self.average is not None:
            # Of a training without an average: it begins with the weights.
            self.average.network.load_state_dict(state["model"])
            if state["average"] is not None:
                self.average.load_state_dict(state["average"])
        self.done, self.training_seconds = state["done"], state["training_seconds"]
        self.began = state["began"]
        self.fresh, self.resumed = list(state["fresh"]), state["resumed"] + 1
        self.last.extend(state["last"])

    def _record(self, more: Record) -> None:
        losses, hits = zip(*self.fresh, strict=True)
        self.fresh = []
        self.curve(
            {
                "step": self.done,
                "epoch": self.done / self.steps_per_epoch,
                "lr": self.rate,
                "train_loss": fmean(losses),
                "train_top1": 100 * fmean(hits) / self.global_batch,
                **more,
            }
        )

    @property
    def images_per_second(self) -> float:
        """Of the training steps alone."""
        return (self.done - self.began) * self.global_batch / self.training_seconds

    def final_means(self) -> tuple[float, float]:
        """Loss and accuracy in percent at the end."""
        losses, hits = zip(*self.last, strict=True)
        return fmean(losses), 100 * fmean(hits) / self.global_batch

    def on_validation_epoch_start(self) -> None:
        self.validation.reset()  # every epoch looks at all held-out images anew
        self._share_statistics()

    def validation_step(self, batch: Images, _index: int) -> None:
        self._evaluate(self.validation, batch)

    def test_step(self, batch: Images, _index: int) -> None:
        self._evaluate(self.testing, batch)

    def _evaluate(self, evaluation: Evaluation, batch: Images) -> None:
        if len(batch.labels):  # there may be fewer images than devices
            images = batch.images.to(self.dtype, memory_format=self.format)
            with EAGER():  # nothing is compiled for a few passes of other sizes
                evaluation.update(self.evaluated(images), batch.labels)


def seen(told: list[list[Told]], labels: Tensor) -> Tensor:
    """Loss and number of hits of K steps, (K, 2), with labels (K, A, N)."""
    losses = torch.stack([loss for passes in told for loss, _ in passes]).view(labels.shape[:2])
    logits = torch.cat([each for passes in told for _, each in passes])  # (K * A * N, classes)
    hits = (logits.argmax(1) == labels.flatten()).view(len(labels), -1).sum(1)
    total = losses[:, 0]
    for others in losses.unbind(1)[1:]:  # in their order, however many there are
        total = total + others
    return torch.stack([total, hits.to(losses.dtype)], dim=1)


def _lay(model: nn.Module, plan: Plan) -> None:
    whole_step = any(getattr(each, "whole_step", False) for each in model.modules())
    if plan.accumulation > 1 and whole_step:
        raise Impossible(
            f"{plan}: synchronized statistics are those of all images of an optimizer step, which "
            "therefore share one forward pass"
        )
    set_workers(model, plan.per_forward)
