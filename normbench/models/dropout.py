"""Dropout and stochastic depth, drawn per image so that no plan changes them.

    Dropout             z = m * x / (1 - rate),   m of each value 0 with probability `rate`
    StochasticDepth     z = m * x                 m of each image 0 with probability `rate`;
                        z = m * x / (1 - rate)    with `rescale`

in training; in evaluation both are the identity. Once `normbench.models.random_layers.set_draws`
has announced the images of the next forward pass, each image has a mask of its own in each layer;
without it, the mask comes from torch's generator, as in torch's modules.

Elsewhere: timm's DropPath rescales, as EfficientNet's code does; normalizer-free networks do not
(Brock, De and Smith 2021, released code), and neither does `rescale=False`.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from normbench.data.counter_rng import uniform
from normbench.models.random_layers import RandomLayer
from normbench.norms.base.layer import cast_like

#: A number from 0 to below 1, as the probability of dropping.
Fraction = Annotated[float, Field(ge=0, lt=1)]


class RandomDrop(RandomLayer):
    """Base of dropout and stochastic depth; `rate` is the probability of dropping."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"rate={rate}: a rate is from 0 to below 1")
        self.rate = rate

    @property
    def is_random(self) -> bool:
        return self.rate > 0

    def keep_mask(self, x: Tensor, *shape: int) -> Tensor:
        """Return a mask (N, *shape) of ones and zeros for the images of `x`.

        N may be a multiple of the number of images, as where attention divides each into windows.

        Raises:
            ValueError: N is no multiple of the number of announced images.
        """
        if self.keys is None:
            return (torch.rand(len(x), *shape, device=x.device) >= self.rate).to(x.dtype)
        parts, rest = divmod(len(x), len(self.keys))
        if rest:
            raise ValueError(f"{len(self.keys)} images were announced, not {len(x)}")
        return (uniform(self.keys, parts, *shape).view(len(x), *shape) >= self.rate).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.rate}"


class Dropout(RandomDrop):
    """Drop single values, or with `whole_maps` whole channels, as torch's Dropout2d."""

    def __init__(self, rate: float, *, whole_maps: bool = False) -> None:
        super().__init__(rate)
        self.whole_maps = whole_maps

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        shape = (x.shape[1], 1, 1) if self.whole_maps else x.shape[1:]
        return cast_like(x * self.keep_mask(x, *shape) / (1 - self.rate), x)


class StochasticDepth(RandomDrop):
    """Drop the whole residual branch of an image (Huang et al. 2016).

    With `rescale` kept branches are divided by their probability.
    """

    def __init__(self, rate: float, *, rescale: bool = False) -> None:
        super().__init__(rate)
        self.rescale = rescale

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        mask = self.keep_mask(x, *(1 for _ in x.shape[1:]))  # (N, 1, 1, 1)
        return x * mask / (1 - self.rate) if self.rescale else x * mask

    def extra_repr(self) -> str:
        return f"{self.rate}, rescale={self.rescale}"


def drop_after(layers: Sequence[nn.Module], rate: float) -> None:
    """Drop values of the outputs of `layers`, each by a dropout of its own.

    Names of parameters stay, so that checkpoints with and without dropout fit each other.
    """
    for layer in layers:
        layer.add_module("dropout", Dropout(rate))
        layer.register_forward_hook(_drop_output)


def _drop_output(layer: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    dropped: Tensor = layer.get_submodule("dropout")(output)
    return dropped


def set_rescale(network: nn.Module, rescale: bool) -> None:
    """Set whether stochastic depth in `network` divides kept branches by their probability."""
    for layer in network.modules():
        if isinstance(layer, StochasticDepth):
            layer.rescale = rescale


def linear_rates(rate: float, blocks: int) -> list[float]:
    """Return rates of stochastic depth that grow linearly from 0: rate * index / blocks."""
    return [rate * index / blocks for index in range(blocks)]
