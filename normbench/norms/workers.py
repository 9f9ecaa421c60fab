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
    """Mixed into layers that compute statistics per worker while training."""

    workers: int = 1

    def fold(self, x: Tensor) -> Tensor:
        """(N, C, H, W') -> (N/W, W*C, H, W'): a channel of its own for each worker's channel.

        Raises:
            ValueError: the images do not fall evenly on the workers.
        """
        images, channels = x.shape[:2]
        if images % self.workers:
            raise ValueError(f"{images} images do not fall evenly on {self.workers} workers")
        # A view in NCHW; in channels_last no such view exists, and reshape copies.
        return x.reshape(images // self.workers, self.workers * channels, *x.shape[2:])
