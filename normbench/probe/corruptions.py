"""Test accuracy of finished runs on corrupted images.

Each network is tested on images with noise, blur and less contrast (`normbench.data.corruptions`).
Normalizers that use statistics of the batch in training are tested with their running statistics
and with those of n corrupted test images (Schneider et al. 2020, Improving robustness against
common corruptions by covariate shift adaptation). The images are shuffled, so that n images are of
several classes; up to n - 1 images at the end are left out.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from torch import nn

from normbench.data.corruptions import CORRUPTIONS, STRENGTHS, corrupt
from normbench.data.counter_rng import Draws
from normbench.norms.base.running import NetworkStatistics
from normbench.norms.measuring import measuring
from normbench.norms.workers import set_workers
from normbench.probe.networks import device_of, measure_runs, use_all_cores
from normbench.probe.output import print_table, write_results, write_run_results
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import Record, group_by
from normbench.training.datamodule import EVALUATION_BATCH, PROBE_EPOCH, DataModule, open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context, weight_dtype
from normbench.training.metrics import Evaluation

#: In place of a corruption, with strength 0; in place of a number of images.
CLEAN, RUNNING = "clean", "running"

HEAD = ("network", "statistics of", CLEAN, *CORRUPTIONS, "runs")


def run(request: ProbeRequest) -> None:
    """Test the requested runs; print and write their accuracies."""
    use_all_cores()

    def measure_run(label: str, trained: TrainedRun) -> list[Record]:
        records = [*_records(label, trained, request.options.per_worker)]
        write_run_results(request, trained, records)
        return records

    records = measure_runs(request, measure_run)
    rows = []
    for label, of_network in group_by(records, "network").items():
        for statistics, alike in group_by(of_network, "statistics").items():
            by_corruption = group_by(alike, "corruption").values()
            runs = [group_by(each, "run").values() for each in by_corruption]
            means = [[fmean(x["top1"] for x in of_run) for of_run in each] for each in runs]
            source = f"{statistics} images" if statistics != RUNNING else "training (running)"
            rows.append([label, source, *map(_describe, means), len(means[0])])
    print_table(rows, HEAD)
    print(f"\nTest top-1 accuracy (%), mean over {len(STRENGTHS)} strengths of each corruption.")
    write_results(request, records)


def _describe(accuracies: Sequence[float]) -> str:
    """Return mean and standard deviation over runs as text."""
    spread = f" ± {stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{fmean(accuracies):.1f}{spread}"


def _records(label: str, trained: TrainedRun, per_worker: Sequence[int]) -> Iterator[Record]:
    """Yield a record for each source of statistics, corruption and strength.

    Raises:
        ValueError: the run is of another task than classification, or has fewer test images than
            are to share statistics.
    """
    cell = trained.cell
    if cell.task.name != "classify":
        raise ValueError(f"task={cell.task.name}: the probe corruptions needs task=classify")
    data = open_datamodule(Experiment(cell))
    network = trained.network(trained.last_epoch).to(device_of(cell))
    numbers = per_worker if NetworkStatistics(network) else ()
    if numbers and max(numbers) > (images := len(data.splits.test.labels)):
        raise ValueError(
            f"per_worker={max(numbers)} needs as many test images, and there are {images}; use a "
            "smaller one"
        )
    conditions = [(CLEAN, 0), *((name, s) for name in CORRUPTIONS for s in STRENGTHS)]
    with autocast_context(cell, device_of(cell)):
        for number in (None, *numbers):
            for corruption, strength in conditions:
                yield {
                    "network": label, "run": trained.row.id, "seed": trained.row.seed,
                    "statistics": number or RUNNING, "corruption": corruption,
                    "strength": strength,
                    "top1": _test(trained, network, data, number, corruption, strength),
                }  # fmt: skip


def _test(
    trained: TrainedRun,
    network: nn.Module,
    data: DataModule,
    number: int | None,
    corruption: str,
    strength: int,
) -> float:
    """Return the accuracy (%) with statistics of `number` images, or running ones if None."""
    device, dtype = device_of(trained.cell), weight_dtype(trained.cell)
    size = EVALUATION_BATCH if number is None else number * max(1, EVALUATION_BATCH // number)
    evaluation = Evaluation(data.data.classes).to(device)
    with measuring(network, "running" if number is None else "batch"):
        for pixels, labels, indices, _ in data.shuffled_test_batches(size):
            if corruption != CLEAN:
                draws = Draws(0, PROBE_EPOCH, indices)  # the same for all runs and strengths
                pixels = corrupt(pixels, corruption, strength, draws)
            images: Any = data.data.eval_input(pixels, indices)
            if number is not None:
                if not (workers := len(labels) // number):
                    break
                images, labels = images[: workers * number], labels[: workers * number]
                set_workers(network, workers)
            evaluation.update(network(images.to(device, dtype)), labels.to(device))
    return float(evaluation.summary("test")["test_top1"])
