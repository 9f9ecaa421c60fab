"""Statistics over all images of an optimizer step, on several devices and in several passes.

Devices merge their moments in the layer. For several passes on a device,
`normbench.models.exact_accumulation` computes the moments of all passes first and assigns them to
`shared_moments`.
"""

from typing import Any, TypeGuard

from torch import Tensor, nn

from normbench.norms.base.devices import count_devices, merge_devices
from normbench.norms.base.moments import Moments


def is_synchronized(layer: nn.Module | None) -> TypeGuard[Any]:
    """Return True for a layer with statistics of all images of an optimizer step."""
    return isinstance(layer, WholeStep) and layer.whole_step


def has_synchronized_statistics(network: nn.Module) -> bool:
    """Return True if a layer of `network` has statistics of all images of an optimizer step."""
    return any(map(is_synchronized, network.modules()))


class WholeStep:
    """Mixin for layers whose statistics may be those of all images of an optimizer step."""

    whole_step: bool
    #: Moments (1, C) of the images of all passes; None: the layer computes them from its input.
    shared_moments: Moments | None = None

    def pass_moments(self, x: Tensor) -> Moments:
        """Return mean and variance (1, C) of the images of one pass on one device."""
        raise NotImplementedError

    def track_step(self, moments: Moments, values: int) -> None:
        """Move the running statistics towards moments (1, C) of `values` values per channel."""
        raise NotImplementedError

    def step_moments(self, x: Tensor) -> Moments:
        """Return mean and variance (1, C) of all images of the step."""
        if self.shared_moments is not None:
            return self.shared_moments
        return merge_devices(*self.pass_moments(x))

    @property
    def holds_whole_step(self) -> bool:
        """True if the images of this forward pass are all images of the step."""
        return self.shared_moments is None and count_devices() == 1
