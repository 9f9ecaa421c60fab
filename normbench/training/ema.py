"""Exponential moving average of a network, which replaces the network in evaluations.

    average <- d * average + (1 - d) * network,    d = min(decay, (1 + i) / (10 + i)) after step i

for weights and running statistics alike, as in EfficientNet's released code (Tan and Le 2019). It
begins with the initialized network. An average over epochs (Proxy Norm, Labatie et al. 2021,
appendix A.1) has a constant decay and begins with the network after the first epoch.
"""

from copy import deepcopy
from itertools import chain

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class MovingAverage(nn.Module):
    """The exponential moving average of `network`; `decay` is d, or its limit.

    With `per_epoch` updates come at the ends of epochs: d is constant, and the first one copies the
    network.
    """

    def __init__(self, network: nn.Module, decay: float, *, per_epoch: bool = False) -> None:
        super().__init__()
        self.decay, self.per_epoch = decay, per_epoch
        self.network = deepcopy(network).requires_grad_(False)

    def update(self, network: nn.Module, number: int) -> None:
        """Move towards `network`; `number` counts the updates from 0."""
        if self.per_epoch:
            decay = self.decay if number else 0.0
        else:
            decay = min(self.decay, (1 + number) / (10 + number))
        get_ema_multi_avg_fn(decay)(_float_tensors(self.network), _float_tensors(network), number)


def _float_tensors(network: nn.Module) -> list[Tensor]:
    tensors = chain(network.parameters(), network.buffers())
    return [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
