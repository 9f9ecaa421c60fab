"""Batch normalization (Ioffe and Szegedy 2015, algorithms 1 and 2), per worker.

    training    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var over the images of one worker and all positions, axes (n, h, w), for each
channel. Each step moves the running statistics towards the batch's by `momentum`, the weight of
the *new* value; running_var takes the unbiased variance, as torch does (the paper's E[x] * m/(m-1),
algorithm 2 line 10). With several workers the running statistics are the mean over the workers.

    evaluation  the running statistics take the place of mean and var: a fixed affine map
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.errors import Impossible
from normbench.norms.layer import NormAct, Normalizer, per_channel, require_positive
from normbench.norms.workers import PerWorker

Pair = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class BatchNorm(Normalizer):
    """Statistics over the images of a worker.

    Args:
        momentum: weight of a step's statistics in the running ones.
        eps: added to the variance, inside the square root.
    """

    momentum: float = 0.1
    eps: float = 1e-5
    batch_independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive(eps=self.eps)
        if not 0 < self.momentum <= 1:
            raise ValueError(
                f"momentum={self.momentum}: the new value's weight is above 0, up to 1"
            )

    def layer(self, channels: int, act: str | None = "relu") -> "BatchNormAct":
        return BatchNormAct(channels, act, self.momentum, self.eps)


class BatchNormAct(PerWorker, NormAct):
    """The layer; with one worker bit for bit `torch.nn.BatchNorm2d` and the activation."""

    batch_independent = False
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, act: str | None, momentum: float, eps: float) -> None:
        super().__init__(channels, act)
        self.momentum = momentum
        self.eps = eps
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self._normalize(x, (self.weight, self.bias), track=True))

    def normalize(self, x: Tensor) -> Tensor:
        """The normalized input, before gain, shift and activation; moves no running statistics."""
        return self._normalize(x, (None, None), track=False)

    def _normalize(self, x: Tensor, affine: Pair, *, track: bool) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if not self.training:
            return F.batch_norm(x, mean, var, *affine, eps=self.eps)
        self._require_values(x)
        # (C,) -> (W*C,), a copy for each worker; gain and shift are shared, so theirs are repeats.
        running = self._repeat((mean, var)) if track else (None, None)
        weight, bias = self._repeat(affine)
        # (N/W, W*C, H, W'): to batch_norm each worker's channel is a channel of its own.
        y = F.batch_norm(self.fold(x), *running, weight, bias, True, self.momentum, self.eps)
        for buffer, copies in zip((mean, var), running, strict=True):
            if copies is not None:
                # Each copy has moved towards one worker's statistics; moving is linear, so the
                # mean of the copies has moved towards the mean of the workers'.
                # (W*C,) -> (W, C) -> (C,)
                buffer.copy_(copies.view(self.workers, -1).mean(0))
        return y.reshape(x.shape)

    def _repeat(self, pair: Pair) -> Pair:
        first, second = (None if each is None else each.repeat(self.workers) for each in pair)
        return first, second

    def _require_values(self, x: Tensor) -> None:
        images, _, height, width = x.shape
        if images // self.workers * height * width == 1:
            raise Impossible(
                "batch normalization of a single value per channel: a worker has 1 image, and the "
                "map is 1x1 there; batch=2 or a larger map works"
            )

    def reference(self, x: Tensor) -> Tensor:
        x = x.double()
        y = torch.empty_like(x)
        for worker in range(self.workers if self.training else 1):
            own = slice(worker, None, self.workers) if self.training else slice(None)
            mean, var = self._moments(x[own])
            y[own] = (x[own] - per_channel(mean)) / torch.sqrt(per_channel(var) + self.eps)
        return self.activation(self.affine(y))

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.training:
            return self.running_mean.double(), self.running_var.double()
        mean = x.mean(dim=(0, 2, 3))
        return mean, ((x - per_channel(mean)) ** 2).mean(dim=(0, 2, 3))
