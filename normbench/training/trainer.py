"""Training of one experiment: build the network, fit and test it, collect fields of the row."""

import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from pytorch_lightning import (
    Callback,
    LightningDataModule,
    LightningModule,
    Trainer,
    seed_everything,
)
from pytorch_lightning.strategies import DDPStrategy, Strategy

from normbench.config.plan import Plan
from normbench.norms.ratios import mean_ratios
from normbench.training.datamodule import DataModule, open_datamodule
from normbench.training.example_weight import (
    ALPHAS,
    AlphaCurve,
    AlphaPoint,
    Metric,
    best_alphas,
    point_of,
    usual_alpha,
)
from normbench.training.hardware import (
    measure_devices,
    use_full_precision,
    uses_gpu,
    weight_dtype,
)
from normbench.training.lightning_module import Diverged, TrainingModule
from normbench.training.stop_signals import StopSignals
from normbench.training.training import Training

# A rank whose partners stay silent for so long ends by itself.
RANK_TIMEOUT = timedelta(minutes=10)


def train(training: Training) -> dict[str, Any]:
    """Train and test the network of an experiment; return the fields of its row.

    A plan of several devices is trained by as many processes, each of which calls this function
    with its rank in the environment variables of torchelastic.
    """
    module = prepare(training)
    (fields,) = fit_and_test(module, module.datamodule, [module])
    return training.experiment.describe(module.datamodule.loader) | fields


def prepare(training: Training, datamodule: DataModule | None = None) -> TrainingModule:
    """Build the network of an experiment, and open its data unless they are given."""
    experiment = training.experiment
    cell = experiment.cell
    torch.set_num_threads(cell.trainer.threads)
    datamodule = datamodule or open_datamodule(experiment)
    datamodule.warm_up()
    # For the weights; everything else is drawn by `normbench.data.counter_rng`.
    seed_everything(cell.seed, verbose=False)
    network = experiment.build_network().to(weight_dtype(cell))
    return TrainingModule(network, training, datamodule)


def fit_and_test(
    module: LightningModule, datamodule: LightningDataModule, seeds: Sequence[TrainingModule]
) -> list[dict[str, Any]]:
    """Train and test `module`; return the fields of a row for each of the `seeds` in it."""
    first = seeds[0]
    trainer = build_trainer(first)
    started, trained_before = time.monotonic(), first.training_seconds  # until an interruption
    finished = first.done >= first.steps  # a state of the end: only evaluations are left
    with suppress(Diverged), first.stop_signals.deferred():
        if not finished:
            trainer.fit(module, datamodule)
        validate = partial(trainer.validate, module, datamodule, verbose=False)
        test = partial(trainer.test, module, datamodule, verbose=False)
        recipe = first.recipe
        if recipe.example_weight:
            _choose_example_weights(recipe.example_weight, seeds, validate, test)
        elif first.datamodule.holds_out and (recipe.recalibration or finished):
            validate()  # under the final statistics
        test()
    seconds = trained_before + time.monotonic() - started
    for seed in seeds:
        _report_alpha_curve(seed)
        if not seed.divergence and seed.test_hits is not None:
            seed.listener.on_test_hits(seed.test_hits.compute())
        if not seed.divergence and seed.picture is not None:
            seed.listener.on_picture(seed.picture)
    return [
        {
            **collect_results(seed),
            "seconds": seconds,
            "resumed": seed.resumed,
            "impl": seed.impl,
            "channels_last": seed.cell.trainer.channels_last,
            "cuda_graphs": seed.cell.trainer.cuda_graph,
            **measure_devices(seed.cell, seed.plan.devices),
        }
        for seed in seeds
    ]


def _choose_example_weights(
    metric: Metric,
    seeds: Sequence[TrainingModule],
    validate: Callable[[], object],
    test: Callable[[], object],
) -> None:
    """Choose, by a metric, the weight of an image for the test of each seed.

    `validate` and `test` evaluate all seeds on the images of a split; seeds that diverged have no
    evaluation.
    """
    active = [seed for seed in seeds if not seed.divergence]
    points: list[list[AlphaPoint]] = [[] for _ in active]
    for alpha in ALPHAS:
        for seed in active:
            seed.example_weight = alpha
        validate()
        for seed, curve in zip(active, points, strict=True):
            curve.append(point_of("val", alpha, seed.validation.summary("val")))
    for seed in active:
        seed.example_weight = usual_alpha(seed.evaluated)
    test()
    for seed, curve in zip(active, points, strict=True):
        usual = usual_alpha(seed.evaluated)
        best = best_alphas(curve, usual)
        tested = {usual: point_of("test", usual, seed.testing.summary("test"))}
        seed.alpha_curve = AlphaCurve(curve, usual, best, tested)
        seed.example_weight = best[metric]


