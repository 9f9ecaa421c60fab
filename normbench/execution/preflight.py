"""Preflight: refuse what cannot work before the first run starts.

Runs once, in a process of its own: it looks for the data and the devices of every cell, and runs a
forward pass of its network on the meta device, where shapes are computed and no numbers.
"""

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from normbench.config.cells import Accelerator, Cell, Choice
from normbench.data.reading import open_splits
from normbench.errors import BadInput, Impossible, one_line
from normbench.execution.job import PreflightRequest, PreflightResults
from normbench.models.network_info import NetworkInfo
from normbench.norms import kernels
from normbench.norms.workers import set_workers
from normbench.training.experiment import Experiment
from normbench.training.hardware import host_memory, missing_compiler, uses_gpu
from normbench.training.recipe import Recipe
from normbench.training.seed_stacking import explain_unstackable_cell
from normbench.training.stacked_networks import explain_unstackable_network


class NetworkVerdict(NamedTuple):
    """Why a network cannot be trained, or "", and its properties if it can."""

    impossible: str
    info: NetworkInfo | None = None


class Networks:
    """The networks of many cells, each built once on the meta device.

    Args:
        log: file that receives tracebacks, for messages; None: there is none.
    """

    def __init__(self, log: Path | None = None) -> None:
        self.log = log
        self.infos: dict[str, NetworkInfo] = {}

    def inspect(self, experiment: Experiment) -> NetworkInfo:
        """Build the network of an experiment and run a forward pass of training on shapes.

        The images of all workers take part: synchronized statistics work where those of a single
        worker would not.

        Raises:
            Impossible: the network cannot work with such images or so few of them.
            BadInput: an option is wrong, or the code of the network fails.
        """
        cell = experiment.cell
        key = repr((cell.norm, cell.model, cell.data, cell.reg, cell.recipe.options.get("crop")))
        try:
            if key not in self.infos:
                self.infos[key] = experiment.info
            info = self.infos[key]
            with torch.device("meta"):  # code of a user's may create tensors
                info.try_training(cell.workers, cell.global_batch)
        except (BadInput, Impossible):
            raise
        except Exception as error:  # code of a user's own can fail in any way
            if self.log:
                traceback.print_exc()
            trace = f"; the traceback is in {self.log}" if self.log else ""
            raise BadInput(
                f"{cell.title}: its network cannot be built and run ({one_line(error)}){trace}"
            ) from error
        return info


def check(request: PreflightRequest, _tell: Callable[[Any], None]) -> PreflightResults:
    """Check every cell.

    Raises:
        BadInput: an option, a file or a size that no run can use.
    """
    checks = _Checks(request)
    keys = {cell.id: repr(replace(cell, seed=0)) for cell in request.cells}
    verdicts: dict[str, NetworkVerdict] = {}
    unstackable: dict[str, str] = {}
    for cell in request.cells:
        key = keys[cell.id]
        if key not in verdicts:  # seeds of a cell need one check
            experiment = Experiment(cell)
            verdicts[key] = checks.check(experiment)
            unstackable[key] = checks.explain_unstackable(experiment, verdicts[key].info)
    infos = {id_: info for id_, key in keys.items() if (info := verdicts[key].info) is not None}
    accelerator: Accelerator = "gpu" if checks.gpus else "cpu"
    wants_gpu = any(cell.trainer.accelerator != "cpu" for cell in request.cells)
    return PreflightResults(
        {id_: verdicts[key].impossible for id_, key in keys.items()},
        {id_ for id_, info in infos.items() if info.worker_independent},
        {id_ for id_, info in infos.items() if info.whole_step or info.has_library_batch_norm},
        {id_: unstackable[key] for id_, key in keys.items()},
        checks.coverage,
        accelerator,
        checks.gpus,
        _device_memory(accelerator if wants_gpu else "cpu"),
    )


