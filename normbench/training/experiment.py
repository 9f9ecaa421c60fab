"""Experiments: the objects of a run, built once from its cell and passed on.

An `Experiment` has the model, the data set, the recipe, the regularization and the plan of a cell.
It opens no images and knows no Lightning, which takes seconds to import: an estimate of costs needs
neither.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from normbench.config.build import arguments, build
from normbench.config.cells import Cell
from normbench.config.plan import Plan, own_cores, plans
from normbench.data.dataset import Dataset
from normbench.data.reading import open_splits
from normbench.errors import Impossible
from normbench.models.dropout import drop_after, set_rescale
from normbench.models.network_info import NetworkInfo
from normbench.norms.base.layer import NormAct, Normalizer
from normbench.norms.implementation import Implementation
from normbench.training.hardware import device_type, missing_compiler
from normbench.training.recipe import Recipe
from normbench.training.regularization import Regularization
from normbench.training.tasks.task import Task

#: Least multiply-adds of all forward passes at which compiling, which takes a minute, pays: hours
#: of training on a CPU, a quarter of an hour on a GPU.
COMPILED_MACS = {"cpu": 1e14, "cuda": 1e15}
COMPILED_IMAGES = 100_000  # shorter trainings are not compiled by default, whatever the network


class Experiment:
    """The objects of a run, each built when it is first read.

    Args:
        cell: of the run.
        plan: None: all workers share one forward pass on one device.
        network_fields: fields of the row that follow from the network, if the preflight has found
            them; None: they are read from a build on the meta device.
    """

    def __init__(
        self,
        cell: Cell,
        plan: Plan | None = None,
        network_fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.cell = cell
        self.plan = plan or plans(cell.workers)[0]
        self.network_fields = network_fields

    @cached_property
    def norm(self) -> Normalizer:
        normalizer: Normalizer = build("norm", self.cell.norm.options)
        return normalizer

    @cached_property
    def recipe(self) -> Recipe:
        recipe: Recipe = build("recipe", self.cell.recipe.options)
        return recipe

    @cached_property
    def reg(self) -> Regularization:
        reg: Regularization = build("reg", self.cell.reg.options)
        return reg

    @cached_property
    def data(self) -> Dataset:
        """The data set, with training images of the size that the recipe crops.

        Raises:
            BadInput: its images are smaller than that.
        """
        data: Dataset = build("data", self.cell.data.options)
        return data.with_side(self.recipe.crop)

    @cached_property
    def task(self) -> Task:
        task: Task = build("task", self.cell.task.options)
        return task

    @property
    def drop_rates(self) -> dict[str, float]:
        """Options of the model that the level of regularization sets.

        Raises:
            Impossible: the model does not have them.
        """
        cell, rates = self.cell, self.reg.drop_rates
        if missing := sorted(rates.keys() - arguments("model", cell.model.options)):
            raise Impossible(
                f"reg={cell.reg.name} sets {missing[0]}, and model={cell.model.name} has no such "
                "option"
            )
        return rates

    def without_dropping(self) -> "Experiment":
        """Return the experiment without what its level of regularization drops in the network.

        Its network multiplies and adds as much.

        Raises:
            Impossible: the level of regularization sets an option that the model does not have.
        """
        dropping = dict.fromkeys((*self.drop_rates, "norm_dropout", "rescale"))
        options = {**self.cell.reg.options, **dropping}
        reg = replace(self.cell.reg, options=options)
        return Experiment(replace(self.cell, reg=reg), self.plan)

    @cached_property
    def info(self) -> NetworkInfo:
        """Properties of the network, which is built on the meta device."""
        with torch.device("meta"):
            network = self.build_network()
        return NetworkInfo(network, self.norm, self.data.image_shape, self.data.train_shape)

    def build_network(self) -> nn.Module:
        """Build the network, with weights from torch's global generator.

        Raises:
            Impossible: the level of regularization sets an option that the model does not have, or
                the task cannot use the model.
        """
        options = {**self.cell.model.options, **self.drop_rates}
        classifier: nn.Module = build(
            "model", options, norm=self.norm, num_classes=self.data.classes,
            in_chans=self.data.image_shape[0],
        )  # fmt: skip
        norm = self.norm.for_new_layers.with_max_groups(options.get("max_groups"))
        network = self.task.build_network(classifier, norm, self.data)
        if self.reg.norm_dropout is not None:
            layers = [layer for layer in network.modules() if isinstance(layer, NormAct)]
            drop_after(layers, self.reg.norm_dropout)
        if self.reg.rescale is not None:
            set_rescale(network, self.reg.rescale)
        return network

    def count_steps(self) -> tuple[int, int]:
        """Return the optimizer steps of the training and of an epoch, without loading images."""
        policies = bool(self.reg.policies)
        splits, _ = open_splits(self.data, self.cell.loader, policies=policies, load=False)
        images, global_batch = len(splits.train.labels), self.cell.global_batch
        return self.recipe.count_steps(images, global_batch), images // global_batch

    def choose_impl(self, steps: int) -> Implementation:
        """Return how layers are computed in a training of `steps`.

        `trainer.impl=auto` depends on the size of the training and the kind of device, not on a
        clock, and never chooses Triton kernels.
        """
        if self.cell.trainer.impl != "auto":
            return self.cell.trainer.impl
        images = steps * self.cell.global_batch
        if images < COMPILED_IMAGES or missing_compiler(self.cell) or self.task.by_region:
            return "eager"
        if self.info.whole_step and self.plan.accumulation > 1:
            return "eager"  # exact accumulation runs the network call by call
        threshold = COMPILED_MACS[device_type(self.cell)]
        return "compile" if self.info.trained_macs * images >= threshold else "eager"

    def explain_single_pass(self, info: NetworkInfo) -> str:
        """Return why synchronized statistics need all images of a step in one pass, or "".

        `info` is that of the network, which several experiments may share.
        """
        if not info.whole_step:
            return ""
        return self.single_pass_option or info.exact_accumulation_refusal

    @property
    def single_pass_option(self) -> str:
        """Why an option allows no several passes with synchronized statistics, or ""."""
        trainer = self.cell.trainer
        if self.cell.precision == "16-mixed":
            return "several passes cannot scale their loss; precision=bf16-mixed works"
        if trainer.impl == "compile":
            return "several passes run the network call by call; trainer.impl=eager works"
        if trainer.cuda_graph:
            return (
                "a CUDA graph cannot capture copies to main memory; trainer.cuda_graph=false works"
            )
        return ""

    def network_row_fields(self, info: NetworkInfo) -> dict[str, Any]:
        """Return the fields of the row that follow from the network and its loss.

        `info` is that of the network, which several experiments may share.
        """
        fields = info.row_fields()
        independent = fields["batch_independent"] and not self.depends_on_workers
        return {**fields, "batch_independent": independent}

    def is_worker_independent(self, info: NetworkInfo) -> bool:
        """Return True if the division of images among workers changes nothing, the loss neither."""
        return info.worker_independent and not self.depends_on_workers

    @property
    def depends_on_workers(self) -> bool:
        """True if the loss, or which images a step has, depends on the division among workers."""
        return self.task.loss_by_worker or self.data.skew is not None

    def describe(self, loader: str) -> dict[str, Any]:
        """Return the fields of the row that are known without training."""
        return {
            **(self.network_fields or self.network_row_fields(self.info)),
            "data_limits": self.data.limits,
            "plan": str(self.plan),
            "loader": loader,
        }


def count_readers(cell: Cell) -> int:
    """Return the processes or threads that read images beside each process of a run."""
    # The scheduler gives each of several simultaneous runs its share; null means that a run is
    # alone on the machine.
    return own_cores() if cell.trainer.readers is None else cell.trainer.readers
