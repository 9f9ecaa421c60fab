"""Probes of a network while it trains.

Before training and after every few epochs the same images, as one worker, pass through the network.
Each kind of probe leaves records (`normbench.run_files`) and a few means for the training curve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from normbench.measurements import measurement
from normbench.records.probes import Record

SaveRecords = Callable[[str, Sequence[Record], int], None]


@dataclass
class TrainingProbes:
    """Probes of one training."""

    kinds: Sequence[str]  # files of conf/probe/
    every: int  # epochs between two measurements
    network: str  # its name in the records
    save: SaveRecords  # takes kind, records and epoch of each measurement

    def due(self, epoch: int, *, last: bool) -> bool:
        """Return True if `epoch` is to be measured; `last`: the training ends there."""
        return bool(self.kinds) and (last or epoch % self.every == 0)

    def measure(self, network: nn.Module, images: Tensor, epoch: int) -> dict[str, float]:
        """Measure `network` on images (N, C, H, W) after `epoch`; return means for the curve.

        A kind that fails in this network is reported in the log and skipped from then on.
        """
        means: dict[str, float] = {}
        for kind in self.kinds:
            try:
                records = measurement(kind).measure(network, images, "batch")
            except Exception as error:  # no failure of a probe may end a training
                reason = str(error).partition("\n")[0]
                print(f"probe.kinds={kind} is skipped: {reason}", flush=True)
                self.kinds = [other for other in self.kinds if other != kind]
                continue
            columns = {"network": self.network, "epoch": epoch}
            self.save(kind, [columns | record for record in records], epoch)
            means |= measurement(kind).curve_means(records)
        return means


def curve_columns(kinds: Sequence[str]) -> list[str]:
    """Return the names of the means that probes of `kinds` add to a training curve."""
    return [name for kind in kinds for name in measurement(kind).CURVE]
