"""Preflight: refuse what cannot work before the first run starts.

Runs once, in a process of its own: it looks for the data and the devices of every cell, and runs a
forward pass of its network on the meta device.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normbench.config.cells import Accelerator, Cell
from normbench.data.reading import open_splits
from normbench.errors import BadInput, DamagedFile, Impossible
from normbench.execution.job import CellCheck, PreflightRequest, PreflightResults
from normbench.execution.networks import Networks, describe_pair, step_key
from normbench.execution.requirements import (
    require_blocks,
    require_compiler,
    require_cuda_graph,
    require_device,
    require_epochs,
    require_held_out,
    require_images,
    require_learning_rate,
    require_plan,
    require_ratios,
    require_task,
    require_trainable,
    require_weighable,
)
from normbench.models.backbone import Backbone
from normbench.models.network_info import NetworkInfo
from normbench.norms.workers import set_workers
from normbench.training.checkpoint import begin_run, load_state, require_start
from normbench.training.experiment import Experiment
from normbench.training.hardware import host_memory
from normbench.training.recipe import Recipe
from normbench.training.seed_stacking import explain_unstackable_cell
from normbench.training.stacked_networks import explain_unstackable_network


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
            require_device(cell, self.gpus, request.processes or cell.trainer.devices)
            require_compiler(cell)
        require_task(experiment)
        images, held_out = self._count_images(experiment)
        require_learning_rate(cell, recipe)
        require_images(cell, images)
        require_epochs(cell, recipe, images)
        require_held_out(recipe, held_out)
        try:
            info = self.networks.inspect(experiment)
            require_weighable(cell, recipe, info)
            require_ratios(cell, recipe, info)
            require_blocks(recipe, info)
            require_trainable(cell, info)
        except Impossible as reason:
            return CellCheck(impossible=str(reason))
        require_plan(experiment, info)
        if cell.id in request.checkpoints:
            _require_start(cell, recipe, info.network, images, request.checkpoints[cell.id])
        if on_this_machine:
            require_cuda_graph(cell, changes_every_step=info.changes_every_step)
        return CellCheck(
            worker_independent=experiment.is_worker_independent(info),
            single_pass=info.has_library_batch_norm or bool(experiment.explain_single_pass(info)),
            unstackable=self._explain_unstackable(experiment, info),
            coverage=f"{describe_pair(cell)}: {info.coverage}" if info.is_library_model else "",
            network_fields=experiment.network_row_fields(info),
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
        key = step_key(experiment)
        if key not in self.unstackable:
            set_workers(info.network, cell.workers)  # it may serve other batches, too
            self.unstackable[key] = explain_unstackable_network(
                info.network, cell.global_batch, info.train_shape
            )
        return self.unstackable[key]


def _require_start(cell: Cell, recipe: Recipe, network: nn.Module, images: int, path: Path) -> None:
    """Refuse a checkpoint from which `network` cannot begin: of other shapes, or of other steps."""
    try:
        state = load_state(path, values=False)
    except DamagedFile:
        return  # the run itself reports it, and other runs are trained
    steps = recipe.count_steps(images, cell.global_batch)
    try:
        dense = any(isinstance(each, Backbone) for each in network.children())
        begun = begin_run(state, cell.init_only, dense=dense)
        require_start(begun, network, steps, images // cell.global_batch)
    except BadInput as misfit:
        start = f" (the run is {cell.start.title})" if cell.start else ""
        raise BadInput(f"{cell.title}: {misfit}{start}") from None