def _report_alpha_curve(seed: TrainingModule) -> None:
    """Add the test with the chosen weight to the curve over weights, and report its records."""
    if seed.alpha_curve is None or seed.example_weight is None:
        return
    tested = point_of("test", seed.example_weight, seed.testing.summary("test"))
    seed.alpha_curve = seed.alpha_curve.with_test(tested)
    epoch = math.ceil(seed.done / seed.steps_per_epoch)
    columns = {"network": seed.cell.title, "epoch": epoch}
    records = [columns | record for record in seed.alpha_curve.records()]
    seed.listener.on_probe("example_weight", records, epoch)


def collect_results(module: TrainingModule) -> dict[str, Any]:
    """Return the fields of a row about losses, accuracies and speed."""
    if module.divergence:
        return {"status": "diverged", "reason": module.divergence}
    task = module.task
    loss, score = module.metrics.final_means()
    metrics = {f"train_{task.score}": score, **module.testing.summary("test")}
    test_loss = metrics.pop("test_loss", None)
    fields: dict[str, Any] = {
        "status": "ok",
        "train_loss": loss,
        "test_loss": test_loss,
        "images_per_second": module.images_per_second,
        "sn_ratios": mean_ratios(module.evaluated),
    }
    if (metric := module.recipe.example_weight) and module.alpha_curve:
        fields["example_weighing"] = module.alpha_curve.row_field(metric)
        metrics["val_top1"] = module.alpha_curve.best_point(metric).top1
    elif module.datamodule.holds_out:
        validation = f"val_{task.metric}"
        metrics[validation] = module.validation.summary("val")[validation]
    if task.by_image:
        fields |= {**metrics, "test_images": len(module.datamodule.splits.test.labels)}
    else:
        fields |= {"metric": task.test_metric, "metrics": metrics}
    if reason := task.explain_failure(loss, module.datamodule.data):
        fields |= {"status": "diverged", "reason": reason}
    # They can be infinite after a finite training loss: running statistics can be broken.
    infinite = [name for name, value in metrics.items() if not math.isfinite(value)]
    if infinite:
        reason = f"{infinite[0]} was {metrics[infinite[0]]}"
        finite = {name: metrics[name] for name in metrics.keys() - infinite}
        fields |= {"status": "diverged", "reason": reason, "metrics": finite}
    if test_loss is not None and not math.isfinite(test_loss):
        reason = f"the loss on the test images was {test_loss}"
        fields |= {"test_loss": None, "status": "diverged", "reason": reason}
    return fields


def build_trainer(module: TrainingModule) -> Trainer:
    """Build Lightning's trainer for the remaining steps."""
    _silence_lightning()
    use_full_precision()
    cell, plan = module.cell, module.plan
    gpu = uses_gpu(cell)
    hosts = int(os.environ.get("GROUP_WORLD_SIZE", 1)) if plan.devices > 1 else 1
    per_epoch = module.steps_per_epoch
    return Trainer(
        accelerator="cuda" if gpu else "cpu",
        devices=plan.devices // hosts,
        num_nodes=hosts,
        strategy=_choose_strategy(plan),
        # Explicit: inside a Slurm job Lightning would take each run for a task of the job.
        plugins=[LightningEnvironment() if plan.devices == 1 else TorchElasticEnvironment()],
        deterministic="warn" if gpu else None,
        precision=cell.precision,  # type: ignore[arg-type]
        # The last epoch may be shorter: the chunks end after the last step.
        max_epochs=math.ceil(module.steps / per_epoch) - module.done // per_epoch,
        limit_val_batches=1.0 if module.datamodule.holds_out else 0,
        # Logging, progress and checkpoints are ours.
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[_RenewSignals(module.stop_signals)],
    )


class _RenewSignals(Callback):
    """Reinstall our SIGTERM handler, which Lightning replaces before the start of each loop.

    Its own would broadcast to the other ranks in the middle of an optimizer step.
    """

    def __init__(self, stop_signals: StopSignals) -> None:
        self.stop_signals = stop_signals

    def on_train_start(self, *_: Any) -> None:  # on_fit_start comes before Lightning's handler
        self.stop_signals.renew()

    def on_validation_start(self, *_: Any) -> None:
        self.stop_signals.renew()

    def on_test_start(self, *_: Any) -> None:
        self.stop_signals.renew()


def _silence_lightning() -> None:
    """Suppress warnings and messages that concern nobody who reads the log of a run."""
    # Deprecated names that Lightning imports from torch.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    # torch.compile reads the gradients of tensors that are not leaves.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    # Lightning suggests srun wherever it is installed; our scheduler starts the processes.
    warnings.filterwarnings("ignore", message=".*srun. command is available")
    # Lists of devices, and advertisements of other packages.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)


def _choose_strategy(plan: Plan) -> Strategy | str:
    if plan.devices == 1:
        return "auto"
    # We average buffers over all devices, where DDP would broadcast those of rank 0. Newer versions
    # of torch deprecate the option.
    warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated")
    return DDPStrategy(broadcast_buffers=False, timeout=RANK_TIMEOUT)
