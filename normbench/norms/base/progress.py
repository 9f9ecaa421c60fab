"""Layers whose training follows a schedule: a buffer `progress`, from 0 to 1.

Until it is set, batch renormalization has 1 (its limits are open) and sparse switchable
normalization 0 (sparsemax).
A run of normbench sets the progress of its layers before every step. In your own loop call

    set_progress(scheduled_layers(network), step / steps)
"""

from collections.abc import Iterable

from torch import Tensor, nn


def scheduled_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of `module` that have a progress."""
    return [
        each for each in module.modules() if isinstance(getattr(each, "progress", None), Tensor)
    ]


def set_progress(layers: Iterable[nn.Module], fraction: float) -> None:
    """Set the progress of the training, from 0 to 1, in `layers`."""
    for layer in layers:
        layer.get_buffer("progress").fill_(fraction)
