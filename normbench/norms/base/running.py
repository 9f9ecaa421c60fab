"""Running statistics: what training sees, kept for evaluation.

Each training step moves them towards its own by `momentum`, the weight of the *new* value:

    running <- (1 - momentum) * running + momentum * mean over the workers of theirs

so that all workers count the same, however they are laid on devices. Where workers share neither a
forward pass nor a device, `NetworkStatistics` averages the statistics that each has moved.

In evaluation an image may count in its own statistics with a weight of its own, which
`normbench.norms.inference` sets. The paper's variance, alpha * E[x_i^2] + (1 - alpha) * m_{x^2} -
mean^2 with m_{x^2} = v + m^2, has a form here that is never negative.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from normbench.norms.base.layer import NormAct
from normbench.norms.base.moments import Moments, group_moments, merge_channels


class RunningStatistics(NormAct):
    """A layer with running statistics per channel."""

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    example_weight: float | None = 0.0
    #: Training reads the running statistics, so workers on other devices must know them every step.
    read_in_training: bool = False

    def register_running(self, channels: int, momentum: float, *, mean: bool = True) -> None:
        """Start with mean 0, if one is kept, and variance 1."""
        self.momentum = momentum
        if mean:
            self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def track(self, **statistics: Tensor) -> None:
        """Move the running `mean` or `var` towards those (W, C) of the workers of a step."""
        if self.recomputing:
            return
        with torch.no_grad():
            for name, statistic in statistics.items():
                buffer = self.get_buffer(f"running_{name}")
                # And not lerp_, which vmap knows only seed by seed.
                buffer.copy_(buffer.lerp(statistic.mean(0).to(buffer.dtype), self.momentum))

    def linear_statistics(self) -> list[Tensor]:
        """What moves by `momentum` in a straight line, so that means of it are what is meant."""
        return _buffers(self)

    def load_linear_statistics(self, values: Sequence[Tensor]) -> None:
        """Take `values`, such as `linear_statistics` gives, for its own."""
        _copy(values, _buffers(self))


class NetworkStatistics:
    """All running statistics of a network, as one vector.

    Passes of a step begin with the same statistics, and so do devices; each moves them towards
    those of its own workers. As the moves are linear, the mean of what they end with has moved
    towards the mean of all workers.
    """

    def __init__(self, network: nn.Module) -> None:
        self.layers = [layer for layer in network.modules() if _buffers(layer)]
        self.read_in_training = any(getattr(each, "read_in_training", 0) for each in self.layers)

    def __bool__(self) -> bool:
        return bool(self.layers)

    @torch.no_grad()
    def read(self) -> Tensor:
        """A copy, in one dimension."""
        # The layers are asked anew each time: some replace their buffers.
        return torch.cat([each.flatten() for layer in self.layers for each in _moved(layer)])

    def passes(self, number: int) -> Iterator[int]:
        """Passes of a step by number: all begin with what is there now, and their mean stays."""
        if number == 1 or not self:
            yield from range(number)
            return
        before = self.read()
        total = torch.zeros_like(before)
        for turn in range(number):
            if turn:
                self.write(before)  # no pass sees what another has moved
            yield turn
            total += self.read()
        self.write(total / number)

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Take `values`, such as `read` gives, for all of them."""
        rest = values
        for layer in self.layers:
            parts = []
            for each in _moved(layer):
                parts.append(rest[: each.numel()].view_as(each))
                rest = rest[each.numel() :]
            if isinstance(layer, RunningStatistics):
                layer.load_linear_statistics(parts)
            else:
                _copy(parts, _buffers(layer))


def _moved(layer: nn.Module) -> list[Tensor]:
    return layer.linear_statistics() if isinstance(layer, RunningStatistics) else _buffers(layer)


def _buffers(layer: nn.Module) -> list[Tensor]:
    """Of our layers and of batch normalizations of torch and timm alike."""
    found = (getattr(layer, name, None) for name in ("running_mean", "running_var"))
    return [each for each in found if isinstance(each, Tensor)]


def _copy(values: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
    for value, buffer in zip(values, buffers, strict=True):
        buffer.copy_(value)


def blend_moments(own: Moments, running: Moments, weight: float) -> Moments:
    """Moments (N, C) of images weighted by `weight`, plus `running` ones (C,) by 1 - weight."""
    (mean, var), (m, v) = own, running
    mixed = (1 - weight) * v + weight * var + weight * (1 - weight) * (mean - m).square()
    return (1 - weight) * m + weight * mean, mixed


def weighted_moments(layer: nn.Module, x: Tensor, groups: int, weight: float) -> Moments:
    """Those (N, G) of groups of channels of `x`, weighed beside what `layer` keeps of channels."""
    return blend_moments(
        group_moments(x, groups), merge_channels(*running_moments(layer), groups), weight
    )


def running_moments(layer: nn.Module) -> Moments:
    """The running mean and variance (C,) of a layer."""
    return layer.get_buffer("running_mean"), layer.get_buffer("running_var")
