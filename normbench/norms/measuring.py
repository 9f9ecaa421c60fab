"""Run a network with statistics of the batch or running ones, and leave it as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from normbench.norms.base.layer import NormAct
from normbench.norms.batch import is_batch_norm
from normbench.norms.workers import PerWorker

StatisticsSource = Literal["batch", "running"]


@contextmanager
def measuring(network: nn.Module, statistics: StatisticsSource = "batch") -> Iterator[None]:
    """Run `network` without gradients and dropout; restore modes, buffers and workers at the end.

    Statistics are of the "batch" at hand, as one worker, as in training, or the "running" ones of
    evaluation. Batch-independent normalizers compute the same with both.
    """
    modes = {module: module.training for module in network.modules()}
    workers = {m: m.workers for m in network.modules() if isinstance(m, PerWorker)}
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    try:
        network.eval()
        for module in network.modules():
            if isinstance(module, NormAct) or is_batch_norm(module):
                # Statistics are those of training, but dropout and stochastic depth stay off.
                module.training = statistics == "batch"
            if isinstance(module, PerWorker):
                module.workers = 1
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        for per_worker, number in workers.items():
            per_worker.workers = number
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(buffers[name])
