"""Which image which worker sees in which step, and where the chunks of an epoch end.

Shape letters: K steps of a chunk, A forward passes of a step, N images of a pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from normbench.config.plan import Plan
from normbench.data.counter_rng import permutation
from normbench.data.skew import divide


@dataclass(frozen=True)
class WorkerSampler:
    """The images of every step: one permutation an epoch, drawn from (seed, epoch).

    Image k of a global batch belongs to worker k mod W. Images that do not fill a global batch are
    left out of that epoch. With `skew` each worker has images of its own
    (`normbench.data.skew.divide`), which it sees in another order in every epoch.
    """

    images: int  # of the training split
    global_batch: int  # images of an optimizer step
    plan: Plan
    seed: int
    labels: Tensor | None = field(default=None, compare=False)  # (images,), needed for `skew`
    skew: float | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.images // self.global_batch

    def global_batches(self, epoch: int) -> Tensor:
        """Return the indices (steps, global batch) of the images of `epoch`."""
        order = permutation(self.seed, epoch, self.images)
        if self.skew is not None:
            order = self._order_by_worker(order)
        return order[: self.steps_per_epoch * self.global_batch].view(-1, self.global_batch)

    def _order_by_worker(self, order: Tensor) -> Tensor:
        """Return the indices that `order` has, element k of worker k mod W, N // W of each."""
        places = order.argsort()[self._of_workers]  # (W, images of a worker)
        by_worker = self._of_workers.gather(1, places.argsort(1))
        return by_worker.T.flatten()

    @cached_property
    def _of_workers(self) -> Tensor:
        assert self.labels is not None and self.skew is not None
        return divide(self.labels, self.plan.workers, self.skew, self.seed)

    def select_device(self, steps: Tensor, device: int) -> Tensor:
        """Select what `device` takes of each step: (K, global batch, ...) -> (K, A, N, ...)."""
        shares = [self.plan.share(device, index) for index in range(self.plan.accumulation)]
        return torch.stack([steps[:, share] for share in shares], dim=1)


@dataclass(frozen=True)
class Chunking:
    """Division of a run into chunks.

    A chunk ends with the epoch, and at every step at which a record of the curve is due.
    """

    steps: int  # optimizer steps of the run
    chunk: int  # the most steps of a chunk
    log_every: int  # steps between two records within an epoch

    def split_epoch(self, epoch: int, steps_per_epoch: int, start: int = 0) -> Iterator[slice]:
        """Yield the steps of each chunk from `start` on, counted from the beginning of `epoch`."""
        # `before` and log_every count steps of the run, the others steps of this epoch.
        before = epoch * steps_per_epoch
        end = min(steps_per_epoch, self.steps - before)
        while start < end:
            to_record = self.log_every - (before + start) % self.log_every
            stop = min(start + self.chunk, start + to_record, end)
            yield slice(start, stop)
            start = stop
