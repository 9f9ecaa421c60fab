"""Score a layer by the trainings of a search, and reject it as soon as that is clear.

In the order of their costs: of the first training of each network, the accuracy after some steps
and the norm of the gradient under adversarial weights; then all trainings to their ends.
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from normbench.config.cells import Cell
from normbench.errors import Impossible, OutOfMemory
from normbench.execution.worker import exceptions_of_training
from normbench.norms.workers import set_workers
from normbench.search.candidates import Rejected
from normbench.search.options import EvaluationOptions
from normbench.search.stability import worst_gradient
from normbench.training.datamodule import DataModule, open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.hardware import device_type, use_full_precision
from normbench.training.lightning_module import Diverged
from normbench.training.stop_signals import StopSignals
from normbench.training.trainer import build_trainer, prepare
from normbench.training.training import Listener, Training


def with_formula(cells: Sequence[Cell], formula: str) -> list[Cell]:
    """Return trainings with norm=graph as those of a formula."""
    return [replace(cell, norm=cell.norm.with_options(formula=formula)) for cell in cells]


class Scorer:
    """Train the layers of a search one after the other, on images that are opened once.

    Args:
        threads: CPU threads of this process.
        stop_signals: that interrupt a training.
    """

    def __init__(self, threads: int, stop_signals: StopSignals) -> None:
        self.stop_signals = stop_signals
        self._images: dict[str, DataModule] = {}  # by cell, without its normalizer
        torch.set_num_threads(threads)
        use_full_precision()

    def score(self, cells: Sequence[Cell], options: EvaluationOptions) -> list[tuple[float, float]]:
        """Return the validation accuracy in percent and the seconds of each training of a layer.

        Raises:
            Rejected: a criterion rejects the layer, a loss was not finite, a network refuses the
                layer, or a training does not fit into memory.
        """
        first_of_network: dict[str, Cell] = {}
        for cell in cells:
            first_of_network.setdefault(repr(cell.model), cell)
        try:
            with exceptions_of_training():
                for cell in first_of_network.values():
                    if options.min_accuracy:
                        self._require_accuracy(cell, options)
                    if options.max_gradient:
                        self._require_stability(cell, options)
                return [self._train(cell) for cell in cells]
        except (Impossible, OutOfMemory) as reason:
            raise Rejected("unsupported", str(reason)) from None

    def _require_accuracy(self, cell: Cell, options: EvaluationOptions) -> None:
        """Train the first steps only, under the learning rates of the whole training."""
        listener = _FirstSteps(options.min_accuracy_steps)
        accuracy, _ = self._train(cell, listener)
        if accuracy < options.min_accuracy:
            raise Rejected(
                "low_accuracy",
                f"{accuracy:.1f} % after {listener.done} steps with {cell.batch} images",
            )

    def _require_stability(self, cell: Cell, options: EvaluationOptions) -> None:
        experiment, device = Experiment(cell), device_type(cell)
        images = self._open(experiment)
        torch.manual_seed(cell.seed)
        network = experiment.build_network().to(device).train()
        set_workers(network, experiment.plan.per_forward)
        chunk = images.on_after_batch_transfer(next(images.read_chunks(0)), 0)
        norm = worst_gradient(
            network, chunk.images[0, 0].to(device), chunk.labels[0, 0].to(device),
            options.ascent_steps, options.max_gradient,
        )  # fmt: skip
        if not norm <= options.max_gradient:
            raise Rejected("unstable", f"gradient norm {norm:.3g} with {cell.batch} images")

    def _train(self, cell: Cell, listener: Listener | None = None) -> tuple[float, float]:
        """Return the validation accuracy of a training, and its seconds.

        Raises:
            Rejected: a loss was not finite.
        """
        experiment, started = Experiment(cell), time.monotonic()
        training = Training(experiment, listener or Listener(), stop_signals=self.stop_signals)
        module = prepare(training, self._open(experiment))
        if module.impl == "compile":
            torch.compiler.reset()  # or compilation ends with the tenth network of this process
        trainer = build_trainer(module)
        with self.stop_signals.deferred(), suppress(Diverged, _EnoughSteps):
            trainer.fit(module, module.datamodule)
        if module.divergence:
            raise Rejected("diverged", f"{module.divergence}, with {cell.batch} images")
        if module.done < module.steps or module.recipe.recalibration:
            trainer.validate(module, module.datamodule, verbose=False)
        summary = module.validation.summary("val")
        if not math.isfinite(summary["val_loss"]):
            raise Rejected(
                "diverged", f"the validation loss with {cell.batch} images is not finite"
            )
        return float(summary["val_top1"]), time.monotonic() - started

    def _open(self, experiment: Experiment) -> DataModule:
        """Return the images of an experiment, which all layers share."""
        cell = experiment.cell
        key = repr(replace(cell, norm=replace(cell.norm, name="", options={}, changed={})))
        if key not in self._images:
            self._images[key] = open_datamodule(experiment)
        return self._images[key]


class _EnoughSteps(Exception):  # noqa: N818 (no error)
    """The first steps of a training are done."""


class _FirstSteps(Listener):
    """End a training after its first steps, at the end of a chunk."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.done = 0

    def on_progress(self, done: int, steps: int, loss: float) -> None:  # noqa: ARG002
        self.done = done
        if self.steps <= done < steps:
            raise _EnoughSteps
