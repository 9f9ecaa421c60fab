"""Inference example weighing (Summers and Dinneen 2020, section 3.1) over its weight alpha.

A trained network is evaluated with every alpha on the validation images; no weight changes. The
best alpha of each metric, which the paper finds to differ, is then applied to the test images,
beside alpha as in training: 0 with batch statistics, 1 with statistics of groups of an image's
channels. `normbench.norms.inference` has the formula.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor, nn

from normbench.norms.inference import set_example_weight
from normbench.norms.measuring import measuring
from normbench.norms.recalibration import recalibrate
from normbench.probe.networks import device_of, measure_runs, use_all_cores
from normbench.probe.output import print_table, write_results, write_run_results
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import Record
from normbench.training.datamodule import open_datamodule
from normbench.training.example_weight import (
    ALPHAS,
    AlphaCurve,
    AlphaPoint,
    best_alphas,
    lacks_statistics,
    point_of,
    statistics_steps,
    usual_alpha,
)
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context, weight_dtype
from normbench.training.metrics import Evaluation

HEAD = ("network", "run", "seed", "measure", "usual", "best alpha", "test, usual", "test, best",
        "change")  # fmt: skip

Images = Callable[[], Iterable[tuple[Tensor, Tensor]]]


def alpha_curve(
    network: nn.Module,
    classes: int,
    validation: Images,
    test: Images,
    alphas: Sequence[float] = ALPHAS,
) -> AlphaCurve:
    """Evaluate a trained network with every alpha; reset every layer to its usual one.

    Layers with statistics of groups of channels need running statistics, from
    `normbench.norms.recalibration.recalibrate`, for any alpha below 1. `validation` and `test`
    yield pairs of images (N, C, H, W) and labels (N,), anew at each call.

    Raises:
        ValueError: no layer can be weighed, or one lacks running statistics.
    """
    usual = usual_alpha(network)

    def evaluate(split: str, images: Images, alpha: float) -> AlphaPoint:
        set_example_weight(network, alpha)
        evaluation = Evaluation(classes).to(next(network.parameters()).device)
        for x, y in images():
            evaluation.update(network(x), y)
        return point_of(split, alpha, evaluation.summary(split))

    try:
        with measuring(network, "running"):
            points = [evaluate("val", validation, alpha) for alpha in sorted({*alphas, usual})]
            best = best_alphas(points, usual)
            # Each once: several metrics may choose one alpha.
            chosen = dict.fromkeys([usual, *best.values()])
            tested = {alpha: evaluate("test", test, alpha) for alpha in chosen}
    finally:
        set_example_weight(network, usual)
    return AlphaCurve(points, usual, best, tested)


def run(request: ProbeRequest) -> None:
    """Evaluate the requested runs over alpha; print and write the curves."""
    use_all_cores()
    rows: list[list[object]] = []

    def measure_run(label: str, trained: TrainedRun) -> list[Record]:
        curve = _curve_of_run(trained, request.options.alphas or ALPHAS)
        records = list(_records(label, trained, curve))
        rows.extend([label, trained.row.id, trained.cell.seed, *row] for row in _changes(curve))
        tested = {f"test_{m}": getattr(curve.tested[a], m) for m, a in curve.best.items()}
        options = {f"example_weight.{m}": f"{a:g}" for m, a in curve.best.items()}
        metrics = {"val_top1": curve.best_point("top1").top1, **tested}
        write_run_results(request, trained, records, options, metrics)
        return records

    records = measure_runs(request, measure_run)
    print_table(rows, HEAD)
    write_results(request, records)


def _curve_of_run(trained: TrainedRun, alphas: Sequence[float]) -> AlphaCurve:
    data = open_datamodule(Experiment(trained.cell))
    if not data.holds_out:
        raise ValueError(
            "it held out no validation images (data.val=0), and alpha must not be chosen on the "
            "test images"
        )
    device, dtype = device_of(trained.cell), weight_dtype(trained.cell)
    network = trained.network(trained.last_epoch).to(device)

    def images(split: str) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in getattr(data, f"{split}_dataloader")():
            on_device = data.on_after_batch_transfer(batch, 0)
            yield on_device.images.to(device, dtype), on_device.labels.to(device)

    with autocast_context(trained.cell, device):
        if lacks_statistics(network):
            steps = statistics_steps(trained.cell.global_batch)
            training = (x.to(device, dtype) for x in data.batches_after_training(steps))
            recalibrate(network, training)
        return alpha_curve(
            network, data.data.classes, lambda: images("val"), lambda: images("test"), alphas
        )


def _records(label: str, trained: TrainedRun, curve: AlphaCurve) -> Iterator[Record]:
    network: Record = {"network": label, "run": trained.row.id, "seed": trained.cell.seed}
    for record in curve.records():
        yield {**network, **record}


def _changes(curve: AlphaCurve) -> Iterator[list[str]]:
    """Yield for each metric the entries of the table: both alphas, both test results."""
    for metric, alpha in curve.best.items():
        before, after = (getattr(curve.tested[each], metric) for each in (curve.usual, alpha))
        changes = (f"{before:.4g}", f"{after:.4g}", f"{after - before:+.2g}")
        yield [metric, f"{curve.usual:g}", f"{alpha:g}", *changes]