class _Checks:
    """Checks of a command line's cells; what several cells share is looked at once."""

    def __init__(self, request: PreflightRequest) -> None:
        self.request = request
        self.gpus = torch.cuda.device_count()
        self.networks = Networks(request.log)
        self.train_images: dict[str, int] = {}  # by data set
        self.verdicts: dict[str, NetworkVerdict] = {}  # by network and size of a step
        self.unstackable: dict[str, str] = {}
        self.coverage: dict[str, str] = {}  # by normalizer and library model

    def check(self, experiment: Experiment) -> NetworkVerdict:
        """Check one cell; return the verdict on its network.

        Raises:
            BadInput: an option, a file or a size that no run can use.
        """
        cell, recipe = experiment.cell, experiment.recipe
        if self.request.on_this_machine:
            _require_device(cell, self.gpus, self.request.processes or cell.trainer.devices)
            require_compiler(cell)
        images = self._count_images(experiment)
        require_learning_rate(cell, recipe)
        require_images(cell, images)
        _require_epochs(cell, recipe, images)
        verdict = self._inspect(experiment)
        if verdict.info is not None:
            _require_plan(cell, verdict.info)
            if self.request.on_this_machine:
                require_cuda_graph(cell, changes_every_step=verdict.info.changes_every_step)
        return verdict

    def explain_unstackable(self, experiment: Experiment, info: NetworkInfo | None) -> str:
        """Return why seeds of the cell cannot be stacked, or ""."""
        reason = explain_unstackable_cell(experiment.cell)
        if reason or info is None or not self.request.stack_seeds:
            return reason
        key = _step_key(experiment)
        if key not in self.unstackable:
            set_workers(info.network, experiment.cell.workers)  # it may serve other batches, too
            self.unstackable[key] = explain_unstackable_network(
                info.network, experiment.cell.global_batch, info.train_shape
            )
        return self.unstackable[key]

    def _count_images(self, experiment: Experiment) -> int:
        cell, distorts = experiment.cell, bool(experiment.reg.policies)
        key = repr((cell.data, cell.loader, distorts))
        if key not in self.train_images:
            splits, _ = open_splits(experiment.data, cell.loader, policies=distorts, load=False)
            self.train_images[key] = len(splits.train.labels)
        return self.train_images[key]

    def _inspect(self, experiment: Experiment) -> NetworkVerdict:
        key = _step_key(experiment)
        if key not in self.verdicts:
            try:
                info = self.networks.inspect(experiment)
            except Impossible as reason:
                self.verdicts[key] = NetworkVerdict(str(reason))
            else:
                self.verdicts[key] = NetworkVerdict("", info)
                if info.is_library_model:
                    pair = describe_pair(experiment.cell)
                    self.coverage[pair] = str(info.coverage)
        return self.verdicts[key]


def _step_key(experiment: Experiment) -> str:
    """Return a key of the network and the images of a step."""
    cell = experiment.cell
    crop = cell.recipe.options.get("crop")
    return repr((cell.norm, cell.model, cell.data, cell.reg, crop, cell.batch, cell.workers))


def describe_pair(cell: Cell) -> str:
    """Return normalizer and model with the options that differ from their yaml."""
    return f"{_describe_choice(cell.norm)} in {_describe_choice(cell.model)}"


def _describe_choice(choice: Choice) -> str:
    changed = [f"{key}={value}" for key, value in choice.changed.items()]
    return " ".join([choice.name, *changed])


def _require_plan(cell: Cell, info: NetworkInfo) -> None:
    """Refuse a plan, or a training from scratch, that the network does not allow."""
    trainer = cell.trainer
    plan = trainer.plans(cell.workers)[0]
    if info.whole_step and plan.accumulation > 1:
        raise BadInput(
            f"trainer.per_forward={trainer.per_forward}: {cell.title} has synchronized statistics, "
            "which need all images of an optimizer step in one forward pass; "
            "trainer.per_forward=null and more trainer.devices work"
        )
    if info.has_library_batch_norm and (plan.devices > 1 or plan.accumulation > 1):
        raise BadInput(
            f"trainer.devices={trainer.devices} trainer.per_forward={trainer.per_forward}: "
            f"{cell.title} keeps batch normalizations of the library, which compute statistics of "
            "a whole forward pass; trainer.devices=1 trainer.per_forward=null works"
        )
    if info.requires_checkpoint and cell.init_from is None:
        raise BadInput(info.requires_checkpoint)


