"""Running statistics: what training sees, kept for evaluation.

Each training step moves them towards its own by `momentum`, the weight of the *new* value:

    running <- (1 - momentum) * running + momentum * mean over the workers of theirs

so that no worker's statistics count more than another's, however workers are laid on devices.

In evaluation an image may count in its own statistics with a weight of its own, which
`normbench.norms.inference` sets. The paper's variance, alpha * E[x_i^2] + (1 - alpha) * m_{x^2} -
mean^2 with m_{x^2} = v + m^2, has a form here that is never negative.
"""

import torch
from torch import Tensor, nn

from normbench.norms.layer import NormAct
from normbench.norms.moments import Moments, of_groups, over_channels


class Running(NormAct):
    """A layer with running statistics per channel."""

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    example_weight: float | None = 0.0

    def keep(self, channels: int, momentum: float, *, mean: bool = True) -> None:
        """Start with mean 0, if one is kept, and variance 1."""
        self.momentum = momentum
        if mean:
            self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def track(self, **statistics: Tensor) -> None:
        """Move the running `mean` or `var` towards those (W, C) of the workers of a step."""
        with torch.no_grad():
            for name, statistic in statistics.items():
                buffer = self.get_buffer(f"running_{name}")
                buffer.lerp_(statistic.mean(0).to(buffer.dtype), self.momentum)


def weighed(own: Moments, running: Moments, weight: float) -> Moments:
    """Statistics (N, C) of images that count with `weight` beside the `running` ones (C,)."""
    (mean, var), (m, v) = own, running
    mixed = (1 - weight) * v + weight * var + weight * (1 - weight) * (mean - m).square()
    return (1 - weight) * m + weight * mean, mixed


def mixed(layer: nn.Module, x: Tensor, groups: int, weight: float) -> Moments:
    """Those (N, G) of groups of channels of `x`, weighed beside what `layer` keeps of channels."""
    return weighed(of_groups(x, groups), over_channels(*kept_moments(layer), groups), weight)


def kept_moments(layer: nn.Module) -> Moments:
    """The running mean and variance (C,) of a layer."""
    return layer.get_buffer("running_mean"), layer.get_buffer("running_var")
