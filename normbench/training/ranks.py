"""Sums and means over the ranks of a training, one process for each device of a plan."""

from collections.abc import Iterable

import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from normbench.norms.base.running import NetworkStatistics
from normbench.training.metrics import LossAndHits


class Ranks:
    """The processes that train one network; alone, a process computes the same by itself."""

    def __init__(self, module: LightningModule, number: int) -> None:
        # In a tuple, so that torch does not register the module as its own submodule.
        self._module, self.number = (module,), number

    def reduce(self, values: Tensor, how: str = "mean") -> Tensor:
        """Return the mean or sum of `values` over all ranks."""
        reduced: Tensor = self._module[0].trainer.strategy.reduce(values, reduce_op=how)
        return reduced

    def is_any(self, flag: bool) -> bool:
        """Return True if `flag` is set in any rank."""
        return (
            float(self.reduce(torch.tensor(float(flag), device=self._module[0].device), "sum")) > 0
        )

    def gather_steps(
        self, steps: Tensor, *, due: bool, stops: bool
    ) -> tuple[list[LossAndHits], bool, bool]:
        """Return losses and hits (K, 2) of all ranks, and if any is `due` to save or `stops`."""
        # Every rank must save and stop at the same step, whatever its own clock or signal says.
        values = torch.cat([steps.flatten(), steps.new_tensor([float(due), float(stops)])])
        *numbers, saves, stopping = self.reduce(values, "sum").tolist()
        losses = [loss / self.number for loss in numbers[::2]]
        return list(zip(losses, numbers[1::2], strict=True)), saves > 0, stopping > 0

    def average(self, statistics: Iterable[NetworkStatistics]) -> None:
        """Replace running statistics by their mean over all ranks."""
        for each in filter(None, statistics):  # those that there are
            each.write(self.reduce(each.read()))
