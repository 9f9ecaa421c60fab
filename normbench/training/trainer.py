"""From a cell to a trained and tested network, and what was found on the way."""

import logging
import math
import os
import platform
import resource
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch import nn

from normbench.config.build import arguments, build
from normbench.config.cells import Cell
from normbench.config.plan import Plan, layouts, own_cores
from normbench.data.dataset import Dataset
from normbench.data.reading import opened
from normbench.errors import Impossible
from normbench.measurements.training_probes import SaveRecords, TrainingProbes
from normbench.models.coverage import coverage
from normbench.models.drop import set_rescale
from normbench.models.layer_types import is_batch_norm
from normbench.models.profile import parameters_and_macs
from normbench.norms.base.layer import NormAct, Normalizer
from normbench.norms.impl import Impl
from normbench.norms.ratios import mean_ratios
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.datamodule import Loaders, Order, Schedule
from normbench.training.lightning_module import Diverged, Task, ignored
from normbench.training.metrics import Record
from normbench.training.recipe import Recipe
from normbench.training.regularization import Regularization

# A process whose partners have gone silent, and nobody ended it, ends by itself.
SILENCE = timedelta(minutes=10)

# Larger chunks gain nothing: augmentation then costs far less than the steps themselves.
CHUNK_IMAGES = 2000  # about as many are moved and augmented at once when trainer.chunk is null
#: Multiply-adds of all forward passes from which compiling is worth its minute: of a training of
#: hours on a CPU, of a quarter of an hour on a GPU.
WORTH_COMPILING = {"cpu": 1e14, "cuda": 1e15}
FEW_IMAGES = 100_000  # a training of fewer is never compiled unasked, whatever its network
CHUNK_VALUES = 2**26  # and about as many of their values, if they are large


def train(
    cell: Cell,
    curve: Callable[[Record], None],
    progress: Callable[[int, int, float], None],
    *,
    plan: Plan | None = None,
    checkpoints: Checkpoints | None = None,
    state: State | None = None,
    save_probe: SaveRecords | None = None,
) -> dict[str, Any]:
    """Train and test the network of `cell`; fields of its row.

    Args:
        cell: what to train.
        curve: takes each record of the training curve.
        progress: takes steps done, steps in all and the latest loss.
        plan: how its workers are laid; None: all of them in one forward pass. One of several
            devices is trained by as many processes, each with its rank in the environment.
        checkpoints: where states of the training go.
        state: that it goes on from.
        save_probe: takes kind, records and epoch of each measurement of the probes.
    """
    task, loaders = prepare(
        cell,
        curve,
        progress,
        plan=plan,
        checkpoints=checkpoints,
        state=state,
        save_probe=save_probe,
    )
    known = facts(cell, loaders.data) | {"plan": str(task.plan), "loader": loaders.means}
    return known | _fit_and_test(cell, task, loaders) | {"resumed": task.resumed}


def prepare(
    cell: Cell,
    curve: Callable[[Record], None] = ignored,
    progress: Callable[[int, int, float], None] = ignored,
    *,
    plan: Plan | None = None,
    checkpoints: Checkpoints | None = None,
    state: State | None = None,
    save_probe: SaveRecords | None = None,
    like: Loaders | None = None,
) -> tuple[Task, Loaders]:
    """Network and images of `cell`, ready for a trainer; arguments as of `train`.

    `like` has the images of another seed, which are the same.
    """
    torch.set_num_threads(cell.trainer.threads)
    recipe: Recipe = build("recipe", cell.recipe.options)
    loaders = loaders_of(cell, plan, like)
    loaders.warm_up()
    seed_everything(cell.seed, verbose=False)  # the weights; all else is drawn by `draws`
    data, reg = loaders.data, loaders.reg
    network = network_of(cell, data).to(dtype_of(cell))
    steps = loaders.schedule.steps
    task = Task(
        network,
        recipe,
        reg,
        loaders.order.plan,
        classes=data.classes,
        global_batch=cell.global_batch,
        steps=steps,
        steps_per_epoch=loaders.order.steps_per_epoch,
        log_every=cell.trainer.log_every,
        channels_last=cell.trainer.channels_last,
        impl=implementation(cell, steps, data),
        graphs=cell.trainer.graphs,
        curve=curve,
        progress=lambda done, loss: progress(done, steps, loss),
        checkpoints=checkpoints,
        state=state,
        probes=training_probes(cell, save_probe),
        probe_images=cell.probe.images,
    )
    return task, loaders


def implementation(cell: Cell, steps: int, data: Dataset) -> Impl:
    """How layers are computed in a training of `steps`.

    What is left to us follows from the size of the training and from the kind of the device, and
    from no clock. Kernels of our own are never chosen by themselves.
    """
    if cell.trainer.impl != "auto":
        return cell.trainer.impl
    images = steps * cell.global_batch
    if images < FEW_IMAGES or lacks_compiler(cell):
        return "eager"
    with torch.device("meta"):
        _, macs = parameters_and_macs(network_of(cell, data), data.trained_image)
    worth = WORTH_COMPILING["cuda" if on_gpu(cell) else "cpu"]
    return "compile" if macs * images >= worth else "eager"


