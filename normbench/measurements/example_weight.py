"""Inference example weighing (Summers and Dinneen 2020, section 3.1) over its weight alpha.

A trained network is evaluated with every alpha on the validation images; no weight changes. The
best alpha of each measure, which the paper finds to differ, is then applied to the test images,
beside alpha as it was trained: 0 with batch statistics, 1 with those of groups of one image's
channels. What alpha does stands in `normbench.norms.inference`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from normbench.measurements.observing import observed
from normbench.norms.group import GroupNormAct
from normbench.norms.inference import set_example_weight
from normbench.training.metrics import Evaluation

#: Dense near both ends, where the paper's curves bend.
ALPHAS = (
    0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4,
    0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0,
)  # fmt: skip
MEASURES = ("top1", "top5", "loss")

Images = Callable[[], Iterable[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Point:
    """A network with one alpha on one split. Accuracies in percent."""

    split: str
    alpha: float
    top1: float
    top5: float
    loss: float


@dataclass(frozen=True)
class Curve:
    """Every alpha on the validation images, the best of them on the test images.

    Args:
        points: of the validation images.
        usual: the alpha that the normalizer has otherwise.
        best: alpha of each measure that is best on the validation images.
        tested: on the test images `usual`, and then each of `best`.
    """

    points: Sequence[Point]
    usual: float
    best: dict[str, float]
    tested: Sequence[Point]

    def at(self, alpha: float) -> Point:
        """The test images with `alpha`."""
        return next(point for point in self.tested if point.alpha == alpha)


def curve(
    network: nn.Module,
    classes: int,
    validation: Images,
    test: Images,
    alphas: Sequence[float] = ALPHAS,
) -> Curve:
    """The curve of a trained network; every layer has its usual alpha again afterwards.

    Layers of groups of channels need running statistics, which
    `normbench.norms.recalibration.recalibrate` gives them, for any alpha below 1.

    Args:
        network: images (N, C, H, W) -> logits (N, classes).
        classes: of the data set.
        validation: gives pairs of images and labels (N,), anew each time that it is called.
        test: likewise.
        alphas: from 0 to 1.

    Raises:
        ValueError: no layer is reached, or one lacks running statistics.
    """
    grouped = any(isinstance(m, GroupNormAct | nn.GroupNorm) for m in network.modules())
    usual = 1.0 if grouped else 0.0
    tried = sorted({*alphas, usual})

    def evaluated(split: str, images: Images, alpha: float) -> Point:
        set_example_weight(network, alpha)
        evaluation = Evaluation(classes)
        for x, y in images():
            evaluation.update(network(x), y)
        found = evaluation.summary(split)
        return Point(split, alpha, *(found[f"{split}_{measure}"] for measure in MEASURES))

    try:
        with observed(network, "running"):
            points = [evaluated("val", validation, alpha) for alpha in tried]
            best = {measure: _best(points, measure, usual) for measure in MEASURES}
            known = dict.fromkeys([usual, *best.values()])
            tested = [evaluated("test", test, alpha) for alpha in known]
    finally:
        set_example_weight(network, usual)
    return Curve(points, usual, best, tested)


def _best(points: Sequence[Point], measure: str, usual: float) -> float:
    """Of equally good ones the alpha that is nearest to the usual one."""
    sign = 1 if measure == "loss" else -1
    return min(points, key=lambda p: (sign * getattr(p, measure), abs(p.alpha - usual))).alpha
