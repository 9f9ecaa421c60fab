"""Seed stacking: several seeds of one cell trained as one vmapped network.

The losses of K stacked networks are added. As no weight belongs to two networks, each gets its own
gradient, and elementwise optimizers (SGD, RMSProp) update it as they would alone, up to rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.utilities import CombinedLoader
from torch import Tensor, nn

from normbench.config.cells import Cell
from normbench.config.files import default_choices
from normbench.norms.base.progress import set_progress
from normbench.training.batches import Chunk, EvaluationBatch
from normbench.training.checkpoint import Checkpoints
from normbench.training.datamodule import Restartable
from normbench.training.experiment import Experiment
from normbench.training.lightning_module import Diverged, TrainingModule
from normbench.training.metrics import PassOutput, reduce_steps
from normbench.training.stacked_networks import StackedNetworks
from normbench.training.stop_signals import Stopped
from normbench.training.trainer import fit_and_test, prepare
from normbench.training.training import Training


class StackedTrainingModule(LightningModule):
    """Trainings of several seeds that begin at the same step and take every step together."""

    def __init__(self, modules: Sequence[TrainingModule]) -> None:
        super().__init__()
        self.automatic_optimization = False  # a Lightning batch is a chunk of many steps
        self.seeds = list(modules)
        self.submodules = nn.ModuleList(modules)  # so that Lightning moves them to the device
        self.done = modules[0].done
        self.stop_signals = modules[0].stop_signals

    @property
    def active(self) -> list[TrainingModule]:
        """The seeds that have not diverged."""
        return [module for module in self.seeds if not module.divergence]

    def configure_optimizers(self) -> tuple[list[object], list[object]]:  # type: ignore[override]
        first = self.seeds[0]
        # Before the weights are stacked: the modules restore the states from which they resume.
        self.seed_optimizers: list[Any] = [
            module.configure_optimizers()[0][0] for module in self.seeds
        ]
        self.stack = StackedNetworks([module.model for module in self.seeds])
        optimizer = first.recipe.build_optimizer(self.stack.model, first.cell.global_batch)
        if first.done:
            self.stack.stack_optimizer_state(optimizer, self.seed_optimizers)
        return [optimizer], [first.build_scheduler(optimizer)]

    def on_fit_start(self) -> None:
        self.optimizer: Any = self.optimizers(use_pl_optimizer=False)
        self.lr_scheduler: Any = self.lr_schedulers()
        for module, optimizer in zip(self.seeds, self.seed_optimizers, strict=True):
            module.trainer, module.optimizer = self.trainer, optimizer
            module.begin_training()

    def on_train_epoch_start(self) -> None:
        for module in self.active:
            module.on_train_epoch_start()

    def training_step(self, chunks: list[Chunk], _index: int) -> None:
        """Take the optimizer steps of the chunks, one chunk per seed, then wait for the device.

        Raises:
            Diverged: all seeds have diverged.
            Stopped: this process was asked to stop.
        """
        steps = []
        for step in range(len(chunks[0].images)):
            steps.append(self._take_step(chunks, step))
            if stops := self.stop_signals.received:
                break
        numbers = [
            reduce_steps(
                [[PassOutput(losses[seed], logits[seed])] for losses, logits in steps],
                chunk.labels[: len(steps)],
                self.seeds[0].task.scores,
            )
            for seed, chunk in enumerate(chunks)
        ]
        self.done += len(steps)
        # Here the processor waits for the device, once a chunk.
        loss_and_hits = dict(zip(self.seeds, torch.stack(numbers).tolist(), strict=True))
        due = stops or any(checkpoints.due() for checkpoints in self._active_checkpoints())
        ends_epoch = chunks[0].ends_epoch and len(steps) == len(chunks[0].images)
        if due or ends_epoch:  # any module may then save its state
            self.stack.split_optimizer_state(self.optimizer, self.seed_optimizers)
        for module in self.active:
            with suppress(Diverged):
                module.count_steps(loss_and_hits[module], due, ends_epoch=ends_epoch)
        if not self.active:
            raise Diverged("all seeds")
        if stops and not ends_epoch:
            raise Stopped

    def _take_step(self, chunks: Sequence[Chunk], step: int) -> tuple[Tensor, Tensor]:
        """Take a step of all seeds on N images each: losses (K,) and logits (K, N, classes)."""
        tensors = zip(*(chunk.step(step).tensors for chunk in chunks), strict=True)
        images, *targets = (torch.stack([each[0] for each in of_seeds]) for of_seeds in tensors)
        layers = [layer for module in self.seeds for layer in module.scheduled_layers]
        set_progress(layers, (self.done + step) / self.seeds[0].steps)
        self.optimizer.zero_grad()
        losses, logits = self.stack(self._loss, images.to(self.dtype), *targets)
        losses.sum().backward()
        # Before the scheduler moves on: a record has the rate of its own steps.
        lr = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.lr_scheduler.step()
        for module in self.active:
            module.lr = lr
            if module.ema is not None and not module.ema.per_epoch:
                module.ema.update(module.model, self.done + step)
        return losses.detach(), logits.detach()

    def _loss(
        self, model: Callable[[Tensor], Tensor], images: Tensor, *targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = model(images)
        return self.seeds[0].reg.loss(logits, *targets), logits

    def on_train_epoch_end(self) -> None:
        checkpoints = self._active_checkpoints()
        stops = self.stop_signals.received
        if any(each.due() for each in checkpoints):
            for each in checkpoints:  # seeds that stop at the same step can resume together
                each.make_due()
        for module in self.active:
            module.end_epoch(stops)
        if stops and self.done < self.seeds[0].steps:
            raise Stopped

    def _active_checkpoints(self) -> list[Checkpoints]:
        return [each.checkpoints for each in self.active if each.checkpoints is not None]

    def on_train_end(self) -> None:
        stops = self.stop_signals.received
        for module in self.active:
            module.end_training(stops)
        if stops:
            raise Stopped

    def on_validation_epoch_start(self) -> None:
        for module in self.active:
            module.trainer = self.trainer  # a training that is complete has not been fitted
            module.on_validation_epoch_start()

    def on_test_epoch_start(self) -> None:
        for module in self.active:
            module.on_test_epoch_start()

    def validation_step(self, batches: list[EvaluationBatch], index: int) -> None:
        for module, batch in zip(self.seeds, batches, strict=True):
            if not module.divergence:
                module.validation_step(batch, index)

    def test_step(self, batches: list[EvaluationBatch], index: int) -> None:
        for module, batch in zip(self.seeds, batches, strict=True):
            if not module.divergence:
                module.test_step(batch, index)


class StackedDataModule(LightningDataModule):
    """Images of several trainings: a batch is a list with one batch per seed."""

    def __init__(self, module: StackedTrainingModule) -> None:
        super().__init__()
        self.module = module
        self.datamodules = [each.datamodule for each in module.seeds]

    def train_dataloader(self) -> Restartable[list[Chunk]]:
        return Restartable(self._read_remaining_chunks)

    def val_dataloader(self) -> CombinedLoader:
        # All seeds evaluate the same images, so the shortest loader cuts none off.
        return CombinedLoader([each.val_dataloader() for each in self.datamodules], "min_size")

    def test_dataloader(self) -> CombinedLoader:
        return CombinedLoader([each.test_dataloader() for each in self.datamodules], "min_size")

    def on_after_batch_transfer(self, batches: Any, dataloader_idx: int) -> Any:
        pairs = zip(self.datamodules, batches, strict=True)
        return [each.on_after_batch_transfer(batch, dataloader_idx) for each, batch in pairs]

    def _read_remaining_chunks(self) -> Iterator[list[Chunk]]:
        position = divmod(self.module.done, self.datamodules[0].sampler.steps_per_epoch)
        chunks = (each.read_chunks(*position) for each in self.datamodules)
        return map(list, zip(*chunks, strict=True))


def train_stacked(trainings: Sequence[Training]) -> list[dict[str, Any]]:
    """Train and test experiments that differ in their seeds; return the fields of their rows."""
    modules: list[TrainingModule] = []
    trainings = [_without_compilation(training) for training in trainings]
    for training in trainings:
        seed = training.experiment.cell.seed
        # The same open files: seeds differ in the order of images alone.
        datamodule = modules[0].datamodule.with_seed(seed) if modules else None
        modules.append(prepare(training, datamodule))
    module = StackedTrainingModule(modules)
    fields = trainings[0].experiment.describe(modules[0].datamodule.loader)
    fields |= {"stacked_seeds": len(trainings)}
    return [fields | each for each in fit_and_test(module, StackedDataModule(module), modules)]


def _without_compilation(training: Training) -> Training:
    """Turn off compilation, which vmap does not support."""
    experiment = training.experiment
    cell = replace(experiment.cell, trainer=replace(experiment.cell.trainer, impl="eager"))
    eager = Experiment(cell, experiment.plan, experiment.network_fields)
    return replace(training, experiment=eager)


def explain_unstackable_cell(cell: Cell) -> str:
    """Return why seeds of `cell` cannot be stacked, whatever its network, or ""."""
    plan, trainer = cell.trainer.plans(cell.workers)[0], cell.trainer
    recipe = cell.recipe.options  # that of a user's own may lack some
    clips = ("norm_clip", "adaptive_clip", "ratio_clip")
    clip = next((f"{key}={value}" for key in clips if (value := recipe.get(key))), "")
    optimizer = recipe.get("optimizer")
    reasons = {
        f"task={cell.task.name}": cell.task.name != default_choices()["task"],
        f"trainer.devices={plan.devices}": plan.devices > 1,
        f"{plan.accumulation} forward passes a step": plan.accumulation > 1,
        "precision=16-mixed": cell.precision == "16-mixed",
        f"recipe.{clip}, a norm of the gradients of one run": bool(clip),
        f"recipe.optimizer={optimizer}, as several of timm's use norms of layers": bool(optimizer),
        "trainer.channels_last=true": trainer.channels_last,
        f"trainer.impl={trainer.impl}": trainer.impl not in ("auto", "eager"),
        "trainer.cuda_graph=true": trainer.cuda_graph,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")
