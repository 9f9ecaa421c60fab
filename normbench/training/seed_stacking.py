"""Seed stacking: several seeds of one cell trained as one vmapped network.

The losses of K stacked networks are added. As no weight belongs to two networks, each gets its own
gradient, and elementwise optimizers (SGD, RMSProp) update it as they would alone, up to rounding.
"""

import time
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import replace
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn

from normbench.config.cells import Cell
from normbench.training.chunk import Chunk, EvaluationBatch
from normbench.training.experiment import Experiment, Training
from normbench.training.lightning_module import Diverged, TrainingModule
from normbench.training.metrics import PassOutput, reduce_steps
from normbench.training.stacked_networks import StackedNetworks
from normbench.training.trainer import (
    build_trainer,
    collect_hardware_fields,
    collect_test_fields,
    collect_training_fields,
    prepare,
)


class StackedTrainingModule(LightningModule):
    """Trainings of several seeds that take every step together.

    Args:
        modules: one per seed; all begin at the same step.
    """

    def __init__(self, modules: Sequence[TrainingModule]) -> None:
        super().__init__()
        self.automatic_optimization = False  # a Lightning batch is a chunk of many steps
        self.seeds = list(modules)
        self.submodules = nn.ModuleList(modules)  # so that Lightning moves them to the device
        self.done = modules[0].done
        self.diverged: dict[TrainingModule, str] = {}

    @property
    def active(self) -> list[TrainingModule]:
        """The seeds that have not diverged."""
        return [module for module in self.seeds if module not in self.diverged]

    def configure_optimizers(self) -> tuple[list[object], list[object]]:  # type: ignore[override]
        first = self.seeds[0]
        # Before the weights are stacked: the modules restore the states from which they resume.
        self.seed_optimizers: list[Any] = [
            module.configure_optimizers()[0][0] for module in self.seeds
        ]
        self.stack = StackedNetworks([module.model for module in self.seeds])
        optimizer = first.recipe.build_optimizer(self.stack.model, first.global_batch)
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
        """
        steps = [self._take_step(chunks, ahead) for ahead in range(len(chunks[0].images))]
        numbers = [
            reduce_steps(
                [[PassOutput(losses[seed], logits[seed])] for losses, logits in steps], chunk.labels
            )
            for seed, chunk in enumerate(chunks)
        ]
        self.done += len(steps)
        loss_and_hits = dict(zip(self.seeds, torch.stack(numbers).tolist(), strict=True))
        due = any(
            module.checkpoints is not None and module.checkpoints.due() for module in self.active
        )
        ends_epoch = chunks[0].ends_epoch
        if due or ends_epoch:  # any module may then save its state
            self.stack.split_optimizer_state(self.optimizer, self.seed_optimizers)
        for module in self.active:
            try:
                module.count_steps(loss_and_hits[module], due, ends_epoch=ends_epoch)
            except Diverged as reason:
                self.diverged[module] = str(reason)
        if not self.active:
            raise Diverged("all seeds")

    def _take_step(self, chunks: Sequence[Chunk], ahead: int) -> tuple[Tensor, Tensor]:
        """Take a step of all seeds on N images each: losses (K,) and logits (K, N, classes)."""
        images = torch.stack([chunk.images[ahead, 0] for chunk in chunks]).to(self.dtype)
        seed_targets = [_loss_targets(chunk, ahead) for chunk in chunks]
        self.optimizer.zero_grad()
        targets = [torch.stack(values) for values in zip(*seed_targets, strict=True)]
        losses, logits = self.stack(self._loss, images, *targets)
        losses.sum().backward()
        lr = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.lr_scheduler.step()
        for module in self.active:
            module.lr = lr
            if module.ema is not None and not module.ema_per_epoch:
                module.ema.update(module.model, self.done + ahead)
        return losses.detach(), logits.detach()

    def _loss(
        self, model: Callable[[Tensor], Tensor], images: Tensor, *targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = model(images)
        return self.seeds[0].reg.loss(logits, *targets), logits

    def on_train_epoch_end(self) -> None:
        checkpoints = [each.checkpoints for each in self.active if each.checkpoints is not None]
        if any(each.due() for each in checkpoints):
            for each in checkpoints:  # seeds that stop at the same step can resume together
                each.make_due()
        for module in self.active:
            module.on_train_epoch_end()

    def on_train_end(self) -> None:
        for module in self.active:
            module.on_train_end()

    def on_validation_epoch_start(self) -> None:
        for module in self.active:
            module.on_validation_epoch_start()

    def validation_step(self, batches: list[EvaluationBatch], index: int) -> None:
        for module, batch in self._active_pairs(batches):
            module.validation_step(batch, index)

    def test_step(self, batches: list[EvaluationBatch], index: int) -> None:
        for module, batch in self._active_pairs(batches):
            module.test_step(batch, index)

    def _active_pairs(
        self, batches: list[EvaluationBatch]
    ) -> list[tuple[TrainingModule, EvaluationBatch]]:
        pairs = zip(self.seeds, batches, strict=True)
        return [(module, batch) for module, batch in pairs if module not in self.diverged]


def _loss_targets(chunk: Chunk, ahead: int) -> tuple[Tensor, ...]:
    """Return the arguments of the loss of a step after the logits."""
    labels = chunk.labels[ahead, 0]
    if chunk.partners is None:
        return (labels,)
    return labels, chunk.partners.labels[ahead, 0], chunk.partners.label_share[ahead, 0]


class StackedDataModule(LightningDataModule):
    """Images of several trainings: a batch is a list with one batch per seed."""

    def __init__(self, module: StackedTrainingModule) -> None:
        super().__init__()
        self.module = module
        self.seeds = [each.images for each in module.seeds]

    def train_dataloader(self) -> "_StackedChunks":
        return _StackedChunks(self.module)

    def val_dataloader(self) -> "_StackedLoaders":
        return _StackedLoaders([images.val_dataloader() for images in self.seeds])

    def test_dataloader(self) -> "_StackedLoaders":
        return _StackedLoaders([images.test_dataloader() for images in self.seeds])

    def on_after_batch_transfer(self, batches: Any, dataloader_idx: int) -> Any:
        pairs = zip(self.seeds, batches, strict=True)
        return [images.on_after_batch_transfer(batch, dataloader_idx) for images, batch in pairs]


class _StackedChunks:
    """Lists of chunks, one per seed, of the rest of the epoch in which the trainings are."""

    def __init__(self, module: StackedTrainingModule) -> None:
        self.module = module

    def __iter__(self) -> Iterator[list[Chunk]]:
        seeds = [each.images for each in self.module.seeds]
        position = divmod(self.module.done, seeds[0].sampler.steps_per_epoch)
        return map(list, zip(*(images.read_chunks(*position) for images in seeds), strict=True))


class _StackedLoaders:
    """Lists of batches from loaders of equal length."""

    def __init__(self, loaders: Sequence[Any]) -> None:
        self.loaders = loaders

    def __len__(self) -> int:
        first: Sized = self.loaders[0]
        return len(first)

    def __iter__(self) -> Iterator[list[EvaluationBatch]]:
        return map(list, zip(*self.loaders, strict=True))


def train_stacked(trainings: Sequence[Training]) -> list[dict[str, Any]]:
    """Train and test experiments that differ in their seeds; return the fields of their rows."""
    modules: list[TrainingModule] = []
    for training in trainings:
        module, _ = prepare(_eager(training), modules[0].images if modules else None)
        modules.append(module)
    fields = trainings[0].experiment.describe(modules[0].images) | {"stacked_seeds": len(trainings)}
    started = time.monotonic()
    outcomes = _fit_and_test(StackedTrainingModule(modules))
    seconds = time.monotonic() - started
    return [
        {**fields, **outcomes[module], "seconds": seconds, **collect_hardware_fields(module)}
        for module in modules
    ]


def _eager(training: Training) -> Training:
    """Turn off compilation, which vmap does not support."""
    experiment = training.experiment
    cell = replace(experiment.cell, trainer=replace(experiment.cell.trainer, impl="eager"))
    return replace(training, experiment=Experiment(cell, experiment.plan))


def _fit_and_test(module: StackedTrainingModule) -> dict[TrainingModule, dict[str, Any]]:
    first, images = module.seeds[0], StackedDataModule(module)
    trainer = build_trainer(first)
    finished = first.done >= first.steps
    try:
        if not finished:
            trainer.fit(module, images)
    except Diverged:
        return _diverged_fields(module)
    if first.images.holds_out and (first.recipe.recalibration or finished):
        trainer.validate(module, images, verbose=False)  # under the final statistics
    fields = {seed: collect_training_fields(seed) for seed in module.active}
    trainer.test(module, images, verbose=False)
    fields = {seed: own | collect_test_fields(seed) for seed, own in fields.items()}
    return fields | _diverged_fields(module)


def _diverged_fields(module: StackedTrainingModule) -> dict[TrainingModule, dict[str, Any]]:
    return {
        seed: {"status": "diverged", "reason": reason} for seed, reason in module.diverged.items()
    }


def explain_unstackable_cell(cell: Cell) -> str:
    """Return why seeds of `cell` cannot be stacked, whatever its network, or ""."""
    plan, trainer = cell.trainer.plans(cell.workers)[0], cell.trainer
    reasons = {
        f"trainer.devices={plan.devices}": plan.devices > 1,
        f"{plan.accumulation} forward passes a step": plan.accumulation > 1,
        "precision=16-mixed": cell.precision == "16-mixed",
        "trainer.channels_last=true": trainer.channels_last,
        f"trainer.impl={trainer.impl}": trainer.impl not in ("auto", "eager"),
        "trainer.cuda_graph=true": trainer.cuda_graph,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")
