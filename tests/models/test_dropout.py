"""Dropout and stochastic depth: drawn by image and epoch, in whatever order and portion."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normbench.data.counter_rng import Draws
from normbench.models.dropout import (
    Dropout,
    RandomDrop,
    StochasticDepth,
    linear_rates,
)
from normbench.models.random_layers import random_layers, set_draws
from normbench.norms.base.layer import NormAct
from normbench.training.experiment import Experiment
from support.cells import SHORT, cell, train_cell

KINDS: list[type[RandomDrop]] = [Dropout, StochasticDepth]
IMAGES = torch.arange(1000)


def announced(layer: nn.Module, images: Tensor, seed: int = 0, epoch: int = 0) -> nn.Module:
    set_draws(random_layers(layer), Draws(seed, epoch, images))
    return layer


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("drawn", [True, False], ids=["by image", "by torch"])
def test_the_share_of_dropped_values_is_the_rate(rate: float, drawn: bool) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 4, 3, 3)
    values, paths = Dropout(rate), StochasticDepth(rate)
    if drawn:
        announced(values, IMAGES)
        announced(paths, IMAGES)
    dropped = values(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(rate, abs=4 * math.sqrt(1 / 36000))
    assert dropped.max().item() == pytest.approx(1 / (1 - rate))
    whole = paths(x).flatten(1)
    assert ((whole == 0).all(1) | (whole == 1).all(1)).all()  # an image as a whole
    assert (whole == 0).float().mean().item() == pytest.approx(rate, abs=4 * math.sqrt(1 / 1000))
    rescaled = StochasticDepth(rate, rescale=True)
    assert rescaled(x).max().item() == pytest.approx(1 / (1 - rate))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_dropped_in_evaluation_or_at_a_rate_of_0(kind: Any) -> None:
    x = torch.randn(4, 3, 2, 2)
    assert kind(0.5).eval()(x) is x
    assert kind(0.0).train()(x) is x


@pytest.mark.parametrize("kind", KINDS)
def test_drops_depend_on_seed_epoch_image_and_layer_alone(kind: Any) -> None:
    x = torch.ones(1000, 8)
    first = announced(kind(0.5), IMAGES)(x)
    assert torch.equal(announced(kind(0.5), IMAGES)(x), first)
    order = torch.randperm(1000)
    assert torch.equal(announced(kind(0.5), IMAGES[order])(x), first[order])
    assert torch.equal(announced(kind(0.5), IMAGES[300:400])(x[300:400]), first[300:400])
    assert not torch.equal(announced(kind(0.5), IMAGES, seed=1)(x), first)
    assert not torch.equal(announced(kind(0.5), IMAGES, epoch=1)(x), first)
    pair = nn.ModuleList([kind(0.5), kind(0.5)])
    announced(pair, IMAGES)
    assert not torch.equal(pair[0](x), pair[1](x))


@pytest.mark.parametrize("norm", ["sn", "bn", "nf"])
def test_a_level_of_regularization_drops_behind_every_normalization_layer(norm: str) -> None:
    words = (f"norm={norm}", "model=resnet14_v2")
    plain = Experiment(cell(*words)).build_network()
    network = Experiment(cell(*words, "reg.norm_dropout=0.2")).build_network()
    layers = [layer for layer in network.modules() if isinstance(layer, NormAct)]
    assert len(random_layers(network)) == len(layers) > 10
    assert [*network.state_dict()] == [*plain.state_dict()]
    network.load_state_dict(plain.state_dict())
    x = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(network.eval()(x), plain.eval()(x))
    layer, before = layers[0].train(), deepcopy(plain.get_submodule("blocks.0.norms.0")).train()
    x = torch.randn(100, 16, 4, 4)
    announced(layer, torch.arange(100))
    y, z = layer(x), before(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], z[kept] / 0.8)
    assert (y[z != 0] == 0).float().mean().item() == pytest.approx(0.2, abs=0.02)


def test_layers_of_rate_0_do_not_change_the_drops_of_others() -> None:
    x = torch.ones(1000, 8)
    alone = announced(Dropout(0.5), IMAGES)(x)
    after = nn.ModuleList([Dropout(0.0), Dropout(0.5)])
    announced(after, IMAGES)
    assert torch.equal(after[1](x), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_other_images_than_were_announced_are_an_error(kind: Any) -> None:
    layer = announced(kind(0.5), IMAGES[:4])
    with pytest.raises(ValueError, match="4 images were announced, not 3"):
        layer(torch.ones(3, 2))
    set_draws(random_layers(layer), None)
    assert layer(torch.ones(3, 2)).shape == (3, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_an_image_are_dropped_with_it(kind: Any) -> None:
    """Attention in windows divides every image into several, one after the other."""
    windows = torch.ones(40, 5)  # four of each image
    of_all = announced(kind(0.5), IMAGES[:10])(windows)
    assert torch.equal(announced(kind(0.5), IMAGES[4:6])(windows[:8]), of_all[16:24])
    assert len(of_all.unique(dim=0)) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_dtype_stays(kind: Any, dtype: torch.dtype) -> None:
    assert announced(kind(0.5), IMAGES[:4])(torch.ones(4, 3, 2, 2, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_is_a_probability(kind: Any, rate: float) -> None:
    with pytest.raises(ValueError, match="a rate is from 0 to below 1"):
        kind(rate)


def test_rates_grow_with_depth() -> None:
    assert linear_rates(0.2, 4) == pytest.approx([0, 0.05, 0.1, 0.15])


def losses(*words: str) -> list[float]:
    base = cell("norm=gn", "model=resnet18_cifar", "model.width=8", *words, *SHORT)
    _, curve = train_cell(base)
    return [record["train_loss"] for record in curve]


@pytest.mark.slow
def test_chunks_do_not_change_the_drops_of_a_training() -> None:
    drops = [
        "model.dropout=0.2", "model.stochastic_depth=0.3", "reg.norm_dropout=0.1",
        "recipe.images=1280",
    ]  # fmt: skip
    once = losses(*drops, "trainer.chunk=1")
    assert losses(*drops, "trainer.chunk=7") == once
    assert losses(*drops, "reg.norm_dropout=null") != once
    assert losses("recipe.images=1280") != once
