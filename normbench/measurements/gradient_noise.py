"""Loss and gradient of a network with statistics of fewer images.

A normalizer with batch statistics computes another function with other numbers of images per
worker. For batches of B images, divided into workers of n images, with g(n) the gradient of their
mean cross-entropy (without label smoothing, mixing and weight decay):

    loss      the mean loss with statistics of n images
    bias      |E g(n) - E g(B)|^2: more workers do not reduce it
    variance  E |g(n) - E g(n)|^2: larger batches reduce it

Expectations are over batches. Squares of expectations are estimated from products of two different
batches, so they are unbiased and can be below 0. McCandlish et al. 2018 (An Empirical Model of
Large-Batch Training, section 2.2) compare |E g|^2 and the variance, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.norms.base.running import NetworkStatistics
from normbench.norms.base.tensors import upcast
from normbench.norms.batch import has_undivided_batch_norm
from normbench.norms.measuring import measuring
from normbench.norms.workers import set_workers

#: In place of the name of a layer: all layers together; parameters that belong to none.
NETWORK, NO_LAYER = "all", "none"


@dataclass(frozen=True)
class GradientNoise:
    """The gradient of one layer, or of all, with `per_worker` images per worker."""

    per_worker: int
    layer: str  # its name, or `NETWORK`
    loss: float  # of the network
    squared_norm: float  # |E g(n)|^2
    bias: float
    variance: float


def gradient_noise(
    network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], per_worker: Sequence[int]
) -> list[GradientNoise]:
    """Return the loss and gradient of `network` for each number of images per worker, and layer.

    `batches` yields images (B, C, H, W) and classes (B,), at least twice; all of `per_worker`
    divide B. Dropout is off; the network does not change.

    Raises:
        ValueError: there are fewer than two batches, one of `per_worker` does not divide B, or a
            layer never has the statistics of a worker.
    """
    sizes = sorted({*per_worker})
    names = {name: name.rpartition(".")[0] or NO_LAYER for name, p in network.named_parameters()
             if p.requires_grad}  # fmt: skip
    parameters = [network.get_parameter(name) for name in names]
    if has_undivided_batch_norm(network):
        raise ValueError(
            "a batch normalization of torch or timm takes the statistics of all images, not of a "
            "worker's"
        )
    layers = [*names.values()]
    loss: dict[int, float] = defaultdict(float)
    gradients = {n: _Moments(parameters) for n in sizes}
    differences = {n: _Moments(parameters) for n in sizes}
    statistics = NetworkStatistics(network)
    before = statistics.read() if statistics else None
    number = 0
    with measuring(network), torch.enable_grad():
        for images, labels in batches:
            number += 1
            if undivided := [n for n in sizes if len(images) % n]:
                raise ValueError(
                    f"per_worker={undivided[0]} does not divide the {len(images)} images of a batch"
                )
            of_size = {}
            for n in {*sizes, len(images)}:
                if before is not None:  # layers such as batch_renorm read them in training
                    statistics.write(before)
                of_size[n] = _gradient(network, images, labels, n, parameters)
            _, reference = of_size[len(images)]
            for n in sizes:
                mean_loss, gradient = of_size[n]
                loss[n] += mean_loss
                gradients[n].add(gradient)
                differences[n].add([g - w for g, w in zip(gradient, reference, strict=True)])
    if number < 2:
        raise ValueError(f"a variance needs at least 2 batches, and there are {number}")
    measurements = []
    for n in sizes:
        squares, variances = gradients[n].summary(layers, number)
        biases, _ = differences[n].summary(layers, number)
        measurements += [
            GradientNoise(
                n, layer, loss[n] / number, squares[layer], biases[layer], variances[layer]
            )
            for layer in squares
        ]
    return measurements


def _gradient(
    network: nn.Module, images: Tensor, labels: Tensor, n: int, parameters: Sequence[Tensor]
) -> tuple[float, list[Tensor]]:
    """Return the mean loss of images with statistics of `n` of them, and its gradient."""
    set_workers(network, len(images) // n)
    loss = F.cross_entropy(upcast(network(images)), labels)
    gradient = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return loss.item(), [*gradient]


class _Moments:
    """Sums over vectors, one for each parameter, from which their moments follow."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.sums = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
        self.squares = torch.zeros(len(parameters), dtype=torch.float64)

    def add(self, vectors: Sequence[Tensor]) -> None:
        wide = [vector.double() for vector in vectors]
        for total, vector in zip(self.sums, wide, strict=True):
            total += vector
        # One wait for the device.
        self.squares += torch.stack([vector.square().sum() for vector in wide]).cpu()

    def summary(
        self, layers: Sequence[str], number: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return the squared norm of the expectation and the variance, by layer and of all.

        Unbiased, from `number` vectors for each parameter; `layers` are those of the parameters.
        """
        squares: dict[str, float] = defaultdict(float)
        variances: dict[str, float] = defaultdict(float)
        for layer, total, of_squares in zip(layers, self.sums, self.squares.tolist(), strict=True):
            squared_sum = total.square().sum().item()
            for key in (NETWORK, layer):
                squares[key] += (squared_sum - of_squares) / (number * (number - 1))
                variances[key] += (of_squares - squared_sum / number) / (number - 1)
        return squares, variances
