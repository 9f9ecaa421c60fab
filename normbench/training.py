"""From a cell to a trained and tested network, and what was found on the way."""

import math
import os
import platform
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from pytorch_lightning import Trainer, seed_everything
from torch import nn

from normbench import catalog
from normbench.cells import Cell
from normbench.data.dataset import Dataset
from normbench.loaders import Loaders, Order, Schedule
from normbench.models.cost import count
from normbench.models.coverage import coverage
from normbench.models.kinds import is_batch_norm
from normbench.norms.layer import NormAct
from normbench.plan import automatic
from normbench.recipe import Recipe
from normbench.task import Diverged, Record, Task

# Larger chunks gain nothing: augmentation then costs far less than the steps themselves.
CHUNK_IMAGES = 2000  # about as many are moved and augmented at once when trainer.chunk is null


def train(
    cell: Cell, curve: Callable[[Record], None], progress: Callable[[int, int, float], None]
) -> dict[str, Any]:
    """Train and test the network of `cell`; fields of its row.

    Args:
        cell: what to train.
        curve: takes each record of the training curve.
        progress: takes steps done, steps in all and the latest loss.
    """
    torch.set_num_threads(cell.trainer.threads)
    seed_everything(cell.seed, verbose=False)  # the weights; all else is drawn by `draws`
    data: Dataset = catalog.build("data", cell.data.options)
    recipe: Recipe = catalog.build("recipe", cell.recipe.options)
    network = network_of(cell, data)
    loaders = _loaders(cell, data, recipe)
    steps = loaders.schedule.steps
    task = Task(
        network,
        recipe,
        catalog.build("reg", cell.reg.options),
        loaders.order.plan,
        classes=data.classes,
        global_batch=cell.global_batch,
        steps=steps,
        steps_per_epoch=loaders.order.steps_per_epoch,
        log_every=cell.trainer.log_every,
        curve=curve,
        progress=lambda done, loss: progress(done, steps, loss),
    )
    return (
        _facts(cell, data) | {"plan": str(loaders.order.plan)} | _fit_and_test(cell, task, loaders)
    )


def network_of(cell: Cell, data: Dataset) -> nn.Module:
    """The network of `cell`, on the device that torch makes tensors on."""
    network: nn.Module = catalog.build(
        "model",
        cell.model.options,
        norm=catalog.build("norm", cell.norm.options),
        num_classes=data.classes,
        in_chans=data.image[0],
    )
    return network


def _loaders(cell: Cell, data: Dataset, recipe: Recipe) -> Loaders:
    splits = data.splits()
    images = len(splits.train.labels)
    order = Order(images, cell.global_batch, automatic(cell.workers), cell.seed)
    chunk = cell.trainer.chunk or max(1, round(CHUNK_IMAGES / cell.global_batch))
    steps = recipe.steps(images, cell.global_batch)
    return Loaders(data, splits, order, Schedule(steps, chunk, cell.trainer.log_every))


def _facts(cell: Cell, data: Dataset) -> dict[str, Any]:
    """What is known of the network without training it."""
    with torch.device("meta"):  # a network of shapes, which costs nothing to run
        network = network_of(cell, data)
    params, macs = count(network, data.image)
    layers = [module for module in network.modules() if isinstance(module, NormAct)]
    return {
        "params": params,
        "macs": macs,
        "coverage": str(coverage(network, catalog.build("norm", cell.norm.options))),
        "groups": sorted({layer.groups for layer in layers if hasattr(layer, "groups")}),
        "batch_independent": all(layer.batch_independent for layer in layers)
        and not any(map(is_batch_norm, network.modules())),
        "limits": data.limits,
    }


def _fit_and_test(cell: Cell, task: Task, loaders: Loaders) -> dict[str, Any]:
    trainer = _trainer(cell, math.ceil(task.steps / task.steps_per_epoch), loaders)
    started = time.monotonic()
    try:
        trainer.fit(task, loaders)
        if task.recipe.recalibration and task.validation.images:
            trainer.validate(task, loaders, verbose=False)  # now under the new statistics
        found = _measured(task, loaders.data.classes)
        trainer.test(task, loaders, verbose=False)
        found |= _tested(task)
    except Diverged as reason:
        found = {"status": "diverged", "reason": str(reason)}
    except torch.OutOfMemoryError as reason:
        found = {"status": "oom", "reason": str(reason).partition("\n")[0]}
    seconds = time.monotonic() - started
    return found | {"seconds": seconds, **_hardware(cell)}


def _measured(task: Task, classes: int) -> dict[str, Any]:
    """What the training itself says; the validation images were last seen at its end."""
    loss, top1 = task.final_means()
    found: dict[str, Any] = {
        "status": "ok",
        "train_loss": loss,
        "train_top1": top1,
        "images_per_second": task.done * task.global_batch / task.training_seconds,
    }
    if task.validation.images:
        found["val_top1"] = task.validation.summary("val")["val_top1"]
    # A dead network still learns how often each class occurs, a hair below ln(classes).
    if loss >= 0.99 * math.log(classes):
        reason = f"the final training loss of {loss:.3f} is not 1 % below ln({classes})"
        found |= {"status": "diverged", "reason": reason}
    return found


def _tested(task: Task) -> dict[str, Any]:
    """What the test images say; running statistics can be broken although every loss was finite."""
    found: dict[str, Any] = dict(task.testing.summary("test"))
    if not math.isfinite(found["test_loss"]):
        reason = f"the loss on the test images was {found['test_loss']}"
        found |= {"test_loss": None, "status": "diverged", "reason": reason}
    return found


def _trainer(cell: Cell, epochs: int, loaders: Loaders) -> Trainer:
    # torch deprecates what Lightning's own import of it touches; not ours to mend.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    on_gpu = cell.trainer.accelerator == "gpu"
    torch.backends.cudnn.allow_tf32 = False  # torch's default rounds fp32 convolutions to 10 bits
    return Trainer(
        accelerator="cuda" if on_gpu else "cpu",
        devices=1,
        deterministic="warn" if on_gpu else None,
        precision=cell.precision,  # type: ignore[arg-type]
        max_epochs=epochs,  # the last may be shorter: the loaders stop after the last step
        limit_val_batches=1.0 if len(loaders.splits.val.labels) else 0,
        # What Lightning would log, draw, save or try out is done elsewhere or by nobody.
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _hardware(cell: Cell) -> dict[str, Any]:
    """The device's name, the memory that it has and the most that was in use."""
    if cell.trainer.accelerator == "gpu":
        device = torch.cuda.get_device_properties(0)
        return {
            "devices": f"1 x {device.name}",
            "memory": device.total_memory,
            "peak_memory": torch.cuda.max_memory_allocated(),
        }
    return {
        "devices": f"1 x cpu ({platform.machine()})",
        "memory": host_memory(),
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def host_memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
