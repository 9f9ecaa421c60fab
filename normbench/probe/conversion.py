"""Replace the normalizer of finished runs: what accuracy is left, and what comes back.

Weights are those of the run. Gains and shifts of the new normalizer are copied from the old one, or
fitted to it (`normbench.models.fit_norms`). Then the network learns the probabilities that the run
gives to training images, without their labels (distillation). A new normalizer with running
statistics is tested with those of the images of the fit.

The network after the most steps is written to `probes/conversion-NORM-START-EPOCH.pt` in the run's
folder: a state_dict, which `ckpt=FILE` and `load_state_dict` read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.errors import BadInput, Impossible
from normbench.models.fit_norms import fit_norms
from normbench.norms.base.running import NetworkStatistics
from normbench.norms.base.tensors import upcast
from normbench.norms.measuring import measuring
from normbench.norms.recalibration import recalibrate
from normbench.probe.networks import device_of, measure_runs, require_classifier, use_all_cores
from normbench.probe.options import ConversionOptions
from normbench.probe.output import (
    describe_accuracies,
    named_if_unwritten,
    print_table,
    write_results,
    write_run_results,
)
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import PROBES, Record, group_by
from normbench.training.checkpoint import save_state
from normbench.training.datamodule import DataModule, open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context, weight_dtype
from normbench.training.metrics import Evaluation
from normbench.training.parameter_groups import list_parameters

BATCH = 64  # images of a step of distillation, at most
MOMENTUM = 0.9
STARTS = ("copied", "fitted")


def run(request: ProbeRequest) -> None:
    """Convert the requested runs; print and write their accuracies.

    Raises:
        BadInput: no normalizer is named.
    """
    use_all_cores()
    options: ConversionOptions = request.options
    if not options.to:
        raise BadInput("to is missing: the normalizers that replace that of the run, as to=gn,ln")

    def measure_run(label: str, trained: TrainedRun) -> list[Record]:
        conversion = _open(label, trained, options.images)
        records: list[Record] = []
        refusals = []
        for norm in options.to:
            try:
                records += conversion.measure(norm, options)
            except (BadInput, Impossible, ValueError) as reason:
                refusals.append(f"to={norm}: {reason}")
        if not records:
            raise ValueError("; ".join(refusals))
        for refusal in refusals:
            print(f"{label} ({trained.row.id}) {refusal}")
        write_run_results(request, trained, records)
        return records

    records = measure_runs(request, measure_run)
    rows: list[list[object]] = []
    for (label, norm), of_norm in group_by(records, "network", "norm").items():
        before = [each[0]["before"] for each in group_by(of_norm, "run", "epoch").values()]
        columns = group_by(of_norm, "start", "step")
        tested = [columns.get((start, n), []) for start in STARTS for n in options.steps]
        accuracies = [[each["top1"] for each in column] for column in tested]
        rows.append([label, norm, *map(describe_accuracies, [before, *accuracies]), len(before)])
    steps = [f"{start} + {n} steps" if n else start for start in STARTS for n in options.steps]
    print_table(rows, ("network", "converted to", "before", *steps, "runs"))
    print("\nTest top-1 accuracy (%). Networks after the last step, as state_dict:")
    print(f"{options.runs}/*/RUN/{PROBES}/conversion-NORM-START-EPOCH.pt")
    write_results(request, records)


@dataclass(frozen=True)
class _Conversion:
    """A run whose normalizer is replaced."""

    label: str
    trained: TrainedRun
    data: DataModule
    original: nn.Module
    fit_images: Tensor  # to which gains and shifts are fitted
    before: float  # test accuracy (%) of the run

    @property
    def cell(self) -> Cell:
        return self.trained.cell

    @property
    def device(self) -> torch.device:
        return device_of(self.cell)

    def measure(self, norm: str, options: ConversionOptions) -> Iterator[Record]:
        """Yield the accuracy with `norm` for each start and number of steps.

        Raises:
            BadInput: the normalizer cannot be composed.
            Impossible: the network cannot use it, or has weights that the run lacks.
        """
        (with_norm, *_), _ = compose([f"norm={norm}"])
        cell = replace(self.cell, norm=with_norm.norm, init_from=None, init_only=None, start=None)
        epoch = self.trained.last_epoch
        for start in STARTS:
            torch.manual_seed(cell.seed)  # of new layers and dropout
            network = Experiment(cell).build_network().to(self.fit_images)
            _copy_weights(network, self.original)
            if start == "fitted":
                try:
                    fit_norms(network, self.original, self.fit_images)
                except Impossible as reason:
                    print(f"{self.label} ({self.trained.row.id}) to={norm} is not fitted: {reason}")
                    continue
            distillation = self._distil(network, options)
            for step in range(max(options.steps) + 1):
                if step in options.steps:
                    yield {
                        "network": self.label, "run": self.trained.row.id, "seed": cell.seed,
                        "epoch": epoch, "norm": norm, "start": start, "step": step,
                        "before": self.before, "top1": self._test(network),
                    }  # fmt: skip
                if step < max(options.steps):
                    next(distillation)
            self._recalibrate(network)
            path = self.trained.folder / PROBES / f"conversion-{norm}-{start}-{epoch}.pt"
            with named_if_unwritten(path):
                save_state(path, network.state_dict())

    def _distil(self, network: nn.Module, options: ConversionOptions) -> Iterator[None]:
        """Take a step of SGD towards the run's probabilities for each item that is taken."""
        optimizer = torch.optim.SGD(network.parameters(), lr=options.lr, momentum=MOMENTUM)
        batches = math.ceil(self.data.sampler.global_batch / BATCH)  # of a step of the training
        steps = math.ceil(max(options.steps) / batches)
        for images in self.data.batches_after_training(steps, joined=True):
            for batch in images.tensor_split(batches):
                x = batch.to(self.device, weight_dtype(self.cell))
                with autocast_context(self.cell, self.device):
                    with torch.no_grad():
                        targets = upcast(self.original(x)).softmax(1)
                    loss = F.cross_entropy(upcast(network.train()(x)), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield

    def _test(self, network: nn.Module) -> float:
        """Return the accuracy (%), with running statistics of the images of the fit."""
        statistics = NetworkStatistics(network)
        before = statistics.read() if statistics else None
        self._recalibrate(network)
        accuracy = _test(network, self.data, self.cell)
        if before is not None:  # layers such as batch_renorm read them in training
            statistics.write(before)
        return accuracy

    def _recalibrate(self, network: nn.Module) -> None:
        """Give layers that have running statistics those of the images of the fit."""
        if NetworkStatistics(network):
            with autocast_context(self.cell, self.device):
                recalibrate(network, [self.fit_images])


def _open(label: str, trained: TrainedRun, images: int) -> _Conversion:
    """Load a run and so many training images, and test the run.

    Raises:
        ValueError: it is of another task than classification, or in 16-mixed.
    """
    cell = trained.cell
    require_classifier(cell, "conversion", gradients=True)
    data = open_datamodule(Experiment(cell))
    original = trained.network(trained.last_epoch).to(device_of(cell)).eval()
    fit_images = data.sample_training_images(images).to(device_of(cell), weight_dtype(cell))
    return _Conversion(label, trained, data, original, fit_images, _test(original, data, cell))


def _copy_weights(network: nn.Module, original: nn.Module) -> None:
    """Copy all parameters and statistics that both networks have.

    Raises:
        Impossible: `network` has convolutions or linear layers that `original` has not, or keeps
            statistics that it has not.
    """
    present, weights = network.state_dict(), original.state_dict()
    shared = {k: v for k, v in weights.items() if k in present and v.shape == present[k].shape}
    roles = {id(parameter): role for parameter, role, _ in list_parameters(network)}
    for name, parameter in network.named_parameters():
        if name not in shared and roles[id(parameter)] == "weight":
            raise Impossible(f"the run has no weights {name} of the shape {tuple(parameter.shape)}")
    for name, module in network.named_modules():
        if getattr(module, "unfinished", "") and f"{name}.running_mean" not in shared:
            raise Impossible(f"the run has no running statistics {name}, which this norm keeps")
    network.load_state_dict(present | shared)


def _test(network: nn.Module, data: DataModule, cell: Cell) -> float:
    """Return the accuracy (%) on the test images."""
    device, dtype = device_of(cell), weight_dtype(cell)
    evaluation = Evaluation(data.data.classes).to(device)
    with measuring(network, "running"), autocast_context(cell, device):
        for batch in data.test_dataloader():
            images, labels, *_ = data.on_after_batch_transfer(batch, 0)
            evaluation.update(network(images.to(device, dtype)), labels.to(device))
    return float(evaluation.summary("test")["test_top1"])
