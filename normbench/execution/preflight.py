"""What can be known before any training: whether each cell's data is there and its network runs.

Runs once, in a process of its own, before the first run starts. Networks are built on the meta
device, where shapes are computed and no numbers.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from normbench.config.build import build
from normbench.config.cells import Accelerator, Cell, Choice
from normbench.data.reading import opened
from normbench.errors import BadInput, Impossible, one_line
from normbench.execution.job import PreflightResults
from normbench.models.coverage import coverage
from normbench.models.drop import drop_layers
from normbench.models.layer_types import is_batch_norm
from normbench.models.profile import dry_run
from normbench.norms import kernels
from normbench.norms.base.layer import NormAct
from normbench.norms.renorm import renorm_layers
from normbench.norms.workers import set_workers
from normbench.training import seed_stacking
from normbench.training.recipe import Recipe
from normbench.training.regularization import Regularization
from normbench.training.trainer import (
    dataset_of,
    host_memory,
    independent,
    lacks_compiler,
    network_of,
    on_gpu,
)

Asked = tuple[list[Cell], Path, bool, int | None, bool]


def check(request: Asked, _tell: Callable[[Any], None]) -> PreflightResults:
    """Look at every cell.

    The request is the cells, the file that takes what is printed, whether this machine is the one
    that trains them, how many of a run's processes it has (None: all of them), and whether seeds
    are to be trained together.

    Raises:
        BadInput: an option, a file or a size that no run can use.
    """
    cells, log, here, locals_, side_by_side = request
    gpus = torch.cuda.device_count()
    found: Accelerator = "gpu" if gpus else "cpu"
    # Seeds, and often batches, differ where data and networks do not: look at each once.
    images: dict[str, int] = {}
    looks: dict[str, Look] = {}
    reached: dict[str, str] = {}
    for cell in cells:
        if here:
            _require_device(cell, gpus, locals_ or cell.trainer.devices)
            require_compiler(cell)
        reg: Regularization = build("reg", cell.reg.options)
        recipe: Recipe = build("recipe", cell.recipe.options)
        data, network = _key(cell.data, cell.loader, bool(reg.distortion)), _network(cell)
        if data not in images:
            splits, _ = opened(
                dataset_of(cell), cell.loader, distorts=bool(reg.distortion), load=False
            )
            images[data] = len(splits.train.labels)
        require_batch(cell, recipe)
        require_images(cell, images[data])
        _require_epochs(cell, recipe, images[data])
        if network not in looks:
            looks[network] = _look(cell, log, side_by_side=side_by_side)
            if covered := looks[network].coverage:
                reached[f"{short(cell.norm)} in {short(cell.model)}"] = covered
        _require_plan(cell, looks[network])
        if here:
            require_graphs(cell, looks[network])
    own = {cell.id: looks[_network(cell)] for cell in cells}
    return PreflightResults(
        {id_: look.reason for id_, look in own.items()},
        {id_ for id_, look in own.items() if look.shared},
        {id_ for id_, look in own.items() if look.whole_step or look.foreign},
        {cell.id: seed_stacking.hindrance(cell) or own[cell.id].unstackable for cell in cells},
        reached, found, gpus, _memory(found if any(_wants_gpu(each) for each in cells) else "cpu"),
    )  # fmt: skip


@dataclass(frozen=True)
class Look:
    """What a look at one network has shown.

    Args:
        reason: why a forward pass of training cannot work, or nothing.
        coverage: of a swap.
        shared: as in `PreflightResults`.
        whole_step: all images of a step must share a forward pass.
        foreign: it has batch normalizations that know no workers.
        unfinished: why it cannot be trained from the start, or nothing.
        changes: steps compute what Python says anew in each of them.
        unstackable: why seeds of it cannot be trained together, if anybody wants to know.
    """

    reason: str = ""
    coverage: str = ""
    shared: bool = False
    whole_step: bool = False
    foreign: bool = False
    unfinished: str = ""
    changes: bool = False
    unstackable: str = ""


def short(choice: Choice) -> str:
    """Its name, with the options that are not the usual ones."""
    changed = [f"{key}={value}" for key, value in choice.changed.items()]
    return " ".join([choice.name, *changed])


def _key(*parts: object) -> str:
    return repr(parts)


def _network(cell: Cell) -> str:
    """The cells of one such key have networks that work or do not work together."""
    reg: Regularization = build("reg", cell.reg.options)
    crop = cell.recipe.options.get("crop")
    known = (cell.norm, cell.model, cell.data, cell.batch, cell.workers, crop)
    return _key(*known, cell.reg.name, sorted(reg.drops.items()))


def _look(cell: Cell, log: Path, *, side_by_side: bool) -> Look:
    """Build the network and run a forward pass of training, of shapes alone.

    All workers take part: what is synchronized works where a worker alone would not.
    """
    data = dataset_of(cell)
    try:
        with torch.device("meta"):  # shapes are computed and no numbers
            network = network_of(cell, data)
            set_workers(network, cell.workers)
            dry_run(network, cell.global_batch, data.trained_image)
    except Impossible as reason:
        return Look(str(reason))
    except BadInput:
        raise
    except Exception as error:  # code of the user's own can fail in any way
        traceback.print_exc()
        raise BadInput(
            f"{cell.title}: its network cannot be built and run ({one_line(error)}); the trace is "
            f"in {log}"
        ) from error
    swapped = isinstance(network, fx.GraphModule)
    norm = build("norm", cell.norm.options)
    covered = str(coverage(network, norm)) if swapped else ""
    layers = [module for module in network.modules() if isinstance(module, NormAct)]
    return Look(
        coverage=covered,
        shared=independent(network, norm, "worker_independent"),
        whole_step=any(layer.whole_step for layer in layers),
        foreign=any(map(is_batch_norm, network.modules())),
        unfinished=next((layer.unfinished for layer in layers if layer.unfinished), ""),
        changes=bool(renorm_layers(network) or drop_layers(network)),
        unstackable=seed_stacking.unstackable(network, cell.global_batch, data.trained_image)
        if side_by_side
        else "",
    )


def _require_plan(cell: Cell, look: Look) -> None:
    """The hardware and the beginning that were asked for are possible with the network."""
    trainer = cell.trainer
    if look.whole_step and trainer.layouts(cell.workers)[0].accumulation > 1:
        raise BadInput(
            f"trainer.per_forward={trainer.per_forward}: {cell.title} has synchronized statistics, "
            "those of all images of an optimizer step, which therefore share one forward pass; "
            "trainer.per_forward=null and more trainer.devices work"
        )
    plan = trainer.layouts(cell.workers)[0]
    if look.foreign and (plan.devices > 1 or plan.accumulation > 1):
        raise BadInput(
            f"trainer.devices={trainer.devices} trainer.per_forward={trainer.per_forward}: "
            f"{cell.title} has batch normalizations of the library left, whose statistics are "
            "those of a whole forward pass; trainer.devices=1 trainer.per_forward=null works"
        )
    if look.unfinished and cell.init_from is None:
        raise BadInput(look.unfinished)


def require_compiler(cell: Cell) -> None:
    """Refuse layers that need a compiler, or a device, which is not here.

    Raises:
        BadInput: it is not.
    """
    if cell.trainer.impl == "compile" and (name := lacks_compiler(cell)):
        raise BadInput(
            f"trainer.impl=compile: torch needs a compiler, and here is no {name}; "
            "trainer.impl=eager works"
        )
    if cell.trainer.impl == "triton" and not (kernels.available() and on_gpu(cell)):
        reason = "there is no package triton" if on_gpu(cell) else "this run is for a CPU"
        raise BadInput(
            f"trainer.impl=triton: its kernels are for CUDA devices, by the package triton, and "
            f"{reason}; trainer.impl=eager works"
        )


def require_graphs(cell: Cell, look: Look) -> None:
    """Refuse to record what another process, a scale or a draw changes from step to step.

    Raises:
        BadInput: `trainer.graphs` asks for it.
    """
    devices = cell.trainer.layouts(cell.workers)[0].devices
    reasons = {
        "it needs a CUDA device, and this run is for a CPU": not on_gpu(cell),
        f"a graph is of one process, and trainer.devices={devices} are several": devices > 1,
        "precision=16-mixed scales the loss anew in each step": cell.precision == "16-mixed",
        f"in {cell.title} each step drops other paths, or has other bounds": look.changes,
    }
    reason = next((reason for reason, there in reasons.items() if there), None)
    if cell.trainer.graphs and reason is not None:
        raise BadInput(f"trainer.graphs=true: {reason}; trainer.graphs=false works")


def _wants_gpu(cell: Cell) -> bool:
    return cell.trainer.accelerator != "cpu"


def _memory(accelerator: Accelerator) -> int:
    """Bytes of the device that runs train on."""
    if accelerator == "gpu":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return host_memory()


def require_images(cell: Cell, images: int) -> None:
    if cell.global_batch > images:
        workers = images // cell.batch
        most = f"workers={workers}"
        if cell.protocol != "fixed_workers":
            most = f"global_batch={workers * cell.batch}"
        if not workers:
            most = f"batch={images}"
        raise BadInput(
            f"batch={cell.batch}: {cell.workers} workers of {cell.batch} images make a global "
            f"batch of {cell.global_batch}; data={cell.data.name} has {images} training images "
            f"(data.val={cell.data.options['val']} held out); {most} is the most"
        )


def require_batch(cell: Cell, recipe: Recipe) -> None:
    """The recipe knows a learning rate for the global batch."""
    try:
        recipe.peak(cell.global_batch)
    except ValueError as error:
        raise BadInput(f"{cell.title}: recipe={cell.recipe.name} {error}") from None


def _require_epochs(cell: Cell, recipe: Recipe, images: int) -> None:
    steps = recipe.steps(images, cell.global_batch)
    whole = steps // (images // cell.global_batch)
    if late := [epoch for epoch in cell.checkpoint.epochs if epoch > whole]:
        raise BadInput(
            f"checkpoint.epochs={list(cell.checkpoint.epochs)}: {cell.title} ends after {steps} "
            f"steps, {whole} whole epochs, and never is after epoch {late[0]}"
        )


def _require_device(cell: Cell, gpus: int, needed: int) -> None:
    if cell.trainer.accelerator == "gpu" and not gpus:
        raise BadInput("trainer=gpu: no CUDA device is visible; trainer=cpu or trainer=auto works")
    if gpus and cell.trainer.accelerator != "cpu" and needed > gpus:
        raise BadInput(
            f"trainer.devices={cell.trainer.devices}: {needed} processes on this machine see "
            f"{gpus} CUDA devices; no more processes than devices work, each of them seeing all"
        )
    on_cpu = cell.trainer.accelerator == "cpu" or not gpus
    if cell.precision == "16-mixed" and on_cpu:
        raise BadInput("precision=16-mixed needs a CUDA device; on the CPU bf16-mixed works")
