"""Training of one network: optimizer steps, records and checkpoints.

Optimization is manual: one `training_step` takes all optimizer steps of a chunk and waits for the
device once. The number of steps in a chunk changes no result.
"""

import math
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from normbench.errors import Impossible
from normbench.measurements.training_probes import TrainingProbes
from normbench.models.random_layers import random_layers, set_draws
from normbench.norms.base.progress import scheduled_layers, set_progress
from normbench.norms.base.running import NetworkStatistics
from normbench.norms.implementation import set_implementation
from normbench.records.history import CurveRecord
from normbench.training.batches import Chunk, StepBatch
from normbench.training.checkpoint import (
    State,
    collect_optimizer_state,
    is_new_run,
    load_part,
    load_weights,
    require_continuable,
    require_same_optimizer,
    restore_optimizer_state,
)
from normbench.training.cuda_graph import ComputeGradients, GraphedStep
from normbench.training.datamodule import DataModule
from normbench.training.evaluation_module import EvaluationModule, force_eager
from normbench.training.metrics import (
    LossAndHits,
    PassOutput,
    StepMetrics,
    reduce_steps,
)
from normbench.training.stop_signals import Stopped
from normbench.training.training import Training


class Diverged(Exception):  # noqa: N818 (a result, not an error)
    """The loss of an optimizer step was not finite."""