def lacks_compiler(cell: Cell) -> str:
    """The compiler that torch.compile needs, C++ for a CPU and C for a GPU, if it is not there."""
    variable, usual = ("CC", ("gcc", "clang")) if on_gpu(cell) else ("CXX", ("g++",))
    names = (own,) if (own := os.environ.get(variable)) else usual
    return "" if any(map(shutil.which, names)) else f"{names[0]} ({variable} names another)"


def training_probes(cell: Cell, save: SaveRecords | None) -> TrainingProbes | None:
    """Return the probes that measure the network of `cell` while it trains."""
    if not cell.probe.kinds:
        return None
    return TrainingProbes(cell.probe.kinds, cell.probe.every, cell.title, save or (lambda *_: None))


def network_of(cell: Cell, data: Dataset) -> nn.Module:
    """The network of `cell`, on the device that torch makes tensors on.

    Raises:
        Impossible: its level of regularization asks for what the model has not.
    """
    reg: Regularization = build("reg", cell.reg.options)
    known = arguments("model", cell.model.options)
    if lacking := sorted(reg.drops.keys() - known):
        raise Impossible(f"reg={cell.reg.name} sets {lacking[0]}, which this model has not")
    network: nn.Module = build(
        "model",
        {**cell.model.options, **reg.drops},
        norm=build("norm", cell.norm.options),
        num_classes=data.classes,
        in_chans=data.image[0],
    )
    if reg.rescale is not None:
        set_rescale(network, reg.rescale)
    return network


def dataset_of(cell: Cell) -> Dataset:
    """The data set of `cell`, its training images as large as the recipe asks.

    Raises:
        BadInput: its images are smaller.
    """
    data: Dataset = build("data", cell.data.options)
    recipe: Recipe = build("recipe", cell.recipe.options)
    return data.at(recipe.crop)


