"""Layers that draw random numbers in training, for each image its own, whatever the plan.

Once `set_draws` has announced the images of the next forward pass, a layer's numbers are a hash of
(seed, epoch, image, layer); without it they come from torch's generator.
"""

from torch import Tensor, nn

from normbench.data.counter_rng import Draws


class RandomLayer(nn.Module):
    """A layer that draws random numbers in training."""

    keys: Tensor | None = None  # one per image of the forward pass

    @property
    def is_random(self) -> bool:
        """True if its options let it draw at all."""
        return True


def random_layers(network: nn.Module) -> list[RandomLayer]:
    """Return the layers of `network` that draw random numbers, in order of registration."""
    return [
        layer for layer in network.modules() if isinstance(layer, RandomLayer) and layer.is_random
    ]


def set_draws(layers: list[RandomLayer], draws: Draws | None) -> None:
    """Announce the images of the next forward pass to `layers`, the result of `random_layers`."""
    for number, layer in enumerate(layers):
        # A tensor, because torch.compile would recompile for every new number.
        layer.keys = None if draws is None else draws.keys(f"dropped {number}")