class TrainingModule(EvaluationModule):
    """One network from images (N, C, H, W) to predictions, trained as its experiment says."""

    def __init__(self, network: nn.Module, training: Training, datamodule: DataModule) -> None:
        super().__init__(network, training.experiment, datamodule)
        self.automatic_optimization = False  # a Lightning batch is a chunk of many steps
        cell = self.cell
        self.listener, self.checkpoints = training.listener, training.checkpoints
        self.stop_signals = training.stop_signals
        self.reg = training.experiment.reg
        self.steps = datamodule.chunking.steps
        self.steps_per_epoch = datamodule.sampler.steps_per_epoch
        self.done = self.first_step = 0  # completed optimizer steps; those of another run
        self.training_seconds = 0.0
        self.resumed = 0  # number of times that the training has resumed from a checkpoint
        self.lr = 0.0  # of the latest step
        self.divergence = ""  # which loss was not finite
        self.metrics = StepMetrics(
            self.steps, self.steps_per_epoch, cell.global_batch, self.task.score
        )
        self.scheduled_layers = scheduled_layers(network)
        self.random_layers = random_layers(network)
        self.impl = training.experiment.choose_impl(self.steps)
        # After the copy of the average, which evaluations run eagerly.
        set_implementation(network, self.impl)
        self.compute_gradients: ComputeGradients = self._compute_gradients
        if self.joins_passes:
            # The network itself is refused by `ExactAccumulation`.
            if reason := training.experiment.single_pass_option:
                raise Impossible(f"several passes with synchronized statistics: {reason}")
            self.compute_gradients = self._accumulate_exactly
        if cell.trainer.cuda_graph:
            self.compute_gradients = GraphedStep(self._compute_gradients, network)
        probe = cell.probe
        self.probes = TrainingProbes(probe.kinds, probe.every, cell.title, self.listener.on_probe)
        self._state = training.state
        if training.state is not None:
            self._begin_with(training.state)

    def configure_optimizers(self) -> tuple[list[object], list[object]]:  # type: ignore[override]
        optimizer = self.recipe.build_optimizer(self.model, self.cell.global_batch)
        if self._state is not None:
            require_same_optimizer(self._state, optimizer)
            restore_optimizer_state(optimizer, self.model, self._state["optimizer"])
        return [optimizer], [self.build_scheduler(optimizer)]

    def build_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Build the learning-rate schedule of `optimizer`, advanced to the completed steps."""
        scheduler = self.recipe.build_scheduler(optimizer, self.steps)
        if self._state is not None:
            position = {"last_epoch": self.done - 1, "_step_count": self.done + 1}
            scheduler.load_state_dict({**scheduler.state_dict(), **position})
            scheduler.step()  # schedules are functions of the step, so one is enough
        return scheduler

    def on_fit_start(self) -> None:
        plugin = self.trainer.precision_plugin
        # Lightning's hooks around every backward pass and step cost a small network a third of a
        # millisecond; they do nothing without a loss scale and without other devices.
        bypass = self.plan.devices == 1 and getattr(plugin, "scaler", None) is None
        self.optimizer: Any = self.optimizers(use_pl_optimizer=not bypass)
        self.lr_scheduler: Any = self.lr_schedulers()
        self.backpropagate = Tensor.backward if bypass else self.manual_backward
        if self.joins_passes:
            # It imports timm, which takes a second.
            from normbench.models.exact_accumulation import ExactAccumulation

            self.exact_accumulation = ExactAccumulation(self.model)
        self.begin_training()

    def begin_training(self) -> None:
        """Restore the random numbers of a resumed training, and probe the network as it is."""
        if self._state is not None:
            if self._state["precision"]:  # empty after another precision
                self.trainer.precision_plugin.load_state_dict(self._state["precision"])
            torch.set_rng_state(self._state["random"])
            if len(self._state["random_cuda"]) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(self._state["random_cuda"])
            self._state = None  # it is as large as the network
        if self.probes.kinds:
            self._probed = self.datamodule.sample_training_images(self.cell.probe.images)
            if not self.done and (means := self._run_probes(0)):
                self.listener.on_record({"step": 0, "epoch": 0.0, **means})

    def on_train_epoch_start(self) -> None:
        self._since = time.monotonic()

    def training_step(self, chunk: Chunk, _index: int) -> None:
        """Take the optimizer steps of a chunk, then wait for the device once.

        Raises:
            Diverged: a loss was not finite.
            Stopped: this process was asked to stop, or another one of its group.
        """
        outputs = []
        for step in range(len(chunk.images)):
            outputs.append(self._take_step(chunk, step))
            if self.stop_signals.received and self.plan.devices == 1:
                break  # devices agree on a step only between chunks
        due = self.checkpoints is not None and self.checkpoints.due()
        numbers = reduce_steps(outputs, chunk.labels[: len(outputs)], self.task.scores)
        steps, due, stops = self.ranks.gather_steps(
            numbers, due=due, stops=self.stop_signals.received
        )
        ends_epoch = chunk.ends_epoch and len(outputs) == len(chunk.images)
        self.count_steps(steps, due or stops, ends_epoch=ends_epoch)
        if stops and not ends_epoch:
            raise Stopped

    def _take_step(self, chunk: Chunk, step: int) -> list[PassOutput]:
        """Take optimizer step `step` of a chunk; return the output of each of its passes."""
        set_progress(self.scheduled_layers, (self.done + step) / self.steps)
        # Everything stays on the device: reading a number here would wait for it every step.
        outputs = self.compute_gradients(chunk.step(step))
        if self.statistics.read_in_training:
            self.average_statistics()
        self.lr = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.lr_scheduler.step()
        if self.ema is not None and not self.ema.per_epoch:
            self.ema.update(self.model, self.done + step)
        return outputs

    def _compute_gradients(self, batch: StepBatch) -> list[PassOutput]:
        self.optimizer.zero_grad()
        return [
            self._run_pass(batch, number) for number in self.statistics.passes(len(batch.images))
        ]

    def _run_pass(self, batch: StepBatch, pass_number: int) -> PassOutput:
        """Run forward and backward pass `pass_number` of a step, adding to the gradients."""
        x, passes = batch.images[pass_number], len(batch.images)  # (N, C, H, W)
        self._set_draws(batch, pass_number)
        targets = [target[pass_number] for target in batch.targets]
        output = self.task.run_training_pass(self.model, self.cast(x), targets)
        loss = self._loss(output, targets, passes)
        # Ranks exchange gradients once a step, after the last pass.
        exchange = pass_number == passes - 1 or self.plan.devices == 1
        strategy: Any = self.trainer.strategy
        with nullcontext() if exchange else strategy.block_backward_sync():
            self.backpropagate(loss)
        return self._pass_output(output, loss, targets)

    def _accumulate_exactly(self, batch: StepBatch) -> list[PassOutput]:
        """Compute the gradients of a step whose passes share batch statistics."""
        self.optimizer.zero_grad()
        outputs = []

        def loss(output: Any, number: int) -> Tensor:
            targets = [target[number] for target in batch.targets]
            share = self._loss(output, targets, len(batch.images))
            outputs.append(self._pass_output(output, share, targets))
            return share

        strategy: Any = self.trainer.strategy
        single_device = self.plan.devices == 1
        with nullcontext() if single_device else strategy.block_backward_sync():
            self.exact_accumulation.backward(
                [self.cast(images) for images in batch.images],
                loss,
                before_segment=partial(self._set_draws, batch),
            )
        if not single_device:
            # Ranks exchange gradients in a backward pass alone, so here is one that adds nothing.
            zeros = [each.flatten()[:0].sum() for each in self.model.parameters()]
            self.backpropagate(torch.stack(zeros).sum())
        return outputs

    def _set_draws(self, batch: StepBatch, pass_number: int) -> None:
        """Announce the images of the next forward pass to layers that draw random numbers."""
        if self.random_layers:
            set_draws(self.random_layers, batch.draws(pass_number))

    def _loss(self, output: Any, targets: list[Tensor], passes: int) -> Tensor:
        """Return the share of a pass in the loss of its step."""
        # Passes have equally many images, so the mean of their means is the mean over all.
        return self.task.loss(output, targets, self.reg, self.plan.per_forward) / passes

    def _pass_output(self, output: Any, loss: Tensor, targets: list[Tensor]) -> PassOutput:
        with torch.no_grad():
            score_input = self.task.score_input(output, targets[0])
        return PassOutput(loss.detach(), score_input.detach())

    def count_steps(self, steps: list[LossAndHits], due: bool, *, ends_epoch: bool) -> None:
        """Count completed optimizer steps; write a record and a checkpoint if they are due.

        Raises:
            Diverged: a loss was not finite.
        """
        for loss, _ in steps:
            self.done += 1
            if not math.isfinite(loss):
                self.divergence = f"the loss of step {self.done} of {self.steps} was {loss}"
                raise Diverged(self.divergence)
        self.metrics.add(steps)
        # From the end of the last chunk: loading counts, validation does not.
        now = time.monotonic()
        self.training_seconds += now - self._since
        self._since = now
        self.listener.on_progress(self.done, self.steps, steps[-1][0])
        if ends_epoch and self.ema is not None and self.ema.per_epoch:
            self.average_statistics()
            self.ema.update(self.model, (self.done - 1) // self.steps_per_epoch)
        if not ends_epoch:  # at the end of an epoch validation comes before record and checkpoint
            if self.done % self.cell.trainer.log_every == 0:
                self._report({})
            if due and self.checkpoints is not None:
                self._save_checkpoint()

    def _report(self, evaluations: CurveRecord) -> None:
        """Report a record of the curve: the steps since the last one, and `evaluations`."""
        position = {"step": self.done, "epoch": self.done / self.steps_per_epoch, "lr": self.lr}
        self.listener.on_record(position | self.metrics.take_pending() | evaluations)

    def on_train_epoch_end(self) -> None:
        stops = self.ranks.is_any(self.stop_signals.received)
        self.end_epoch(stops)
        if stops and self.done < self.steps:
            raise Stopped

    def end_epoch(self, stops: bool) -> None:
        """Write what is due at the end of an epoch, with a checkpoint if the training stops."""
        # Lightning validates before it ends the epoch.
        summary = self.validation.summary("val") if self.datamodule.holds_out else {}
        shown = ("val_loss", f"val_{self.task.metric}")
        validation = {key: summary[key] for key in shown if key in summary}
        means = self._run_probes(math.ceil(self.done / self.steps_per_epoch))
        self._report(validation | means)
        if self.checkpoints is None:
            return
        epoch, within = divmod(self.done, self.steps_per_epoch)
        if not within and epoch in self.checkpoints.epochs:
            self.checkpoints.keep(self.training_state(), epoch)
        if self.ranks.is_any(self.checkpoints.due() or stops) and self.done < self.steps:
            self._save_checkpoint()

    def _run_probes(self, epoch: int) -> CurveRecord:
        """Probe the network after `epoch` if that is due, without changing it."""
        if not self.probes.due(epoch, last=self.done == self.steps):
            return {}
        images = self.cast(self._probed.to(self.device))
        # All devices take part, as synchronized statistics are of all of them.
        with self.trainer.precision_plugin.forward_context(), force_eager():
            return self.probes.measure(self.evaluated, images, epoch)

    def on_train_end(self) -> None:
        stops = self.ranks.is_any(self.stop_signals.received)
        self.end_training(stops)
        if stops:
            raise Stopped

    def end_training(self, stops: bool) -> None:
        """Complete the network for its evaluations, with a checkpoint if one is due."""
        self.compute_gradients = self._compute_gradients  # frees the memory of a CUDA graph
        self.average_statistics()
        steps = self.recipe.recalibration
        if steps and NetworkStatistics(self.evaluated):
            self.recalibrate(steps)
        if self.checkpoints is None:
            return
        if self.ranks.is_any(self.checkpoints.due_at_end() or stops):
            self._save_checkpoint()

    @property
    def images_per_second(self) -> float:
        """Speed of the training steps, without evaluations and checkpoints."""
        return (self.done - self.first_step) * self.cell.global_batch / self.training_seconds

    def _save_checkpoint(self) -> None:
        state = self.training_state()  # a collective operation; one of the ranks writes
        assert self.checkpoints is not None
        self.checkpoints.save(state)
        self._since = time.monotonic()  # the time of writing is not training time

    def training_state(self) -> State:
        """Return what a training needs to continue from here, under any plan."""
        self.average_statistics()
        # Lightning's wrapper of an optimizer may hold an older state of it.
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        on_gpu = self.device.type == "cuda"
        return {
            "model": self.model.state_dict(),
            "average": None if self.ema is None else self.ema.state_dict(),
            "optimizer": collect_optimizer_state(optimizer, self.model),
            "optimizer_class": type(optimizer).__name__,
            "precision": self.trainer.precision_plugin.state_dict(),
            "random": torch.get_rng_state(),  # for layers of other libraries
            "random_cuda": torch.cuda.get_rng_state_all() if on_gpu else [],
            "done": self.done,
            "steps_per_epoch": self.steps_per_epoch,
            "pending": self.metrics.pending,
            "last": list(self.metrics.final),
            "first_step": self.first_step,
            "training_seconds": self.training_seconds,
            "resumed": self.resumed,
        }

    def _begin_with(self, state: State) -> None:
        """Continue from `state`, or begin with only the parameters of the roles that it names."""
        if "roles" not in state:
            self._load_training_state(state)
            return
        for network in (self.model,) if self.ema is None else (self.model, self.ema.network):
            load_part(network, state)
        self._state = None

    def _load_training_state(self, state: State) -> None:
        require_continuable(state, self.steps, self.steps_per_epoch)
        load_weights(self.model, state)
        if self.ema is not None:
            # After a training without an average, the average begins with the weights.
            self.ema.network.load_state_dict(state["model"])
            if state["average"] is not None:
                self.ema.load_state_dict(state["average"])
        self.done, self.training_seconds = state["done"], state["training_seconds"]
        self.first_step = state["first_step"]
        self.resumed = 0 if is_new_run(state) else state["resumed"] + 1
        self.metrics.pending = list(state["pending"])
        self.metrics.final.extend(state["last"])