def require_compiler(cell: Cell) -> None:
    """Refuse layers that need a compiler or a device that is missing here.

    Raises:
        BadInput: `trainer.impl` asks for them.
    """
    if cell.trainer.impl == "compile" and (name := missing_compiler(cell)):
        raise BadInput(
            f"trainer.impl=compile: torch needs a compiler, and {name} is not installed; "
            "trainer.impl=eager works"
        )
    if cell.trainer.impl == "triton" and not (kernels.available() and uses_gpu(cell)):
        reason = "triton is not installed" if uses_gpu(cell) else "this run is for a CPU"
        raise BadInput(
            "trainer.impl=triton: the kernels need a CUDA device and the package triton, and "
            f"{reason}; trainer.impl=eager works"
        )


def require_cuda_graph(cell: Cell, *, changes_every_step: bool) -> None:
    """Refuse CUDA graphs of steps that differ: a graph repeats what was captured in the first one.

    Raises:
        BadInput: `trainer.cuda_graph` asks for them.
    """
    devices = cell.trainer.plans(cell.workers)[0].devices
    reasons = {
        "it needs a CUDA device, and this run is for a CPU": not uses_gpu(cell),
        f"a graph belongs to one process, and trainer.devices={devices} are several": devices > 1,
        "precision=16-mixed changes the loss scale from step to step": cell.precision == "16-mixed",
        f"{cell.title} drops other paths, or has other bounds, in each step": changes_every_step,
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if cell.trainer.cuda_graph and reason is not None:
        raise BadInput(f"trainer.cuda_graph=true: {reason}; trainer.cuda_graph=false works")


def _device_memory(accelerator: Accelerator) -> int:
    """Return the bytes of the device on which runs train."""
    if accelerator == "gpu":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return host_memory()


def require_images(cell: Cell, images: int) -> None:
    """Refuse a global batch that is larger than the training split of `images`."""
    if cell.global_batch > images:
        workers = images // cell.batch
        largest = f"workers={workers}"
        if cell.protocol != "fixed_workers":
            largest = f"global_batch={workers * cell.batch}"
        if not workers:
            largest = f"batch={images}"
        raise BadInput(
            f"batch={cell.batch}: {cell.workers} workers of {cell.batch} images make a global "
            f"batch of {cell.global_batch}; data={cell.data.name} has {images} training images "
            f"(data.val={cell.data.options['val']} held out); at most {largest} works"
        )


def require_learning_rate(cell: Cell, recipe: Recipe) -> None:
    """Refuse a global batch for which the recipe has no learning rate."""
    try:
        recipe.peak_lr(cell.global_batch)
    except ValueError as error:
        raise BadInput(f"{cell.title}: recipe={cell.recipe.name} {error}") from None


def _require_epochs(cell: Cell, recipe: Recipe, images: int) -> None:
    """Refuse checkpoints of epochs after the end of the training."""
    steps = recipe.count_steps(images, cell.global_batch)
    complete = steps // (images // cell.global_batch)
    if late := [epoch for epoch in cell.checkpoint.epochs if epoch > complete]:
        raise BadInput(
            f"checkpoint.epochs={list(cell.checkpoint.epochs)}: {cell.title} ends after {steps} "
            f"steps, which are {complete} complete epochs, and never reaches the end of epoch "
            f"{late[0]}"
        )


def _require_device(cell: Cell, gpus: int, needed: int) -> None:
    """Refuse a device that this machine does not have."""
    if cell.trainer.accelerator == "gpu" and not gpus:
        raise BadInput("trainer=gpu: no CUDA device is visible; trainer=cpu or trainer=auto works")
    if gpus and cell.trainer.accelerator != "cpu" and needed > gpus:
        raise BadInput(
            f"trainer.devices={cell.trainer.devices}: {needed} processes of a run on this machine "
            f"need as many CUDA devices, and {gpus} are visible; use at most "
            f"trainer.devices={gpus}"
        )
    on_cpu = cell.trainer.accelerator == "cpu" or not gpus
    if cell.precision == "16-mixed" and on_cpu:
        raise BadInput("precision=16-mixed needs a CUDA device; on the CPU bf16-mixed works")
