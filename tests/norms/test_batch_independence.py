"""Normalizers compute what they declare about workers and about other images of a batch."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from normbench.catalog import normalizer, normalizers
from normbench.errors import Impossible
from support.cells import arguments_for, cell, train_cell
from support.networks import noise
from support.slow import EVERYDAY_NORMS, slow_except

#: One step and what follows from it; no two of the batches are alike for a ghost of 2.
WORDS = ("recipe.images=256", "logger=none", "trainer=cpu", "data.val=0")


def numbers(norm: str, batch: int, *more: str) -> tuple[Any, ...]:
    ghost = ["norm.ghost=2"] if norm == "ghost_bn" else []
    request = cell(*arguments_for(norm), f"batch={batch}", *ghost, *WORDS, *more)
    row, _ = train_cell(request)
    return tuple(row.get(name) for name in ("train_loss", "test_loss", "test_top1", "status"))


@pytest.mark.parametrize("norm", slow_except(normalizers(), EVERYDAY_NORMS))
def test_a_normalizer_is_what_it_declares_about_workers(norm: str) -> None:
    """Every division of 128 images gives the same bits, or other numbers if it matters."""
    same = numbers(norm, 4) == numbers(norm, 64)
    assert same == normalizer(norm).worker_independent


@pytest.mark.parametrize(
    "other",
    [
        "norm.eps=1e-3", "norm.groups=2", "model.width=8", "reg=mixup", "recipe.lr=0.05", "seed=1",
        "precision=bf16-mixed", "data.noise=0.2", "init_from=0123456789ab@1", "global_batch=64",
    ],
)  # fmt: skip
def test_only_the_division_among_workers_is_shared(other: str) -> None:
    assert cell("norm=gn", "batch=8", other).computation != cell("norm=gn", "batch=8").computation


@pytest.mark.parametrize(
    "same", [["batch=32"], ["protocol=fixed_workers", "workers=16"], ["trainer.threads=2"]], ids=str
)
def test_the_division_among_workers_and_hardware_are_shared(same: list[str]) -> None:
    base = cell("norm=gn", "batch=8")
    assert cell("norm=gn", "batch=8", *same).computation == base.computation


INVARIANT = [norm for norm in normalizers() if normalizer(norm).batch_invariant]


@pytest.mark.parametrize("shape", [(64, 32, 14, 14), (33, 5, 3, 3), (300, 8, 3, 3)], ids=str)
@pytest.mark.parametrize("norm", INVARIANT)
def test_an_image_has_the_same_bits_in_every_batch(norm: str, shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    many = output_and_gradient(norm, x)
    for number in (0, len(x) // 2, len(x) - 1):
        alone = output_and_gradient(norm, x[number : number + 1])
        for one, each in zip(alone, many, strict=True):
            assert torch.equal(one[0], each[number])


def output_and_gradient(norm: str, x: Tensor) -> tuple[Tensor, Tensor]:
    layer, x = normalizer(norm).layer(x.shape[1]), x.clone().requires_grad_()
    y: Tensor = layer(x)
    y.square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("norm", normalizers())
def test_batch_independent_layers_have_gradients_of_single_images(norm: str) -> None:
    """The others refuse, as their outputs depend on all images."""
    layer, convolution = normalizer(norm), nn.Conv2d(3, 8, 3, bias=False)
    if layer.conv is not None:
        convolution = layer.conv.convert(convolution)
    network = nn.Sequential(convolution, layer.layer(8)).double()
    x = noise(4, 3, 6, 6).double()
    learned = {k: each.detach() for k, each in network.named_parameters() if each.requires_grad}

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        y: Tensor = functional_call(network, parameters, image[None])
        return y.square().sum()

    gradients_of_images = vmap(grad(loss), in_dims=(None, 0))
    if not layer.batch_independent:
        with pytest.raises((RuntimeError, Impossible)):
            gradients_of_images(learned, x)
        return
    found = gradients_of_images(learned, x)
    for number, image in enumerate(x):
        alone = copy.deepcopy(network)
        alone(image[None]).square().sum().backward()
        for name in learned:
            expected = alone.get_parameter(name).grad
            torch.testing.assert_close(found[name][number], expected)
