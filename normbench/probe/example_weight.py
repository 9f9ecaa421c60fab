"""Inference example weighing (Summers and Dinneen 2020, section 3.1) over its weight alpha.

A trained network is evaluated with every alpha on the validation images; no weight changes. The
best alpha of each metric, which the paper finds to differ, is then applied to the test images,
beside alpha as in training: 0 with batch statistics, 1 with statistics of groups of an image's
channels. `normbench.norms.inference` has the formula.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from normbench.measurements.forward_pass import measuring
from normbench.norms.group import GroupNormAct
from normbench.norms.inference import set_example_weight
from normbench.norms.recalibration import recalibrate
from normbench.probe.networks import device_of, measure_runs, use_all_cores
from normbench.probe.output import print_table, write_results, write_run_results
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import Record
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context, weight_dtype
from normbench.training.metrics import Evaluation

#: Dense near both ends, where the paper's curves bend.
ALPHAS = (
    0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4,
    0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0,
)  # fmt: skip
METRICS = ("top1", "top5", "loss")
HEAD = ("network", "run", "seed", "measure", "usual", "best alpha", "test, usual", "test, best",
        "change")  # fmt: skip
STEPS = 50  # of training images, for the running statistics of layers that keep none

Images = Callable[[], Iterable[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class AlphaPoint:
    """Evaluation of a network with one alpha on one split. Accuracies in percent."""

    split: str
    alpha: float
    top1: float
    top5: float
    loss: float


@dataclass(frozen=True)
class AlphaCurve:
    """Evaluations with every alpha on the validation images, with the best on the test images."""

    points: Sequence[AlphaPoint]  # on the validation images
    usual: float  # alpha of the normalizer without weighing
    best: Mapping[str, float]  # by metric, the alpha that is best on the validation images
    tested: Mapping[float, AlphaPoint]  # on the test images, with `usual`, then each of `best`


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
    grouped = any(isinstance(m, GroupNormAct | nn.GroupNorm) for m in network.modules())
    usual = 1.0 if grouped else 0.0

    def evaluate(split: str, images: Images, alpha: float) -> AlphaPoint:
        set_example_weight(network, alpha)
        evaluation = Evaluation(classes)
        for x, y in images():
            evaluation.update(network(x), y)
        summary = evaluation.summary(split)
        return AlphaPoint(split, alpha, *(summary[f"{split}_{metric}"] for metric in METRICS))

    try:
        with measuring(network, "running"):
            points = [evaluate("val", validation, alpha) for alpha in sorted({*alphas, usual})]
            best = {metric: _best_alpha(points, metric, usual) for metric in METRICS}
            # Each once: several metrics may choose one alpha.
            chosen = dict.fromkeys([usual, *best.values()])
            tested = {alpha: evaluate("test", test, alpha) for alpha in chosen}
    finally:
        set_example_weight(network, usual)
    return AlphaCurve(points, usual, best, tested)


def _best_alpha(points: Sequence[AlphaPoint], metric: str, usual: float) -> float:
    """Return the best alpha; of equally good ones the nearest to the usual one."""
    sign = 1 if metric == "loss" else -1
    return min(points, key=lambda p: (sign * getattr(p, metric), abs(p.alpha - usual))).alpha


def run(request: ProbeRequest) -> None:
    """Evaluate the requested runs over alpha; print and write the curves."""
    use_all_cores()
    rows: list[list[object]] = []

    def measure_run(label: str, trained: TrainedRun) -> list[Record]:
        curve = _curve_of_run(trained, request.options.alphas or ALPHAS)
        records = list(_records(label, trained, curve))
        rows.extend([label, trained.row.id, trained.cell.seed, *row] for row in _changes(curve))
        chosen = next(p for p in curve.points if p.alpha == curve.best["top1"])
        tested = {f"test_{m}": getattr(curve.tested[a], m) for m, a in curve.best.items()}
        options = {f"example_weight.{m}": f"{a:g}" for m, a in curve.best.items()}
        metrics = {"val_top1": chosen.top1, **tested}
        write_run_results(request, trained, records, options, metrics)
        return records

    records = measure_runs(request, measure_run)
    print_table(rows, HEAD)
    write_results(request, records)


def _curve_of_run(trained: TrainedRun, alphas: Sequence[float]) -> AlphaCurve:
    data = Experiment(trained.cell).open_datamodule()
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
        if _lacks_statistics(network):
            training = (x.to(device, dtype) for x in data.batches_after_training(STEPS))
            recalibrate(network, training)
        return alpha_curve(
            network, data.data.classes, lambda: images("val"), lambda: images("test"), alphas
        )


def _lacks_statistics(network: nn.Module) -> bool:
    """Return whether layers normalize groups of channels and keep no running statistics."""
    return any(
        isinstance(layer, GroupNormAct | nn.GroupNorm) and not hasattr(layer, "running_mean")
        for layer in network.modules()
    )


def _records(label: str, trained: TrainedRun, curve: AlphaCurve) -> Iterator[Record]:
    network: Record = {"network": label, "run": trained.row.id, "seed": trained.cell.seed}
    for point in (*curve.points, *curve.tested.values()):
        best = [metric for metric, alpha in curve.best.items() if alpha == point.alpha]
        yield {**network, **vars(point), "best": " ".join(best)}


def _changes(curve: AlphaCurve) -> Iterator[list[str]]:
    """Yield for each metric the entries of the table: both alphas, both test results."""
    for metric, alpha in curve.best.items():
        before, after = (getattr(curve.tested[each], metric) for each in (curve.usual, alpha))
        changes = (f"{before:.4g}", f"{after:.4g}", f"{after - before:+.2g}")
        yield [metric, f"{curve.usual:g}", f"{alpha:g}", *changes]
