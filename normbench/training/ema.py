"""Exponential moving average of a network, which replaces the network in evaluations.

    average <- d * average + (1 - d) * network,    d = min(decay, (1 + i) / (10 + i)) after step i

for weights and running statistics alike, as in EfficientNet's released code (Tan and Le 2019);
what a layer has chosen and its progress in the training are those of the network. The average
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
        tensors, others = _split_tensors(self.network)
        current, current_others = _split_tensors(network)
        get_ema_multi_avg_fn(decay)(tensors, current, number)
        for other, value in zip(others, current_others, strict=True):
            other.copy_(value)


def _split_tensors(network: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors to average, and those to copy: a layer's choices and its progress."""
    averaged: list[Tensor] = []
    copied: list[Tensor] = []
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        is_progress = name.rpartition(".")[2] == "progress"
        (averaged if tensor.is_floating_point() and not is_progress else copied).append(
            tensor.detach()
        )
    return averaged, copied
