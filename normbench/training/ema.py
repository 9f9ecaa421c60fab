"""An exponential moving average of a network: what is evaluated instead of it.

    average <- d * average + (1 - d) * network,    d = min(decay, (1 + i) / (10 + i)) after step i

weights and running statistics alike, as EfficientNet's released code does. It begins with the
network as it was initialized. An average over epochs (Proxy Norm, appendix A.1) keeps its decay and
begins with the network after the first of them.
"""

from copy import deepcopy
from itertools import chain

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average(nn.Module):
    """The average of `network`, a network itself.

    Args:
        network: what is averaged.
        decay: the largest.
        rises: to it, from a small one on; without that the first update takes the network as it is.
    """

    def __init__(self, network: nn.Module, decay: float, *, rises: bool = True) -> None:
        super().__init__()
        self.decay, self.rises = decay, rises
        self.network = deepcopy(network).requires_grad_(False)

    def update(self, network: nn.Module, number: int) -> None:
        """Move towards `network`; the `number` of this update, the first being 0."""
        if self.rises:
            decay = min(self.decay, (1 + number) / (10 + number))
        else:
            decay = self.decay if number else 0.0
        get_ema_multi_avg_fn(decay)(_floats(self.network), _floats(network), number)


def _floats(network: nn.Module) -> list[Tensor]:
    everything = chain(network.parameters(), network.buffers())
    return [each.detach() for each in everything if each.is_floating_point()]
