"""An exponential moving average of a network: what is evaluated instead of it.

    average <- d * average + (1 - d) * network,    d = min(decay, (1 + i) / (10 + i)) after step i

weights and running statistics alike, as EfficientNet's released code does. It begins with the
network as it was initialized.
"""

from copy import deepcopy
from itertools import chain

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average(nn.Module):
    """The average of `network`, a network itself."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.network = deepcopy(network).requires_grad_(False)

    def update(self, network: nn.Module, step: int) -> None:
        """Move towards `network` as it is after optimizer step `step`, the first being 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(_floats(self.network), _floats(network), step)


def _floats(network: nn.Module) -> list[Tensor]:
    everything = chain(network.parameters(), network.buffers())
    return [each.detach() for each in everything if each.is_floating_point()]
