"""Choice of the weight of an image in its own statistics (Summers and Dinneen 2020, section 3.1).

Under `recipe.example_weight=METRIC` the trained network is evaluated on the held-out images with
every alpha of ALPHAS, and the best one by the metric holds for the evaluations of the run: `val_*`
and `test_*` of its row. No parameter changes, and checkpoints have the network without a weight.
`normbench.norms.inference` has the formula.

Layers with statistics of groups of channels keep no running ones; they get them from STATISTICS
augmented training images, under the final weights.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from torch import nn

from normbench.norms.group import GroupNormAct
from normbench.records.history import CurveRecord
from normbench.records.probes import Record

Metric = Literal["top1", "top5", "loss"]
METRICS: tuple[Metric, ...] = get_args(Metric)
#: Dense near both ends, where the paper's curves bend.
ALPHAS = (
    0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4,
    0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0,
)  # fmt: skip
STATISTICS = 6400  # training images, or a few more: whole global batches


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
    best: Mapping[Metric, float]  # by metric, the alpha that is best on the validation images
    tested: Mapping[float, AlphaPoint]  # on the test images, with `usual`, then others

    def with_test(self, point: AlphaPoint) -> "AlphaCurve":
        """Return the curve with another point on the test images."""
        return replace(self, tested={**self.tested, point.alpha: point})

    def records(self) -> Iterator[Record]:
        """Yield the points as records of a probe, with the metrics by which each is the best."""
        for point in (*self.points, *self.tested.values()):
            metrics = [metric for metric, alpha in self.best.items() if alpha == point.alpha]
            yield {**vars(point), "best": " ".join(metrics)}

    def best_point(self, metric: Metric) -> AlphaPoint:
        """Return the point on the validation images that is best by `metric`."""
        return next(point for point in self.points if point.alpha == self.best[metric])

    def row_field(self, metric: Metric) -> dict[str, float]:
        """Return what a row has of the curve, if `metric` chose the alpha of its evaluations.

        Gains are differences to the usual alpha: accuracies in points, losses in percent of the
        loss, positive if the loss falls.
        """
        alpha = self.best[metric]
        field = {"alpha": alpha, "usual": self.usual}
        for each, best in self.best.items():
            field |= {f"alpha_{each}": best, f"val_{each}": self._gain(self.points, each, best)}
        tested = [*self.tested.values()]
        field |= {f"test_{each}": self._gain(tested, each, alpha) for each in METRICS}
        return {name: value for name, value in field.items() if math.isfinite(value)}

    def _gain(self, points: Sequence[AlphaPoint], metric: Metric, alpha: float) -> float:
        values: dict[float, float] = {point.alpha: getattr(point, metric) for point in points}
        before, after = values[self.usual], values[alpha]
        return 100 * (1 - after / before) if metric == "loss" else after - before


def usual_alpha(network: nn.Module) -> float:
    """Return the alpha of a network without weighing: 1 with statistics of groups of channels."""
    return 1.0 if any(map(_is_grouped, network.modules())) else 0.0


def lacks_statistics(network: nn.Module) -> bool:
    """Return True if layers normalize groups of channels and keep no running statistics."""
    return any(
        _is_grouped(layer) and not hasattr(layer, "running_mean") for layer in network.modules()
    )


def _is_grouped(layer: nn.Module) -> bool:
    return isinstance(layer, GroupNormAct | nn.GroupNorm)


def statistics_steps(global_batch: int) -> int:
    """Return the global batches from which layers get the running statistics that they lack."""
    return -(-STATISTICS // global_batch)


def best_alphas(points: Sequence[AlphaPoint], usual: float) -> dict[Metric, float]:
    """Return the best alpha by each metric; of equally good ones the nearest to the usual one."""
    best: dict[Metric, float] = {}
    for metric in METRICS:
        sign = 1 if metric == "loss" else -1
        values = {p.alpha: sign * getattr(p, metric) for p in points}
        # NaN cannot be ranked, so it counts as the worst.
        ranked = {a: math.inf if math.isnan(v) else v for a, v in values.items()}
        best[metric] = min(ranked, key=lambda alpha: (ranked[alpha], abs(alpha - usual)))
    return best


def point_of(split: str, alpha: float, summary: CurveRecord) -> AlphaPoint:
    """Return the point of an evaluation of `split` with `alpha`."""
    return AlphaPoint(split, alpha, *(summary[f"{split}_{metric}"] for metric in METRICS))
