"""Running statistics, which training updates and evaluation reads.

Each training step moves them by `momentum`, the weight of the *new* value:

    running <- (1 - momentum) * running + momentum * (mean of the workers' statistics)

so that all workers count the same, however they are laid on devices. Where workers share neither a
forward pass nor a device, `NetworkStatistics` averages the statistics that each has moved.

In evaluation an image may enter its own statistics with a weight, set by
`normbench.norms.inference`. The paper's variance, alpha * E[x_i^2] + (1 - alpha) * m_{x^2} - mean^2
with m_{x^2} = v + m^2, is computed in a form that is never negative.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normbench.norms.base.layer import NormAct
from normbench.norms.base.moments import (
    Moments,
    channel_moments,
    group_moments,
    merge_channels,
    normalize_by,
)
from normbench.norms.base.tensors import upcast


class RunningStatistics(NormAct):
    """A layer with running statistics per channel."""

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    example_weight: float = 0.0
    #: Training does not move the running statistics.
    keeps_statistics: bool = False
    #: The statistics are those of the layer's input; if not, of values that it computes from it.
    of_input: bool = True
    #: Training reads the running statistics, so devices average them at every step.
    read_in_training: bool = False

    def register_running(self, channels: int, momentum: float, *, mean: bool = True) -> None:
        """Register a running variance of 1 and, if `mean`, a running mean of 0."""
        self.momentum = momentum
        if mean:
            self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def image_moments(self, x: Tensor) -> Moments:
        """Return mean and variance (N, C) of each channel of each image, for running statistics."""
        return channel_moments(x)

    def track(self, **statistics: Tensor) -> None:
        """Move running statistics, by name, towards those (W, C) of a step's workers."""
        with torch.no_grad():
            for name, statistic in statistics.items():
                buffer = self.get_buffer(f"running_{name}")
                # Not lerp_, which vmap runs seed by seed.
                buffer.copy_(buffer.lerp(statistic.mean(0).to(buffer.dtype), self.momentum))

    def linear_statistics(self) -> list[Tensor]:
        """Return the statistics (C,) that move linearly by `momentum` and so may be averaged."""
        return _running_buffers(self)

    def load_linear_statistics(self, values: Sequence[Tensor]) -> None:
        """Replace the running statistics by `values`, in the form of `linear_statistics`."""
        _copy_into(_running_buffers(self), values)


class NetworkStatistics:
    """All running statistics of a network, as one vector.

    All passes of a step and all devices begin with the same statistics; each moves them towards
    those of its workers. The moves are linear, so the mean of the results has moved towards the
    mean of all workers.
    """

    def __init__(self, network: nn.Module) -> None:
        self.layers = [layer for layer in network.modules() if _running_buffers(layer)]
        self.read_in_training = any(getattr(each, "read_in_training", 0) for each in self.layers)

    def __bool__(self) -> bool:
        return bool(self.layers)

    @torch.no_grad()
    def read(self) -> Tensor:
        """Return a copy in one dimension."""
        # Look the buffers up each time: some layers replace them.
        return torch.cat([each for layer in self.layers for each in _linear_statistics(layer)])

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Replace all running statistics by `values`, in the form of `read`."""
        for layer in self.layers:
            sizes = [len(each) for each in _linear_statistics(layer)]
            parts, values = values[: sum(sizes)].split(sizes), values[sum(sizes) :]
            if isinstance(layer, RunningStatistics):
                layer.load_linear_statistics(parts)
            else:
                _copy_into(_running_buffers(layer), parts)

    def passes(self, number: int) -> Iterator[int]:
        """Yield the passes of a step, each from the same statistics; average these at the end."""
        if number == 1 or not self:
            yield from range(number)
            return
        before = self.read()
        total = torch.zeros_like(before)
        for pass_number in range(number):
            if pass_number:
                self.write(before)  # every pass begins with the same
            yield pass_number
            total += self.read()
        self.write(total / number)  # all passes have equally many workers


def _linear_statistics(layer: nn.Module) -> list[Tensor]:
    if isinstance(layer, RunningStatistics):
        return layer.linear_statistics()
    return _running_buffers(layer)


def _running_buffers(layer: nn.Module) -> list[Tensor]:
    """Return the running statistics of a layer, ours or a batch norm of torch or timm.

    Frozen ones are none that a training moves.
    """
    if getattr(layer, "keeps_statistics", False):
        return []
    buffers = layer.named_buffers(recurse=False)
    return [buffer for name, buffer in buffers if name.startswith("running_")]


def _copy_into(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


def blend_moments(moments: Moments, running: Moments, weight: float) -> Moments:
    """Mix `moments` (N, C) of images by `weight` with `running` ones (C,) by 1 - weight."""
    (mean, var), (m, v) = moments, running
    blended = (1 - weight) * v + weight * var + weight * (1 - weight) * (mean - m).square()
    return (1 - weight) * m + weight * mean, blended


def normalize_weighted(
    layer: Any, x: Tensor, groups: int, weight: float, running: Moments | None = None
) -> Tensor:
    """Normalize `x` by moments (N, G) of its groups, mixed by `weight` with running ones (C,).

    The running ones are those of `layer` unless `running` replaces them.
    """
    x = upcast(x)
    mean, var = merge_channels(*(running or running_moments(layer)), groups)
    return normalize_by(x, blend_moments(group_moments(x, groups), (mean, var), weight), layer.eps)


def running_moments(layer: nn.Module) -> Moments:
    """Return the running mean and variance (C,) of a layer."""
    return layer.get_buffer("running_mean"), layer.get_buffer("running_var")
