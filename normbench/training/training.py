"""A training: an experiment, who listens to it, where it saves and which state it resumes from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from normbench.records.history import CurveRecord
from normbench.records.probes import Record
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.experiment import Experiment
from normbench.training.stop_signals import StopSignals


class Listener:
    """Receiver of what a training reports; this one ignores everything."""

    def on_record(self, record: CurveRecord) -> None:
        """Receive a record of the curve."""

    def on_progress(self, done: int, steps: int, loss: float) -> None:
        """Receive the number of completed steps, of all steps, and the latest loss."""

    def on_probe(self, kind: str, records: Sequence[Record], epoch: int) -> None:
        """Receive the records that a probe of `kind` has measured after `epoch`."""

    def on_picture(self, picture: Tensor) -> None:
        """Receive a picture (3, H, W) uint8 of predictions beside their targets."""

    def on_test_hits(self, hits: Sequence[bool]) -> None:
        """Receive for each test image whether the trained network classifies it correctly."""


@dataclass(frozen=True)
class Training:
    """An experiment to train, and what happens around it."""

    experiment: Experiment
    listener: Listener = field(default_factory=Listener)
    checkpoints: Checkpoints | None = None  # None: no state is saved
    # Of this training or of another one, from which it continues; None: from scratch.
    state: State | None = None
    stop_signals: StopSignals = field(default_factory=StopSignals)
