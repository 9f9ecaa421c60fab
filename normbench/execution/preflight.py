"""Preflight: refuse what cannot work before the first run starts.

Runs once, in a process of its own: it looks for the data and the devices of every cell, and runs a
forward pass of its network on the meta device, where shapes are computed and no numbers.
"""

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normbench.config.cells import Accelerator, Cell, Choice
from normbench.data.reading import open_splits
from normbench.errors import BadInput, DamagedFile, Impossible, one_line
from normbench.execution.job import CellCheck, PreflightRequest, PreflightResults
from normbench.models.network_info import NetworkInfo
from normbench.norms import kernels
from normbench.norms.inference import weighable_layers
from normbench.norms.workers import set_workers
from normbench.training.checkpoint import begin_run, load_state, require_start
from normbench.training.experiment import Experiment
from normbench.training.hardware import host_memory, missing_compiler, uses_gpu
from normbench.training.parameter_groups import list_parameters
from normbench.training.recipe import Recipe
from normbench.training.seed_stacking import explain_unstackable_cell
from normbench.training.stacked_networks import explain_unstackable_network


class Networks:
    """The networks of many cells, each built once on the meta device.

    Args:
        log: file that receives tracebacks, for messages; None: there is none.
    """

    def __init__(self, log: Path | None = None) -> None:
        self.log = log
        self.infos: dict[str, NetworkInfo] = {}
        self.refusals: dict[str, str] = {}  # by network and images of a step; "": none

    def inspect(self, experiment: Experiment) -> NetworkInfo:
        """Build the network of an experiment and run a forward pass of training on shapes.

        The images of all workers take part: synchronized statistics work where those of a single
        worker would not.

        Raises:
            Impossible: the network cannot work with such images or so few of them.
            BadInput: an option is wrong, or the code of the network fails.
        """
        cell = experiment.cell
        key, step_key = _network_key(cell), _step_key(cell)
        if step_key not in self.refusals:
            refusal = ""
            try:
                if key not in self.infos:
                    self.infos[key] = experiment.info
                with torch.device("meta"):  # code of a user's may create tensors
                    self.infos[key].try_training(cell.workers, cell.global_batch)
            except Impossible as reason:
                refusal = str(reason)
            except BadInput:
                raise
            except Exception as error:  # code of a user's own can fail in any way
                if self.log:
                    traceback.print_exc()
                trace = f"; the traceback is in {self.log}" if self.log else ""
                raise BadInput(
                    f"{cell.title}: its network cannot be built and run ({one_line(error)}){trace}"
                ) from error
            self.refusals[step_key] = refusal
        if self.refusals[step_key]:
            raise Impossible(self.refusals[step_key])
        return self.infos[key]


def _network_key(cell: Cell) -> str:
    return repr((cell.norm, cell.model, cell.data, cell.reg, cell.recipe.options.get("crop")))


def _step_key(cell: Cell) -> str:
    """Return a key of the network and the images of a step."""
    return f"{_network_key(cell)} {cell.batch} {cell.workers}"


def check(request: PreflightRequest, _report: Callable[[Any], None]) -> PreflightResults:
    """Check every cell.

    Raises:
        BadInput: an option, a file or a size that no run can use.
    """
    checks = _Checks(request)
    accelerator: Accelerator = "gpu" if checks.gpus else "cpu"
    cells = {cell.id: checks.check(cell) for cell in request.cells}
    wants_gpu = any(cell.trainer.accelerator != "cpu" for cell in request.cells)
    memory = host_memory()
    if checks.gpus and wants_gpu:
        memory = torch.cuda.get_device_properties(0).total_memory
    return PreflightResults(cells, accelerator, checks.gpus, memory)


