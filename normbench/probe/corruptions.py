"""Test accuracy of finished runs on corrupted images.

Each network is tested on images with noise, blur and less contrast (`normbench.data.corruptions`).
Normalizers that use statistics of the batch in training are tested with their running statistics
and with those of n corrupted test images (Schneider et al. 2020, Improving robustness against
common corruptions by covariate shift adaptation). The images are shuffled, so that n images are of
several classes; up to n - 1 images at the end are left out.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from torch import nn

from normbench.data.corruptions import CORRUPTIONS, STRENGTHS, corrupt
from normbench.data.counter_rng import Draws
from normbench.errors import Impossible
from normbench.norms.base.running import NetworkStatistics
from normbench.norms.batch import has_undivided_batch_norm
from normbench.norms.measuring import measuring
from normbench.norms.whole_step import has_synchronized_statistics
from normbench.norms.workers import set_workers
from normbench.probe.networks import device_of, measure_runs, require_classifier, use_all_cores
from normbench.probe.output import (
    describe_accuracies,
    print_table,
    write_results,
    write_run_results,
)
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import Record, group_by
from normbench.training.datamodule import PROBE_EPOCH, DataModule, open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context, weight_dtype
from normbench.training.metrics import Evaluation

#: In place of a corruption, with strength 0; in place of a number of images.
CLEAN, RUNNING = "clean", "running"
CONDITIONS = [(CLEAN, 0), *((name, s) for name in CORRUPTIONS for s in STRENGTHS)]

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
    for (label, statistics), tested in group_by(records, "network", "statistics").items():
        by_corruption = group_by(tested, "corruption").values()
        runs = [group_by(each, "run", "epoch").values() for each in by_corruption]
        means = [[fmean(x["top1"] for x in of_run) for of_run in each] for each in runs]
        source = f"{statistics} images" if statistics != RUNNING else "training (running)"
        rows.append([label, source, *map(describe_accuracies, means), len(means[0])])
    print_table(rows, HEAD)
    print(f"\nTest top-1 accuracy (%), mean over {len(STRENGTHS)} strengths of each corruption.")
    write_results(request, records)


def _records(label: str, trained: TrainedRun, per_worker: Sequence[int]) -> Iterator[Record]:
    """Yield a record for each source of statistics, corruption and strength.

    Numbers of images that the run cannot use are printed and left out.

    Raises:
        ValueError: the run is of another task than classification.
    """
    cell = trained.cell
    require_classifier(cell, "corruptions")
    data = open_datamodule(Experiment(cell))
    network = trained.network(trained.last_epoch).to(device_of(cell))
    images = len(data.splits.test.labels)
    for number in (None, *(per_worker if NetworkStatistics(network) else ())):
        if number is not None and number > images:
            print(f"{label} ({trained.row.id}) per_worker={number}: it has {images} test images")
            continue
        try:
            accuracies = _test(trained, network, data, number)
        except (Impossible, ValueError) as reason:
            print(f"{label} ({trained.row.id}) per_worker={number}: {reason}")
            continue
        for (corruption, strength), top1 in accuracies.items():
            yield {
                "network": label, "run": trained.row.id, "seed": trained.row.seed,
                "epoch": trained.last_epoch, "statistics": number or RUNNING,
                "corruption": corruption, "strength": strength, "top1": top1,
            }  # fmt: skip


def _test(
    trained: TrainedRun, network: nn.Module, data: DataModule, number: int | None
) -> dict[tuple[str, int], float]:
    """Return the accuracy (%) for each of `CONDITIONS`.

    Statistics are those of `number` images, or running ones if None.
    """
    device, dtype = device_of(trained.cell), weight_dtype(trained.cell)
    evaluations = {each: Evaluation(data.data.classes).to(device) for each in CONDITIONS}
    statistics = NetworkStatistics(network)
    before = statistics.read() if statistics else None
    size = data.evaluation_batch
    if number is not None:
        size = number * (max(1, size // number) if _divides_among_workers(network) else 1)
    with (
        measuring(network, "running" if number is None else "batch"),
        autocast_context(trained.cell, device),
    ):
        for pixels, labels, indices, _ in data.shuffled_test_batches(size):
            if number is not None:
                if not (workers := len(labels) // number):
                    break
                set_workers(network, workers)
                complete = workers * number
                pixels, labels, indices = (x[:complete] for x in (pixels, labels, indices))
            draws = Draws(0, PROBE_EPOCH, indices)  # the same for all runs and strengths
            for (corruption, strength), evaluation in evaluations.items():
                if before is not None:  # layers such as batch_renorm read them with a batch, too
                    statistics.write(before)
                clean = corruption == CLEAN
                changed = (
                    pixels
                    if clean
                    else corrupt(pixels, corruption, strength, draws, data.data.white)
                )
                images = data.data.eval_input(changed, indices).to(device, dtype)
                evaluation.update(network(images), labels.to(device))
    return {key: float(each.summary("test")["test_top1"]) for key, each in evaluations.items()}


def _divides_among_workers(network: nn.Module) -> bool:
    """Return True if all statistics are those of a worker, in a forward pass of several."""
    return not has_undivided_batch_norm(network) and not has_synchronized_statistics(network)
