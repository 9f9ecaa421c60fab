"""Sparse switchable normalization: ratios, their way to a corner, and the authors' code."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normbench.catalog import model, normalizer
from normbench.errors import BadInput
from normbench.norms.base.progress import scheduled_layers, set_progress
from normbench.norms.base.sparsestmax import reference_sparsestmax, sparsemax, sparsestmax
from normbench.norms.ratios import harden, ratios, set_ratios
from normbench.norms.sparse_switchable import SparseSwitchableNormAct
from normbench.training.ema import MovingAverage
from normbench.training.parameter_groups import list_parameters
from support.layers import images

#: Made by tests/official/make_sparse_switch_norm.py.
OFFICIAL = Path(__file__).parents[1] / "official" / "sparse_switch_norm.npz"
RADII = (0.0, 0.2, 0.45, 0.7, 0.95)


@pytest.fixture(scope="module")
def official() -> dict[str, Tensor]:
    with np.load(OFFICIAL) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def layer_of(channels: int = 6, **options: object) -> SparseSwitchableNormAct:
    layer = normalizer("ssn", **options).layer(channels, None).double()
    assert isinstance(layer, SparseSwitchableNormAct)
    return layer


def test_ratios_are_those_of_the_authors_code(official: dict[str, Tensor]) -> None:
    for logits, expected in zip(official["logits"], official["ratios"], strict=True):
        for radius, ratio in zip(RADII, expected, strict=True):
            for ours in (
                sparsestmax(logits, logits.new_tensor(radius)),
                reference_sparsestmax(logits, radius),
            ):
                torch.testing.assert_close(ours, ratio, rtol=0, atol=1e-12)


def test_the_layer_is_that_of_the_authors_code(official: dict[str, Tensor]) -> None:
    """Over three steps of a growing radius, in which its ratios get fixed."""
    layer = layer_of(unbiased=True)
    for ours, theirs in (("weight", "weight"), ("bias", "bias"), ("mean_logits", "mean_weight"),
                         ("var_logits", "var_weight")):  # fmt: skip
        layer.get_parameter(ours).data.copy_(official[theirs].flatten())
    layer.running_var.zero_()
    for step, radius in enumerate(np.linspace(0.1, 0.9, 3)):
        set_progress([layer], float(radius))
        x = official[f"x{step}"].requires_grad_()
        output = layer(x)
        (gradient,) = torch.autograd.grad((output**3).sum(), x)
        torch.testing.assert_close(output, official[f"output{step}"], rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(gradient, official[f"gradient{step}"], rtol=1e-10, atol=1e-10)
    assert layer.fixed_mean.sum() == layer.fixed_var.sum() == 1
    for name in ("running_mean", "running_var"):
        expected = official[name].flatten()
        torch.testing.assert_close(layer.get_buffer(name), expected, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(layer.eval()(x), official["evaluated"], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_gradients_of_ratios_are_those_of_the_reference(members: int) -> None:
    generator = torch.Generator().manual_seed(members)
    for _ in range(50):
        v = 2 * torch.rand(members, generator=generator, dtype=torch.float64)
        v.requires_grad_()
        weights = torch.randn(members, generator=generator, dtype=torch.float64)
        radius = torch.rand((), generator=generator, dtype=torch.float64)
        pairs = (sparsestmax(v, radius), reference_sparsestmax(v, float(radius)))
        ours, reference = (torch.autograd.grad((each * weights).sum(), v)[0] for each in pairs)
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-9)


def test_ratios_get_as_far_from_the_center_as_the_radius() -> None:
    generator = torch.Generator().manual_seed(0)
    for radius in torch.linspace(0, 1, 21):
        v = torch.rand(3, generator=generator)
        ratio = sparsestmax(v, radius)
        assert ratio.sum() == pytest.approx(1, abs=1e-5)
        assert ratio.min() >= 0
        far = (ratio - 1 / 3).square().sum().sqrt()
        assert far >= radius - 1e-4 or (ratio == 1).sum() == 1
        if radius > (2 / 3) ** 0.5:  # no other point of the simplex is that far
            assert sorted(ratio.tolist()) == [0, 0, 1]


def test_equal_logits_have_equal_ratios_at_every_radius() -> None:
    v = torch.ones(3, requires_grad=True)
    for radius in (0.0, 0.5, 1.0):
        ratio = sparsestmax(v, torch.tensor(radius))
        torch.testing.assert_close(ratio, torch.full((3,), 1 / 3))
        (gradient,) = torch.autograd.grad(ratio[0], v)
        assert gradient.isfinite().all()


def test_sparsemax_is_the_nearest_point_of_the_simplex() -> None:
    assert sparsemax(torch.tensor([0.5, 0.3, 0.2])).tolist() == pytest.approx([0.5, 0.3, 0.2])
    assert sparsemax(torch.tensor([1.0, 0.8, -1.0])).tolist() == pytest.approx([0.6, 0.4, 0.0])
    assert sparsemax(torch.tensor([3.0, 0.0, 0.0])).tolist() == [1.0, 0.0, 0.0]


def test_a_layer_keeps_the_member_that_it_has_chosen() -> None:
    layer = layer_of(mean_ratios=[0.2, 0.5, 0.3], var_ratios=[0.6, 0.3, 0.1])
    x = images((4, 6, 3, 3))
    set_progress([layer], 0.9)
    layer.eval()(x)
    assert not layer.fixed_mean.any()  # an evaluation chooses nothing for good
    layer.train()(x)
    assert layer.fixed_mean.tolist() == [False, True, False]
    assert layer.fixed_var.tolist() == [True, False, False]
    layer.mean_logits.data.copy_(torch.tensor([1.0, 0.0, 0.0]))
    set_progress([layer], 0.1)
    assert layer.ratios()[0].tolist() == [0.0, 1.0, 0.0]
    layer(x).sum().backward()
    assert layer.mean_logits.grad is not None
    assert not layer.mean_logits.grad.any()
    again = layer_of()
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again.eval()(x), layer.eval()(x))


def test_initial_ratios_are_logits() -> None:
    layer = layer_of(mean_ratios=[0.2, 0.5, 0.3])
    torch.testing.assert_close(layer.ratios()[0], torch.tensor([0.2, 0.5, 0.3]).double())


def test_logits_learn_at_a_tenth_of_the_rate() -> None:
    layer = layer_of(rate=0.25)
    rates = {each.role: each.rate for each in list_parameters(layer)}
    assert rates == {"gain": 1.0, "shift": 1.0, "ratio": 0.25}


def test_ratios_of_a_network_are_read_and_hardened() -> None:
    network = model("resnet8", norm="ssn", num_classes=10, in_chans=1)
    assert len(scheduled_layers(network)) == len(ratios(network))
    for layer in scheduled_layers(network):
        assert isinstance(layer, SparseSwitchableNormAct)
        layer.var_logits.data.copy_(torch.tensor([0.2, 0.1, 0.7]))
    harden(network)
    assert all(each["var"] == [0.0, 0.0, 1.0] for each in ratios(network).values())


def test_a_choice_can_be_replaced_by_a_hard_one() -> None:
    layer = normalizer("ssn").layer(4)
    assert isinstance(layer, SparseSwitchableNormAct)
    network = nn.Sequential(layer).train()
    set_progress([layer], 1.0)
    layer.mean_logits.data.copy_(torch.tensor([0.9, 0.1, 0.0]))
    network(torch.randn(4, 4, 3, 3))
    assert layer.fixed_mean.tolist() == [True, False, False]
    chosen = {"0": {"mean": [0.0, 1.0, 0.0], "var": [0.0, 0.0, 1.0]}}
    set_ratios(network, chosen, hard=True)
    assert ratios(network) == chosen
    with pytest.raises(ValueError, match="soft ratios become sparse at progress=1; set hard ones"):
        set_ratios(network, {"0": {"mean": [0.5, 0.5, 0.0], "var": [0.0, 0.0, 1.0]}})


def test_a_moving_average_has_the_choices_and_the_progress_of_the_network() -> None:
    layer = normalizer("ssn").layer(4)
    assert isinstance(layer, SparseSwitchableNormAct)
    network = nn.Sequential(layer).train()
    average = MovingAverage(network, 0.99)
    for step in range(60):
        set_progress(scheduled_layers(network), step / 59)
        layer.mean_logits.data[0] += 0.05
        network(torch.randn(4, 4, 3, 3))
        average.update(network, step)
    state, averaged = network.state_dict(), average.network.state_dict()
    assert state["0.fixed_mean"].any()
    for name in ("0.fixed_mean", "0.fixed_var", "0.progress"):
        assert torch.equal(averaged[name], state[name])
    assert not torch.equal(averaged["0.mean_logits"], state["0.mean_logits"])


def test_hard_ratios_are_refused() -> None:
    with pytest.raises(BadInput, match=r"norm\.hard=true: sparse ratios become hard by themselves"):
        normalizer("ssn", hard=True)
