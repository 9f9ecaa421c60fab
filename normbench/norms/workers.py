"""Workers that share a forward pass: each computes statistics over its own images.

Image k of a global batch belongs to worker k mod W, the order of torch's DistributedSampler. In
NCHW the images of the W workers are then adjacent, and separating them is a view: (N, C, H, W') is
(N/W, W*C, H, W').
"""

from torch import nn


def set_workers(module: nn.Module, workers: int) -> None:
    """Set how many workers share a forward pass, in every batch-dependent layer of `module`.

    Raises:
        ValueError: `workers` is below 1.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: a forward pass has at least one worker")
    for layer in module.modules():
        if isinstance(layer, PerWorker):
            layer.workers = workers


class PerWorker:
    """Mixin for layers that compute statistics over several images in training."""

    batch_independent = False
    workers: int = 1

    def sets(self, images: int) -> int:  # noqa: ARG002 (subclasses divide further)
        """Return the number of sets that share statistics; image k belongs to set k mod sets."""
        return self.workers