class _Checks:
    """Checks of a command line's cells; what several cells share is looked at once."""

    def __init__(self, request: PreflightRequest) -> None:
        self.request, self.gpus = request, torch.cuda.device_count()
        self.networks = Networks(request.log)
        self.cells: dict[str, CellCheck] = {}  # by cell with seed 0
        self.images: dict[str, tuple[int, int]] = {}  # to train on and held out, by data set
        self.unstackable: dict[str, str] = {}  # by network and images of a step

    def check(self, cell: Cell) -> CellCheck:
        """Check one cell.

        Raises:
            BadInput: an option, a file or a size that no run can use.
        """
        key = repr(replace(cell, seed=0))  # seeds of a cell need one check
        if key not in self.cells:
            self.cells[key] = self._check(Experiment(cell))
        return self.cells[key]

    def _check(self, experiment: Experiment) -> CellCheck:
        cell, recipe, request = experiment.cell, experiment.recipe, self.request
        # A node of a cluster checks by itself whether it has the devices and compilers.
        on_this_machine = not request.settings.launcher
        if on_this_machine:
            _require_device(cell, self.gpus, request.processes or cell.trainer.devices)
            require_compiler(cell)
        images, held_out = self._count_images(experiment)
        require_learning_rate(cell, recipe)
        require_images(cell, images)
        _require_epochs(cell, recipe, images)
        require_held_out(recipe, held_out)
        try:
            info = self.networks.inspect(experiment)
            require_weighable(cell, recipe, info)
        except Impossible as reason:
            return CellCheck(impossible=str(reason))
        _require_plan(cell, info)
        if cell.id in request.checkpoints:
            _require_start(cell, recipe, info.network, images, request.checkpoints[cell.id])
        if on_this_machine:
            require_cuda_graph(cell, changes_every_step=info.changes_every_step)
        return CellCheck(
            worker_independent=info.worker_independent,
            # Both compute statistics of whatever images one forward pass has.
            single_pass=info.whole_step or info.has_library_batch_norm,
            unstackable=self._explain_unstackable(experiment, info),
            coverage=f"{describe_pair(cell)}: {info.coverage}" if info.is_library_model else "",
            network_fields=info.row_fields(),
        )

    def _count_images(self, experiment: Experiment) -> tuple[int, int]:
        cell, distorts = experiment.cell, bool(experiment.reg.policies)
        key = repr((cell.data, cell.loader, distorts))
        if key not in self.images:
            splits, _ = open_splits(experiment.data, cell.loader, policies=distorts, load=False)
            self.images[key] = len(splits.train.labels), len(splits.val.labels)
        return self.images[key]

    def _explain_unstackable(self, experiment: Experiment, info: NetworkInfo) -> str:
        """Return why seeds of the cell cannot be stacked; "" if they can, or need not."""
        cell = experiment.cell
        reason = explain_unstackable_cell(cell)
        if reason or not self.request.settings.stack_seeds:
            return reason
        key = _step_key(cell)
        if key not in self.unstackable:
            set_workers(info.network, cell.workers)  # it may serve other batches, too
            self.unstackable[key] = explain_unstackable_network(
                info.network, cell.global_batch, info.train_shape
            )
        return self.unstackable[key]


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
    takes_ratios = cell.init_only is None or "ratio" in cell.init_only
    if info.requires_checkpoint and not (cell.init_from and takes_ratios):
        raise BadInput(info.requires_checkpoint)  # it cannot be trained from scratch
    roles = sorted({each.role for each in list_parameters(info.network)})
    for role in cell.init_only or ():
        if role not in roles:
            raise BadInput(
                f"init_only=[{role}]: {cell.title} has no parameter of that role; it has "
                f"{', '.join(roles)}"
            )


def _require_start(cell: Cell, recipe: Recipe, network: nn.Module, images: int, path: Path) -> None:
    """Refuse a checkpoint from which `network` cannot begin: of other shapes, or of other steps."""
    try:
        state = load_state(path, values=False)
    except DamagedFile:
        return  # the run itself reports it, and other runs are trained
    steps = recipe.count_steps(images, cell.global_batch)
    try:
        require_start(begin_run(state, cell.init_only), network, steps, images // cell.global_batch)
    except BadInput as misfit:
        start = f" (the run is {cell.start})" if cell.start else ""
        raise BadInput(f"{cell.title}: {misfit}{start}") from None


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
    except ValueError as error:  # a paper's table of learning rates lacks this global batch
        raise BadInput(f"{cell.title}: recipe={cell.recipe.name} {error}") from None


def require_held_out(recipe: Recipe, images: int) -> None:
    """Refuse to choose the weight of an image without held-out `images`."""
    if recipe.example_weight and not images:
        raise BadInput(
            f"recipe.example_weight={recipe.example_weight}: data.val=0 holds out no images to "
            "choose the weight on, and it must not be chosen on the test images; data.val=0.1 works"
        )


def require_weighable(cell: Cell, recipe: Recipe, info: NetworkInfo) -> None:
    """Refuse to weight images in a network whose layers have no running mean and variance.

    Raises:
        Impossible: no layer supports an example weight.
    """
    if recipe.example_weight and not weighable_layers(info.network):
        raise Impossible(
            f"recipe.example_weight={recipe.example_weight}: norm={cell.norm.name} has no layer "
            "with running means in which an image could count; bn, bgn or gn works, as does "
            "recipe.example_weight=null"
        )


def _require_epochs(cell: Cell, recipe: Recipe, images: int) -> None:
    """Refuse checkpoints of epochs that the training does not reach."""
    steps = recipe.count_steps(images, cell.global_batch)
    complete = steps // (images // cell.global_batch)  # training may end within an epoch
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
