"""Bias and variance of the gradient with statistics of fewer images, against loops over workers."""

from itertools import permutations
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.measurements.gradient_noise import NETWORK, NO_LAYER, gradient_noise
from support.networks import network_of, noise, unchanged

DRAWS, IMAGES = 3, 16


def draws() -> list[tuple[Tensor, Tensor]]:
    seeds, images = range(DRAWS), torch.arange(IMAGES)
    return [(noise(IMAGES, 1, 8, 8, seed=s).double(), (images + s) % 10) for s in seeds]


def gradient_of_workers(
    network: nn.Module, images: Tensor, labels: Tensor, per_worker: int
) -> tuple[float, dict[str, Tensor]]:
    """The mean over workers of the loss, each in a forward pass of its own, and its gradient."""
    workers = len(images) // per_worker
    losses = [
        F.cross_entropy(network(images[k::workers]), labels[k::workers]) for k in range(workers)
    ]
    loss = torch.stack(losses).mean()
    named = dict(network.named_parameters())
    gradients = torch.autograd.grad(loss, [*named.values()])
    return loss.item(), dict(zip(named, gradients, strict=True))


@pytest.mark.parametrize("norm", ["bn", "sn", "evonorm_b0"])
def test_moments_are_those_of_workers_one_by_one(norm: str) -> None:
    network = network_of(norm, stem_stride=1).double().train()
    by_size = {
        n: [gradient_of_workers(network, *draw, n) for draw in draws()] for n in (2, 4, IMAGES)
    }
    found = gradient_noise(network, draws(), [2, 4, IMAGES])
    parts = {name.rpartition(".")[0] for name, _ in network.named_parameters()}
    assert {each.layer for each in found} == {NETWORK, *parts}
    for each in found:
        assert each.loss == pytest.approx(fmean(loss for loss, _ in by_size[each.per_worker]))
        own, whole = (
            [
                torch.cat([g.flatten() for name, g in gradient.items()
                           if each.layer in (NETWORK, name.rpartition(".")[0])])
                for _, gradient in by_size[n]
            ]
            for n in (each.per_worker, IMAGES)
        )  # fmt: skip
        apart = [a - b for a, b in zip(own, whole, strict=True)]
        mean = torch.stack(own).mean(0)
        pairs = [*permutations(range(DRAWS), 2)]
        expected = {
            "squared_norm": fmean(float(own[a] @ own[b]) for a, b in pairs),
            "bias": fmean(float(apart[a] @ apart[b]) for a, b in pairs),
            "variance": sum(float((g - mean).square().sum()) for g in own) / (DRAWS - 1),
        }
        for key, value in expected.items():
            assert getattr(each, key) == pytest.approx(value, rel=1e-9, abs=1e-12), (each, key)


@pytest.mark.parametrize("norm", ["gn", "evonorm_s0", "none"])
def test_without_batch_statistics_there_is_no_bias(norm: str) -> None:
    network = network_of(norm, stem_stride=1).double()
    found = [
        each for each in gradient_noise(network, draws(), [2, IMAGES]) if each.layer == NETWORK
    ]
    few, all_images = found
    assert abs(few.bias) < 1e-20 < all_images.squared_norm + all_images.variance
    assert few.variance == pytest.approx(all_images.variance, rel=1e-9)


def test_one_batch_twice_is_all_bias_and_no_variance() -> None:
    network = network_of("bn", stem_stride=1).double()
    found = gradient_noise(network, draws()[:1] * 2, [2, IMAGES])
    few, all_images = (each for each in found if each.layer == NETWORK)
    assert all_images.bias == 0
    assert few.bias > 0.01 * few.squared_norm
    assert abs(few.variance) + abs(all_images.variance) < 1e-12 * few.squared_norm


def test_the_network_is_left_as_it_was() -> None:
    network = network_of("bn", stem_stride=1).double()
    with unchanged(network):
        gradient_noise(network, draws(), [4])


@pytest.mark.parametrize("norm", ["batch_renorm", "bn"])
def test_neither_order_nor_repetition_of_the_numbers_counts(norm: str) -> None:
    """Though layers such as batch_renorm read running statistics in training, which move."""
    options = {"start": 0.0, "r_open": 0.5} if norm == "batch_renorm" else {}
    network = network_of(norm, stem_stride=1).double()
    for layer in network.modules():
        for key, value in options.items():
            if hasattr(layer, key):
                setattr(layer, key, value)
    found = gradient_noise(network, draws(), [2, 4, IMAGES])
    assert gradient_noise(network, draws(), [IMAGES, 2, 4, 2]) == found
    alone = [each for each in gradient_noise(network, draws(), [4]) if each.per_worker == 4]
    assert alone == [each for each in found if each.per_worker == 4]


def test_parameters_of_the_network_itself_count_once() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1, dtype=torch.float64))
            self.network = network_of("bn", stem_stride=1).double()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.network(x + self.shift)
            return logits

    found = gradient_noise(Shifted(), draws(), [4])
    (whole,) = (each for each in found if each.layer == NETWORK)
    parts = [each for each in found if each.layer != NETWORK]
    assert NO_LAYER in {each.layer for each in parts}
    assert whole.variance == pytest.approx(sum(each.variance for each in parts))


def test_a_number_that_does_not_divide_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="per_worker=3 does not divide the 16 images of a batch"):
        gradient_noise(network_of("bn", stem_stride=1).double(), draws(), [3])


def test_one_batch_tells_no_variance() -> None:
    with pytest.raises(ValueError, match="a variance needs at least 2 batches, and there are 1"):
        gradient_noise(network_of("bn", stem_stride=1).double(), draws()[:1], [4])


def test_a_layer_of_torch_that_knows_no_workers_is_refused() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    with pytest.raises(ValueError, match="of torch or timm takes the statistics of all images"):
        gradient_noise(network.double(), draws(), [4])