def loaders_of(cell: Cell, plan: Plan | None = None, like: Loaders | None = None) -> Loaders:
    """The images of `cell` under `plan`; None: all workers in one forward pass.

    `like` has the same images in another order.
    """
    data = like.data if like else dataset_of(cell)
    recipe: Recipe = build("recipe", cell.recipe.options)
    reg: Regularization = build("reg", cell.reg.options)
    plan = plan or layouts(cell.workers)[0]
    found = (like.splits, like.means) if like else None
    splits, means = found or opened(data, cell.loader, distorts=bool(reg.distortion))
    images = len(splits.train.labels)
    order = Order(images, cell.global_batch, plan, cell.seed)
    values = math.prod(data.trained_image)
    together = min(CHUNK_IMAGES, CHUNK_VALUES // values)
    chunk = cell.trainer.chunk or max(1, round(together / cell.global_batch))
    schedule = Schedule(recipe.steps(images, cell.global_batch), chunk, cell.trainer.log_every)
    device = rank() if plan.devices > 1 else 0
    processes = 0 if means == "memory" and not reg.distortion else readers_of(cell)
    return Loaders(data, splits, order, schedule, reg, device, processes, means)


def readers_of(cell: Cell) -> int:
    """Processes or threads that read images beside a process of a run."""
    # Of runs beside each other each is told its share (normbench.execution.scheduler); this one is
    # alone.
    return own_cores() if cell.trainer.readers is None else cell.trainer.readers


def on_gpu(cell: Cell) -> bool:
    """Where the cell is trained; whoever left the choice open gets a GPU if there is one."""
    asked = cell.trainer.accelerator
    return asked == "gpu" or (asked == "auto" and torch.cuda.is_available())


def exact() -> None:
    """Convolutions of fp32 on a GPU are that, and not of 10 bits as torch has them.

    What is deterministic there need not be filled first: nothing is read before it is written.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def forward_context(cell: Cell, device: torch.device) -> AbstractContextManager[object]:
    """What a forward pass of `cell` happens in beside its trainer: autocast where it is mixed."""
    dtypes = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    if cell.precision not in dtypes:
        return nullcontext()
    return torch.autocast(device.type, dtypes[cell.precision])


def dtype_of(cell: Cell) -> torch.dtype:
    """Of the weights, and of the images."""
    return torch.float64 if cell.precision == "64-true" else torch.float32


def rank() -> int:
    """Which of the processes of a run this is."""
    return int(os.environ.get("RANK", 0))


def facts(cell: Cell, data: Dataset) -> dict[str, Any]:
    """What is known of the network without training it."""
    with torch.device("meta"):  # a network of shapes, which costs nothing to run
        network = network_of(cell, data)
    norm: Normalizer = build("norm", cell.norm.options)
    params, macs = parameters_and_macs(network, data.image)
    layers = [module for module in network.modules() if isinstance(module, NormAct)]
    return {
        "params": params,
        "macs": macs,
        "coverage": str(coverage(network, norm)),
        "groups": sorted({layer.groups for layer in layers if hasattr(layer, "groups")}),
        "batch_independent": independent(network, norm, "batch_independent"),
        "data_limits": data.limits,
    }


def independent(network: nn.Module, norm: Normalizer, of: str) -> bool:
    """Whether the normalizer, all of its layers in `network` and whatever else is there are.

    Args:
        network: with `norm` in it.
        norm: whose layers need not be of a class of ours.
        of: the declaration, batch_independent or worker_independent.
    """
    layers = [module for module in network.modules() if isinstance(module, NormAct)]
    declared = all(getattr(each, of) for each in (norm, *layers))
    return declared and not any(map(is_batch_norm, network.modules()))


def _fit_and_test(cell: Cell, task: Task, loaders: Loaders) -> dict[str, Any]:
    trainer = trainer_of(cell, task, loaders)
    started = time.monotonic()
    try:
        held_out, ended = bool(len(loaders.splits.val.labels)), task.done >= task.steps
        if not ended:
            trainer.fit(task, loaders)
        if held_out and (task.recipe.recalibration or ended):
            trainer.validate(task, loaders, verbose=False)  # under the final statistics
        found = measured(task, loaders.data.classes, held_out)
        trainer.test(task, loaders, verbose=False)
        found |= tested(task)
    except Diverged as reason:
        found = {"status": "diverged", "reason": str(reason)}
    seconds = time.monotonic() - started
    return found | {"seconds": seconds, **hardware(cell, task)}


def measured(task: Task, classes: int, held_out: bool) -> dict[str, Any]:
    """What the training itself says; the validation images were last seen at its end."""
    loss, top1 = task.final_means()
    found: dict[str, Any] = {
        "status": "ok",
        "train_loss": loss,
        "train_top1": top1,
        "images_per_second": task.images_per_second,
        "sn_ratios": mean_ratios(task.evaluated),
    }
    if held_out:
        found["val_top1"] = task.validation.summary("val")["val_top1"]
    # A dead network still learns how often each class occurs, a hair below ln(classes).
    if loss >= 0.99 * math.log(classes):
        reason = f"the final training loss of {loss:.3f} is not 1 % below ln({classes})"
        found |= {"status": "diverged", "reason": reason}
    return found


def tested(task: Task) -> dict[str, Any]:
    """What the test images say; running statistics can be broken although every loss was finite."""
    found: dict[str, Any] = dict(task.testing.summary("test"))
    if not math.isfinite(found["test_loss"]):
        reason = f"the loss on the test images was {found['test_loss']}"
        found |= {"test_loss": None, "status": "diverged", "reason": reason}
    return found


def trainer_of(cell: Cell, task: Task, loaders: Loaders) -> Trainer:
    """Lightning's trainer for what is left of the training."""
    # torch deprecates what Lightning's own import of it touches; not ours to mend.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    # torch's compiler looks at gradients that it knows are none, and says so.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    # Lightning would like to be started by srun wherever there is one; our processes are ours.
    warnings.filterwarnings("ignore", message=".*srun. command is available")
    # And it tells each training what devices there are, and what else one might install.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    gpu = on_gpu(cell)
    exact()
    hosts = int(os.environ.get("GROUP_WORLD_SIZE", 1)) if task.plan.devices > 1 else 1
    of_task = task.steps_per_epoch
    return Trainer(
        accelerator="cuda" if gpu else "cpu",
        devices=task.plan.devices // hosts,
        num_nodes=hosts,
        strategy=_strategy(task.plan),
        # Said, and not found out: in a job of Slurm it would take each run for a part of the job.
        plugins=[LightningEnvironment() if task.plan.devices == 1 else TorchElasticEnvironment()],
        deterministic="warn" if gpu else None,
        precision=cell.precision,  # type: ignore[arg-type]
        # What is left of them; the last may be shorter: the loaders stop after the last step.
        max_epochs=math.ceil(task.steps / of_task) - task.done // of_task,
        limit_val_batches=1.0 if len(loaders.splits.val.labels) else 0,
        # What Lightning would log, draw, save or try out is done elsewhere or by nobody.
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _strategy(plan: Plan) -> Strategy | str:
    """One process a device."""
    if plan.devices == 1:
        return "auto"
    # Buffers are shared by us, as the mean over all devices; DDP would take the first one's. Newer
    # versions of torch have another word for it as well, and say so.
    warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated")
    return DDPStrategy(broadcast_buffers=False, timeout=SILENCE)


def hardware(cell: Cell, task: Task) -> dict[str, Any]:
    """The devices' name, the memory that one has and the most that was in use."""
    options = {
        "channels_last": cell.trainer.channels_last, "impl": task.impl, "cuda_graphs": task.graphs,
    }  # fmt: skip
    if on_gpu(cell):
        device = torch.cuda.get_device_properties(0)
        return {
            **options,
            "devices": f"{task.plan.devices} x {device.name}",
            "device_memory": device.total_memory,
            "peak_memory": torch.cuda.max_memory_allocated(),
        }
    return {
        **options,
        "devices": f"{task.plan.devices} x cpu ({platform.machine()})",
        "device_memory": host_memory(),
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def host_memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
