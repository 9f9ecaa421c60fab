"""Batch-group normalization and example weighing against the authors' own layer.

tests/official/make_batch_group.py has written the arrays.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from normbench.catalog import normalizer
from normbench.norms.base.options import largest_divisor
from normbench.norms.batch_group import BatchGroupNorm
from normbench.norms.inference import set_example_weight

with np.load(Path(__file__).parents[1] / "official/batch_group.npz") as file:
    OFFICIAL = dict(file)
CASES = list(enumerate(OFFICIAL["cases"].tolist()))


def array(number: int, name: str) -> Tensor:
    return torch.from_numpy(OFFICIAL[f"{number} {name}"])


def assert_equal(ours: Tensor, official: Tensor) -> None:
    assert float((ours.detach() - official).abs().max() / official.abs().max()) < 1e-12


def layer_of(number: int, channels: int, groups: int, images: int) -> Any:
    normalizer_ = normalizer("bgn", groups=groups, images=images, more_groups=True, momentum=0.01)
    layer: Any = normalizer_.layer(channels, None).double()
    with torch.no_grad():
        layer.weight.copy_(array(number, "gamma"))
        layer.bias.copy_(array(number, "beta"))
    return layer


@pytest.mark.parametrize(("number", "case"), CASES, ids=str)
def test_training_is_the_authors(number: int, case: list[int]) -> None:
    channels, groups, images, together, _ = case
    layer = layer_of(number, channels, groups, together)
    # Consecutive images share statistics there; here image k belongs to set k mod S.
    order = torch.arange(images).view(-1, together).T.flatten()
    for step in range(2):
        assert_equal(layer(array(number, f"x{step}")[order]), array(number, f"y{step}")[order])
    assert_equal(layer.running_mean, array(number, "moving_x"))


@pytest.mark.parametrize("alpha", OFFICIAL["alphas"].tolist())
@pytest.mark.parametrize(("number", "case"), CASES, ids=str)
def test_evaluation_is_the_authors_with_their_statistics(
    number: int, case: list[int], alpha: float
) -> None:
    channels, groups, _, together, _ = case
    layer = layer_of(number, channels, groups, together).eval()
    mean, square = array(number, "moving_x"), array(number, "moving_x2")
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(square - mean**2)
    set_example_weight(layer, alpha)
    assert_equal(layer(array(number, "x")), array(number, f"alpha={alpha:g}"))


@pytest.mark.parametrize("number", range(len(OFFICIAL["channels"])))
def test_numbers_of_groups_are_the_authors(number: int) -> None:
    channels = int(OFFICIAL["channels"][number])
    layer: Any = normalizer("bgn", more_groups=True).layer(channels)
    assert layer.groups == OFFICIAL["groups"][number]


@pytest.mark.parametrize("groups", [1, 4, 32, 100])
def test_more_groups_are_the_fewest_from_their_number_on(groups: int) -> None:
    """Also where max(C // groups, 1) does not divide the channels, and the authors' code fails."""
    more = BatchGroupNorm(groups=groups, more_groups=True)
    for channels in range(1, 300):
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        expected = min((n for n in divisors if n >= groups), default=channels)
        assert more.groups_of(channels) == expected
        fewer = BatchGroupNorm(groups=groups).groups_of(channels)
        assert fewer == largest_divisor(channels, groups) <= expected


def test_a_model_that_caps_the_groups_gets_no_more() -> None:
    more = BatchGroupNorm(more_groups=True)
    assert more.with_max_groups(4).groups_of(6) == 3
    assert more.with_max_groups(None).groups_of(48) == 48
    assert more.with_max_groups(64).groups_of(48) == 48
