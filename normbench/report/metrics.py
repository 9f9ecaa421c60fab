"""Metrics of tables: where the number is in a row, its unit, how many decimals are printed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Literal

from normbench.results import Row


@dataclass(frozen=True)
class Metric:
    """A quantity of a run."""

    label: str  # with its unit, as on an axis
    decimals: int  # that are printed
    better: Literal["higher", "lower", ""]
    value: Callable[[Row], float | None] | None = None  # None if no run of ours has the metric
    unit: float = 1.0  # in which it is printed, as 1e6 for millions
    hardware: bool = False  # depends on the devices and not only on what is computed
    by_image: bool = False  # test_hits.bin of a run has it image by image
    learned: bool = True  # counts only if the training went well; a size or a speed always does

    def of(self, row: Row) -> float | None:
        """Return the metric of a run."""
        value = self.value(row) if self.value else None
        return None if value is None else value / self.unit

    @property
    def accuracy(self) -> bool:
        """True of accuracies in percent."""
        return self.label.endswith("accuracy (%)")

    @property
    def of_task(self) -> bool:
        """True of metrics of other tasks than classification."""
        return isinstance(self.value, partial) and self.value.func is _metric_of_task


def _steps_per_second(row: Row) -> float | None:
    return None if row.images_per_second is None else row.images_per_second / row.global_batch


def _sn_ratio(name: str, row: Row) -> float | None:
    return row.sn_ratios.get(name)


def _example_weighing(name: str, row: Row) -> float | None:
    return row.example_weighing.get(name)


def _metric_of_task(name: str, row: Row) -> float | None:
    return row.metrics.get(name)


def metric_of_task(row: Row) -> Metric:
    """Return the main metric of the task of a row; one of a user's own is described by its name."""
    known = METRICS.get(row.metric)
    return known or Metric(row.metric.replace("_", " "), 3, "higher", _of_task(row.metric))


def _of_task(name: str) -> Callable[[Row], float | None]:
    return partial(_metric_of_task, name)


_SPEED = {"hardware": True, "learned": False}
# No lambdas: tables are pickled for the processes that draw them.
METRICS: Mapping[str, Metric] = {
    "test_top1": Metric(
        "test top-1 accuracy (%)", 1, "higher", attrgetter("test_top1"), by_image=True
    ),
    "test_top5": Metric("test top-5 accuracy (%)", 1, "higher", attrgetter("test_top5")),
    "val_top1": Metric("validation top-1 accuracy (%)", 1, "higher", attrgetter("val_top1")),
    "train_top1": Metric("training top-1 accuracy (%)", 1, "higher", attrgetter("train_top1")),
    "test_miou": Metric(
        "test mean intersection over union (%)", 1, "higher", _of_task("test_miou")
    ),
    "test_box_map": Metric(
        "test mean average precision of boxes (%)", 1, "higher", _of_task("test_box_map")
    ),
    "test_mask_map": Metric(
        "test mean average precision of masks (%)", 1, "higher", _of_task("test_mask_map")
    ),
    "test_rms": Metric("test root mean squared error of depth", 3, "lower", _of_task("test_rms")),
    "test_rel": Metric("test relative error of depth", 3, "lower", _of_task("test_rel")),
    **{
        f"test_delta{power}": Metric(
            f"pixels with depth within a factor of 1.25^{power} (%)",
            1,
            "higher",
            _of_task(f"test_delta{power}"),
        )
        for power in (1, 2, 3)
    },
    "test_loss": Metric("test loss", 3, "lower", attrgetter("test_loss")),
    "train_loss": Metric("training loss", 3, "lower", attrgetter("train_loss")),
    "params_m": Metric("parameters (millions)", 1, "", attrgetter("params"), 1e6, learned=False),
    "macs_g": Metric("multiply-adds (billions)", 2, "", attrgetter("macs"), 1e9, learned=False),
    "inference_params_m": Metric(
        "parameters at inference (millions)",
        2,
        "",
        attrgetter("inference_params"),
        1e6,
        learned=False,
    ),
    "inference_macs_m": Metric(  # two operations each, so that the axis is that of the papers
        "multiply-adds at inference (millions)",
        1,
        "",
        attrgetter("inference_operations"),
        2e6,
        learned=False,
    ),
    "images_per_second": Metric(
        "training images per second", 0, "higher", attrgetter("images_per_second"), **_SPEED
    ),
    "steps_per_second": Metric(
        "training steps per second", 2, "higher", _steps_per_second, **_SPEED
    ),
    "peak_memory_gb": Metric(
        "peak memory (GB)", 2, "lower", attrgetter("peak_memory"), 1e9, **_SPEED
    ),
    "alpha_top1": Metric(
        "weight of an image that is best by accuracy",
        2,
        "",
        partial(_example_weighing, "alpha_top1"),
    ),
    "alpha_loss": Metric(
        "weight of an image that is best by loss", 2, "", partial(_example_weighing, "alpha_loss")
    ),
    "weighing_top1": Metric(
        "gain in validation top-1 by example weighing (points)",
        2,
        "higher",
        partial(_example_weighing, "val_top1"),
    ),
    "weighing_top5": Metric(
        "gain in validation top-5 by example weighing (points)",
        2,
        "higher",
        partial(_example_weighing, "val_top5"),
    ),
    "weighing_loss": Metric(
        "reduction of the validation loss by example weighing (%)",
        1,
        "higher",
        partial(_example_weighing, "val_loss"),
    ),
    "weighing_test_top1": Metric(
        "gain in test top-1 by example weighing (points)",
        2,
        "higher",
        partial(_example_weighing, "test_top1"),
    ),
    "bn_ratio_mean": Metric("share of BN in the means of SN", 2, "", partial(_sn_ratio, "mean.bn")),
    "bn_ratio_var": Metric(
        "share of BN in the variances of SN", 2, "", partial(_sn_ratio, "var.bn")
    ),
}
