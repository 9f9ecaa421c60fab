"""Workers that share a forward pass: whose statistics are computed together.

Image k of a global batch belongs to worker k mod W, the order of torch's DistributedSampler. So
in NCHW the images of the W workers lie beside each other, and seeing them apart costs no copy:
(N, C, H, W') is, row by row, (N/W, W*C, H, W').
"""

from torch import Tensor, nn


def set_workers(module: nn.Module, workers: int) -> None:
    """Tell every batch-dependent layer of `module` how many workers share a forward pass.

    Raises:
        ValueError: `workers` is below 1.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: a forward pass has at least one worker")
    for layer in module.modules():
        if isinstance(layer, PerWorker):
            layer.workers = workers


class PerWorker:
    """Mixed into layers whose statistics in training are those of several images."""

    workers: int = 1

    def sets(self, images: int) -> int:  # noqa: ARG002 (some divide a worker's images again)
        """How many sets of images have statistics of their own; image k is of set k mod sets."""
        return self.workers

    def fold(self, x: Tensor) -> Tensor:
        """(N, C, H, W') -> (N/S, S*C, H, W'): a channel of its own for each set's channel.

        Raises:
            ValueError: the images do not fall evenly on the sets.
        """
        images, channels = x.shape[:2]
        sets = self.sets(images)
        if images % sets:
            raise ValueError(f"{images} images do not fall evenly on {sets} workers")
        # A view in NCHW; in channels_last no such view exists, and reshape copies.
        return x.reshape(images // sets, sets * channels, *x.shape[2:])
