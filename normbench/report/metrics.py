"""What a number of a table is: where in a row it stands, its unit, how it is printed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from normbench.results import Row

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Metric:
    """One quantity of a run.

    Args:
        label: with its unit, as an axis has it.
        decimals: that are printed.
        better: which of two numbers one would want; empty where that is no question.
        of: its value in a row; None where it was not measured.
        hardware: it depends on the devices and not on what is computed.
        learned: it counts only if the training went well; a size or a speed is what it is.
    """

    label: str
    decimals: int
    better: Better
    of: Callable[[Row], float | None]
    hardware: bool = False
    learned: bool = True

    @property
    def accuracy(self) -> bool:
        """It is one, in percent."""
        return self.label.endswith("accuracy (%)")


def _number(name: str, unit: float, row: Row) -> float | None:
    found = getattr(row, name)
    return None if found is None else float(found) / unit


def _ratio(of: str, row: Row) -> float | None:
    return row.sn_ratios.get(of)


def _steps_per_second(row: Row) -> float | None:
    return None if row.images_per_second is None else row.images_per_second / row.global_batch


def _nothing(_row: Row) -> None:
    return None


def published_only(label: str) -> Metric:
    """A quantity that no run of ours has."""
    return Metric(label, 1, "", _nothing)


# Parts of functions and no lambdas: tables travel to the processes that draw them.
METRICS: Mapping[str, Metric] = {
    "test_top1": Metric("test top-1 accuracy (%)", 1, "higher", partial(_number, "test_top1", 1.0)),
    "test_top5": Metric("test top-5 accuracy (%)", 1, "higher", partial(_number, "test_top5", 1.0)),
    "val_top1": Metric(
        "validation top-1 accuracy (%)", 1, "higher", partial(_number, "val_top1", 1.0)
    ),
    "train_top1": Metric(
        "training top-1 accuracy (%)", 1, "higher", partial(_number, "train_top1", 1.0)
    ),
    "test_loss": Metric("test loss", 3, "lower", partial(_number, "test_loss", 1.0)),
    "train_loss": Metric("training loss", 3, "lower", partial(_number, "train_loss", 1.0)),
    "params_m": Metric(
        "parameters (millions)", 1, "", partial(_number, "params", 1e6), learned=False
    ),
    "macs_g": Metric(
        "multiply-adds (billions)", 2, "", partial(_number, "macs", 1e9), learned=False
    ),
    "images_per_second": Metric(
        "training images per second",
        0,
        "higher",
        partial(_number, "images_per_second", 1.0),
        hardware=True,
        learned=False,
    ),
    "steps_per_second": Metric(
        "training steps per second", 2, "higher", _steps_per_second, hardware=True, learned=False
    ),
    "peak_memory_gb": Metric(
        "peak memory (GB)",
        2,
        "lower",
        partial(_number, "peak_memory", 1e9),
        hardware=True,
        learned=False,
    ),
    "bn_ratio_mean": Metric("share of BN in the means of SN", 2, "", partial(_ratio, "mean.bn")),
    "bn_ratio_var": Metric("share of BN in the variances of SN", 2, "", partial(_ratio, "var.bn")),
}
