"""Dropout and stochastic depth that one image meets alike on whatever device, in any plan.

    Dropout             z = m * x / (1 - rate),   m of each value 0 with probability `rate`
    StochasticDepth     z = m * x                 m of each image 0 with probability `rate`;
                        z = m * x / (1 - rate)    with `rescale`

in training; in evaluation both do nothing. Which values are dropped is a hash of (seed, epoch,
image, layer) once `set_draws` has said which images a forward pass holds; until then torch's own
random numbers decide, as in torch's modules.

Elsewhere: timm's DropPath rescales, as EfficientNet's code does; normalizer-free networks do not
(Brock, De and Smith 2021, released code), and neither does `rescale=False`.
"""

import torch
from torch import Tensor, nn

from normbench.data.counter_rng import Draws, uniform
from normbench.norms.base.layer import cast_like


class RandomDrop(nn.Module):
    """What both have in common.

    Args:
        rate: probability to be dropped.

    Raises:
        ValueError: `rate` is no probability below 1.
    """

    keys: Tensor | None = None  # of the images of a forward pass

    def __init__(self, rate: float) -> None:
        super().__init__()
        require_rates(rate=rate)
        self.rate = rate

    def keep_mask(self, x: Tensor, *shape: int) -> Tensor:
        """A mask (N, *shape) of ones and zeros for the images of `x`.

        Raises:
            ValueError: the images that were announced are not as many as there are.
        """
        if self.keys is None:
            return (torch.rand(len(x), *shape, device=x.device) >= self.rate).to(x.dtype)
        if len(self.keys) != len(x):
            raise ValueError(f"{len(self.keys)} images were announced, not {len(x)}")
        return (uniform(self.keys, *shape).view(len(x), *shape) >= self.rate).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.rate}"


class Dropout(RandomDrop):
    """Single values are dropped."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        return cast_like(x * self.keep_mask(x, *x.shape[1:]) / (1 - self.rate), x)


class StochasticDepth(RandomDrop):
    """The residual branch of an image is dropped as a whole (Huang et al. 2016).

    Args:
        rate: probability to be dropped.
        rescale: divide what is kept by its probability.
    """

    def __init__(self, rate: float, *, rescale: bool = False) -> None:
        super().__init__(rate)
        self.rescale = rescale

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        kept = self.keep_mask(x, *(1 for _ in x.shape[1:]))
        return x * kept / (1 - self.rate) if self.rescale else x * kept

    def extra_repr(self) -> str:
        return f"{self.rate}, rescale={self.rescale}"


def drop_layers(network: nn.Module) -> list[RandomDrop]:
    """The layers of `network` that drop something, in the order in which they are registered."""
    return [layer for layer in network.modules() if isinstance(layer, RandomDrop) and layer.rate]


def set_draws(layers: list[RandomDrop], draws: Draws | None) -> None:
    """Tell `layers`, all that `drop_layers` found, which images the next forward pass holds."""
    for number, layer in enumerate(layers):
        # A tensor: of numbers that change a compiled network would be compiled anew.
        layer.keys = None if draws is None else draws.keys(f"dropped {number}")


def set_rescale(network: nn.Module, rescale: bool) -> None:
    """Have all stochastic depth of `network` divide what it keeps by its probability, or not."""
    for layer in network.modules():
        if isinstance(layer, StochasticDepth):
            layer.rescale = rescale


def linear_rates(rate: float, blocks: int) -> list[float]:
    """Rates of stochastic depth that grow with depth from 0, as rate * index / blocks."""
    return [rate * index / blocks for index in range(blocks)]


def require_rates(**options: float) -> None:
    """Raise ValueError for the first of `options` that is no probability below 1."""
    for name, value in options.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value}: a rate is from 0 to below 1")
