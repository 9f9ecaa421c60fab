"""Levels of regularization beyond weight decay."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Regularization:
    """What is asked of the loss.

    Args:
        label_smoothing: share of the target that is spread evenly over all classes.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing}: it is from 0 to below 1")
