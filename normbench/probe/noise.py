"""Predict the test loss of runs with other numbers of images per worker from one finished run.

Each kept checkpoint is evaluated on the same held-out images with statistics of n images, for
several n (`normbench.measurements.gradient_noise`). The loss rises where n is smaller than in the
training. A network that is trained with n images adapts to them; the prediction assumes that its
test loss rises by `SHARE` of that. Bias and variance of the gradient are written beside it.
Finished runs of the same cell with n images show how good the prediction is.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from normbench.measurements.gradient_noise import NETWORK, gradient_noise
from normbench.probe.networks import device_of, measure_runs, require_classifier, use_all_cores
from normbench.probe.output import print_table, write_results, write_run_results
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import Record, group_by, last_epoch
from normbench.report.pivot import scientific_options
from normbench.results import Row, read
from normbench.training.datamodule import open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context, weight_dtype

#: Rise of the test loss of networks that are trained with fewer images, over the rise of the loss
#: of one that is not. Of `bn` in ResNet-8 on Fashion-MNIST: 0.069 from 128 to 2 images, 0.065 to 4;
#: others there have 0.045 (`sn`) to 0.23 (`evonorm_b1`).
SHARE = 1 / 15

#: Numbers of images per worker, as far as there are two batches of them.
PER_WORKER = (2, 4, 8, 16, 32, 64, 128)

HEAD = ("network", "images per worker", "held-out loss", "bias", "variance",
        "predicted test loss", "measured", "runs")  # fmt: skip


def run(request: ProbeRequest) -> None:
    """Measure the requested runs; print and write what they predict of others."""
    use_all_cores()
    options = request.options
    finished = read(options.compare or options.runs)

    def measure_run(label: str, trained: TrainedRun) -> list[Record]:
        records = [*_records(label, trained, options.images, options.per_worker, finished)]
        write_run_results(request, trained, records)
        return records

    records = measure_runs(request, measure_run)
    of_networks = last_epoch([each for each in records if each["layer"] == NETWORK], "run")
    for label, of_network in group_by(of_networks, "network").items():
        by_number = group_by(of_network, "per_worker")
        columns = [_mean_over_seeds(of_column) for _, of_column in sorted(by_number.items())]
        print_table([_line(label, column) for column in columns], HEAD)
        print(f"{_compare_rises(columns)}\n")
    write_results(request, records)


def predict(test_loss: float, losses: Mapping[int, float], batch: int) -> dict[int, float]:
    """Return the predicted test loss of runs with other numbers of images per worker.

    Args:
        test_loss: of the probed run.
        losses: of its network on held-out images, by the images that share statistics.
        batch: images per worker of the run, one of `losses`.
    """
    return {n: test_loss + SHARE * (loss - losses[batch]) for n, loss in losses.items()}


def _records(
    label: str, trained: TrainedRun, images: int, per_worker: Sequence[int], finished: Sequence[Row]
) -> Iterator[Record]:
    """Yield a record for each checkpoint, number of images per worker and layer.

    Those of the whole network at the end of the training have the prediction, and the mean test
    loss of the finished runs with so many images per worker.

    Raises:
        ValueError: the run is of another task than classification or in 16-mixed, or holds out too
            few images, or its images per worker do not divide the largest of `per_worker`.
    """
    row, cell = trained.row, trained.cell
    require_classifier(cell, "noise", gradients=True)
    data = open_datamodule(Experiment(cell))
    available = min(images, len(data.splits.val.labels))
    per_worker = per_worker or [n for n in PER_WORKER if 2 * n <= available] or [row.batch]
    size = max(per_worker)
    if available < 2 * size:
        raise ValueError(
            f"it needs 2 batches of {size} held-out images, the largest of per_worker, and has "
            f"{available} (images={images}); use a smaller per_worker or another data.val"
        )
    if size % row.batch:
        raise ValueError(
            f"batch={row.batch} of the run does not divide {size}, the largest of per_worker; "
            f"add a multiple of {row.batch}"
        )
    device, dtype = device_of(cell), weight_dtype(cell)
    batches = [
        (x.to(device, dtype), y.to(device))
        for x, y in data.sample_held_out_batches(available // size, size)
    ]
    for epoch in trained.checkpoints:
        network = trained.network(epoch).to(device)
        with autocast_context(cell, device):
            measurements = gradient_noise(network, batches, [*per_worker, row.batch])
        predictions = {}
        if trained.step(epoch) == data.chunking.steps and row.test_loss is not None:
            losses = {each.per_worker: each.loss for each in measurements}
            predictions = predict(row.test_loss, losses, row.batch)
        for each in measurements:
            predicted = predictions.get(each.per_worker) if each.layer == NETWORK else None
            compares = predicted is not None
            test_losses = [*_test_losses(finished, row, each.per_worker)] if compares else []
            yield {
                "network": label, "run": row.id, "seed": row.seed, "epoch": epoch, **vars(each),
                "predicted": predicted, "measured": fmean(test_losses) if test_losses else None,
                "runs": len(test_losses) if compares else None,
            }  # fmt: skip


def _test_losses(rows: Sequence[Row], probed: Row, per_worker: int) -> Iterator[float]:
    """Yield the test losses of the runs like `probed`, of any seed, with `per_worker` images."""
    alike = _other_options(probed)
    for row in rows:
        is_column = row.status == "ok" and row.batch == per_worker
        if is_column and _other_options(row) == alike and row.test_loss is not None:
            yield row.test_loss


def _other_options(row: Row) -> dict[str, Any]:
    """Return the options of a run but for its seed and its division into workers."""
    options = scientific_options(row)
    return {key: value for key, value in options.items() if key not in ("batch", "workers")}


def _mean_over_seeds(records: Sequence[Record]) -> Record:
    """Return the means of the records of several seeds; the finished runs are the same for all."""
    means = {key: fmean(each[key] for each in records) for key in ("loss", "bias", "variance")}
    predicted = [each["predicted"] for each in records]
    complete = None not in predicted  # of some seeds alone it would be beside the loss of others
    return {**records[0], **means, "predicted": fmean(predicted) if complete else None}


def _line(label: str, column: Record) -> list[object]:
    keys = ("loss", "bias", "variance", "predicted", "measured")
    numbers = ["" if column[key] is None else f"{column[key]:.3g}" for key in keys]
    return [label, column["per_worker"], *numbers, column["runs"]]


def _compare_rises(columns: Sequence[Record]) -> str:
    """Return a sentence on the rise of the test loss over the columns with finished runs."""
    measured = sorted(
        (column for column in columns if None not in (column["predicted"], column["measured"])),
        key=lambda column: int(column["per_worker"]),
    )
    if len(measured) < 2:
        return (
            "Fewer than two columns have finished runs that differ in their workers alone; "
            "compare=FOLDER names others."
        )
    few, many = measured[0], measured[-1]
    return (
        f"From {many['per_worker']} to {few['per_worker']} images per worker the test loss rises "
        f"by {few['measured'] - many['measured']:.2g}; predicted: "
        f"{few['predicted'] - many['predicted']:.2g}."
    )
