"""A network that is looked at while it is trained.

Before the training and after every few epochs the same images go through it, all of them one
worker's, and what is seen becomes lines of `normbench.run_files` and a few means for the curve.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from torch import Tensor, nn

from normbench.measurements.summary_lines import LINES
from normbench.norms.switchable import MEMBERS
from normbench.run_files import TRAINING_PROBES, Record

Seen = Callable[[str, Sequence[Record], int], None]
Means = dict[str, float]


class Watch:
    """Looks at a network.

    Args:
        kinds: of `IN_TRAINING`.
        every: epochs between two looks.
        network: a name for the lines.
        seen: takes the kind, the lines and the epoch of each look.
    """

    def __init__(self, kinds: Sequence[str], every: int, network: str, seen: Seen) -> None:
        self.kinds, self.every, self.network, self.seen = list(kinds), every, network, seen

    def due(self, epoch: int, *, last: bool) -> bool:
        """Whether it is time for a look."""
        return bool(self.kinds) and (last or epoch % self.every == 0)

    def look(self, network: nn.Module, images: Tensor, epoch: int) -> Means:
        """What is seen after `epoch` in images (N, C, H, W), as means for the curve.

        A kind that this network has nothing of is left out from then on, and the log says why.
        """
        found: Means = {}
        for kind in [*self.kinds]:
            try:
                lines = LINES[kind](network, images, "batch")
            except Exception as error:  # whatever it is, a look is no reason to end a training
                reason = str(error).partition("\n")[0]
                print(f"probe.kinds={kind}: nothing to see here: {reason}", flush=True)
                self.kinds.remove(kind)
                continue
            self.seen(
                kind, [{"network": self.network, "epoch": epoch} | each for each in lines], epoch
            )
            found |= _means(kind, lines)
        return found


def _means(kind: str, lines: Sequence[Record]) -> Means:
    """Means over layers; of signal propagation over blocks."""
    if kind == "ratios":
        return {
            f"ratio_{of}_{member}": fmean(x[member] for x in lines if x["of"] == of)
            for of in ("mean", "var")
            for member in MEMBERS
        }
    return {
        name: fmean(line[name.removeprefix(f"{kind}_")] for line in lines)
        for name in TRAINING_PROBES[kind]
    }
