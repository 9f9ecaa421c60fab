"""A network that is looked at, and afterwards is what it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from normbench.models.layer_types import is_batch_norm
from normbench.norms.base.layer import NormAct
from normbench.norms.workers import PerWorker

Statistics = Literal["batch", "running"]


@contextmanager
def observed(network: nn.Module, statistics: Statistics = "batch") -> Iterator[None]:
    """No gradients, no dropout; afterwards modes, running statistics and workers are as before.

    Args:
        network: to be looked at.
        statistics: those of the images at hand, all of them one worker's, as in training; or the
            running ones, as in evaluation. Normalizers without batch statistics know no difference.
    """
    modes = {module: module.training for module in network.modules()}
    workers = {m: m.workers for m in network.modules() if isinstance(m, PerWorker)}
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    try:
        network.eval()
        for module in network.modules():
            if isinstance(module, NormAct) or is_batch_norm(module):
                module.training = statistics == "batch"
            if isinstance(module, PerWorker):
                module.workers = 1
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        for layer, number in workers.items():
            layer.workers = number
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(buffers[name])
