"""Replace the normalizer of finished runs: what accuracy is left, and what comes back.

Weights are those of the run. Gains and shifts of the new normalizer are copied from the old one, or
fitted to it (`normbench.models.fit_norms`). Then the network learns the probabilities that the run
gives training images, without their labels (distillation). A new normalizer with running statistics
takes them from the images of the fit before each test.

The network after the most steps is written to `probes/conversion-NORM-START.pt` in the run's
folder: a state_dict, which `ckpt=FILE` and `load_state_dict` read.
"""

from collections.abc import Iterator
from statistics import fmean, stdev

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.config.compose import compose
from normbench.config.row_words import words_of
from normbench.errors import BadInput, Impossible
from normbench.models.fit_norms import fit_norms
from normbench.norms.base.running import NetworkStatistics
from normbench.norms.base.tensors import upcast
from normbench.norms.measuring import measuring
from normbench.norms.recalibration import recalibrate
from normbench.probe.networks import device_of, measure_runs, use_all_cores
from normbench.probe.options import ConversionOptions
from normbench.probe.output import print_table, write_results, write_run_results
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import PROBES, Record, group_by
from normbench.run_files import replace_atomically
from normbench.training.checkpoint import load_part
from normbench.training.datamodule import DataModule, open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.hardware import weight_dtype
from normbench.training.metrics import Evaluation
from normbench.training.parameter_groups import FEATURES, classifier_layers

BATCH = 64  # images of a step of distillation
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
        records: list[Record] = []
        refusals = []
        for norm in options.to:
            try:
                records += _records(label, trained, norm, options)
            except (BadInput, Impossible) as reason:
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
        before = [each[0]["before"] for each in group_by(of_norm, "run").values()]
        columns = group_by(of_norm, "start", "step")
        tested = [columns.get((start, n), []) for start in STARTS for n in options.steps]
        accuracies = [[each["top1"] for each in column] for column in tested]
        rows.append([label, norm, *map(_describe, [before, *accuracies]), len(before)])
    steps = [f"{start} + {n} steps" if n else start for start in STARTS for n in options.steps]
    print_table(rows, ("network", "converted to", "before", *steps, "runs"))
    print("\nTest top-1 accuracy (%).")
    write_results(request, records)


def _describe(accuracies: list[float]) -> str:
    """Return mean and standard deviation over runs as text."""
    if not accuracies:
        return "n/a"
    spread = f" ± {stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{fmean(accuracies):.1f}{spread}"


def _records(
    label: str, trained: TrainedRun, norm: str, options: ConversionOptions
) -> Iterator[Record]:
    """Yield the accuracy of a run with `norm` for each start and number of steps.

    Raises:
        ValueError: the run is of another task than classification.
        BadInput: the network with that normalizer has other weights than the run.
        Impossible: the network cannot use it.
    """
    cell = trained.cell
    if cell.task.name != "classify":
        raise ValueError(f"task={cell.task.name}: the probe conversion needs task=classify")
    own = ("norm=", "norm.", "init_from=", "init_only=")
    words = [word for word in words_of(trained.row) if not word.startswith(own)]
    (other,), _ = compose([*words, f"norm={norm}"])
    device, dtype = device_of(cell), weight_dtype(cell)
    data = open_datamodule(Experiment(cell))
    images = data.sample_training_images(options.images + BATCH * max(options.steps))
    images = images.to(device, dtype)
    fit_images, others = images[: options.images], images[options.images :]
    batches = [each for each in others.split(BATCH) if len(each) == BATCH] or [images]
    original = trained.network(trained.last_epoch).to(device).eval()
    before = _test(original, data)
    for start in STARTS:
        network = Experiment(other).build_network().to(device, dtype)
        _copy_weights(network, original)
        if start == "fitted":
            try:
                fit_norms(network, original, fit_images)
            except Impossible as reason:
                print(f"{label} ({trained.row.id}) to={norm} is not fitted: {reason}")
                continue
        distillation = _distil(network, original, batches, options.lr)
        for step in range(max(options.steps) + 1):
            if step in options.steps:
                if NetworkStatistics(network):
                    recalibrate(network, [fit_images])
                yield {
                    "network": label, "run": trained.row.id, "seed": trained.row.seed,
                    "norm": norm, "start": start, "step": step, "before": before,
                    "top1": _test(network, data),
                }  # fmt: skip
            if step < max(options.steps):
                next(distillation)
        folder = trained.folder / PROBES
        with replace_atomically(folder / f"conversion-{norm}-{start}.pt") as temporary:
            torch.save(network.state_dict(), temporary)


def _copy_weights(network: nn.Module, original: nn.Module) -> None:
    """Copy all parameters and statistics that both networks have.

    Raises:
        BadInput: `network` has other weights.
    """
    load_part(network, {"model": original.state_dict(), "roles": [FEATURES], "prefix": ""})
    for name, layer in classifier_layers(network).items():
        layer.load_state_dict(original.get_submodule(name).state_dict())


def _distil(
    network: nn.Module, original: nn.Module, batches: list[Tensor], lr: float
) -> Iterator[None]:
    """Take a step of SGD towards the probabilities of `original` for each item that is taken.

    The batches are repeated if there are more steps.
    """
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=MOMENTUM)
    while True:
        for batch in batches:
            with torch.no_grad():
                targets = upcast(original(batch)).softmax(1)
            network.train()
            optimizer.zero_grad()
            F.cross_entropy(upcast(network(batch)), targets).backward()
            optimizer.step()
            yield


def _test(network: nn.Module, data: DataModule) -> float:
    """Return the accuracy (%) on the test images."""
    parameter = next(network.parameters())
    evaluation = Evaluation(data.data.classes).to(parameter.device)
    with measuring(network, "running"):
        for batch in data.test_dataloader():
            images, labels, *_ = data.on_after_batch_transfer(batch, 0)
            evaluation.update(network(images.to(parameter)), labels.to(parameter.device))
    return float(evaluation.summary("test")["test_top1"])
