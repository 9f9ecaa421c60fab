"""Trained networks: example weighing, precise statistics, hard ratios."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d, GroupNormAct
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import normalizer, normalizers
from normbench.norms.inference import set_example_weight
from normbench.norms.ratios import harden, ratios, set_ratios, switchable_layers
from normbench.norms.recalibration import recalibrate
from normbench.norms.workers import set_workers
from support.layers import images, perturbed_layer

# Inference example weighing


def weighed_by_eq_3(x: Tensor, m: Tensor, v: Tensor, alpha: float, groups: int) -> Tensor:
    """Eq. 3 of the paper with moving averages of x and x^2, over groups of channels."""

    def of_image(values: Tensor) -> Tensor:
        mean: Tensor = values.unflatten(1, (groups, -1)).mean((2, 3, 4))
        return mean.repeat_interleave(6 // groups, dim=1).view(len(x), 6, 1, 1)

    def of_running(values: Tensor) -> Tensor:
        return values.view(groups, -1).mean(1).repeat_interleave(6 // groups).view(6, 1, 1)

    mu = alpha * of_image(x) + (1 - alpha) * of_running(m)
    square = alpha * of_image(x**2) + (1 - alpha) * of_running(v + m**2)
    y: Tensor = (x - mu) / torch.sqrt(square - mu**2 + 1e-5)
    return y


def running(layer: nn.Module) -> tuple[Tensor, Tensor]:
    return layer.get_buffer("running_mean"), layer.get_buffer("running_var")


BATCH = ["bn", "sync_bn", "ghost_bn", "batch_renorm", "bn_ws", "bn_pn"]


@pytest.mark.parametrize("name", [*BATCH, "bgn", "gn", "ln", "in", "gn_pn", "gn_ws"])
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.5, 1.0])
def test_an_image_counts_as_in_equation_3(name: str, alpha: float) -> None:
    layer = perturbed_layer(normalizer(name).with_max_groups(3), 6, "relu", torch.float64)
    groups = getattr(layer, "groups", 6)
    if "running_mean" not in dict(layer.named_buffers()):
        recalibrate(layer, [images((4, 6, 3, 3)) for _ in range(3)])
    assert set_example_weight(layer.eval(), alpha) == 1
    x = images((4, 6, 3, 3))
    y = weighed_by_eq_3(x, *running(layer), alpha, groups)
    expected = layer.activation(layer.affine(y))
    torch.testing.assert_close(layer(x), expected, rtol=1e-9, atol=1e-9)
    layer.train()  # training takes no notice
    fresh = perturbed_layer(normalizer(name).with_max_groups(3), 6, "relu", torch.float64)
    if name != "batch_renorm":  # whose training reads the running statistics
        wide = images((8, 6, 3, 3))
        assert torch.equal(layer.normalize(wide), fresh.normalize(wide))  # type: ignore[operator]
        assert torch.equal(layer(wide), fresh(wide))


@pytest.mark.parametrize(("alpha", "plain"), [(0.0, "bn"), (1.0, "in")])
def test_bn_goes_from_plain_bn_to_instance_norm(alpha: float, plain: str) -> None:
    layer = perturbed_layer(normalizer("bn"), 6, "relu", torch.float64).eval()
    theirs = perturbed_layer(normalizer(plain), 6, "relu", torch.float64).eval()
    set_example_weight(layer, 0.3)  # whatever was said before
    set_example_weight(layer, alpha)
    x = images((4, 6, 3, 3))
    torch.testing.assert_close(layer(x), theirs(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_in_sn_the_image_counts_in_the_statistics_of_bn(alpha: float) -> None:
    layer = perturbed_layer(normalizer("sn", over=["bn"]), 6, "relu", torch.float64).eval()
    set_example_weight(layer, alpha)
    x = images((4, 6, 3, 3))
    y = weighed_by_eq_3(x, *running(layer), alpha, 6)
    torch.testing.assert_close(layer(x), F.relu(layer.affine(y)))


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_strided_groups_are_adjacent_ones_of_reordered_channels(alpha: float) -> None:
    order = [0, 3, 1, 4, 2, 5]  # the channels of groups 0, 1 and 2 of 3
    layer = normalizer("gn", groups=3, grouping="strided").layer(6).double()
    adjacent = normalizer("gn", groups=3).layer(6).double()
    x = images((4, 6, 3, 3)).detach() * torch.arange(1, 7).view(-1, 1, 1)
    recalibrate(layer, [2 * x + 1])
    recalibrate(adjacent, [2 * x[:, order] + 1])
    set_example_weight(layer.eval(), alpha)
    set_example_weight(adjacent.eval(), alpha)
    torch.testing.assert_close(layer(x)[:, order], adjacent(x[:, order]))


FOREIGN: dict[str, Any] = {
    "torch bn": lambda: nn.BatchNorm2d(6),
    "timm bn": lambda: BatchNormAct2d(6, act_layer=nn.SiLU),
    "torch gn": lambda: nn.GroupNorm(3, 6),
    "timm gn": lambda: GroupNormAct(6, num_groups=3, act_layer=nn.SiLU),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_layers_of_torch_and_timm_are_reached_too(kind: str, alpha: float) -> None:
    torch.manual_seed(0)
    layer = FOREIGN[kind]().double()
    layer.weight.data.normal_()
    layer.bias.data.normal_()
    x = images((4, 6, 3, 3)).detach()
    recalibrate(layer, [images((8, 6, 3, 3)).detach() * 2])
    set_example_weight(layer.eval(), 0.7)  # whatever was said before
    set_example_weight(layer, alpha)
    groups = 3 if "gn" in kind else 6
    y = weighed_by_eq_3(x, *running(layer), alpha, groups)
    y = y * layer.weight.view(-1, 1, 1) + layer.bias.view(-1, 1, 1)
    expected = F.silu(y) if "timm" in kind else y
    torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)


def test_a_weighed_network_of_torch_can_be_saved(tmp_path: Path) -> None:
    network = nn.Sequential(nn.BatchNorm2d(6), nn.GroupNorm(3, 6))
    recalibrate(network, [images((8, 6, 3, 3), torch.float32).detach()])
    assert set_example_weight(network.eval(), 0.5) == 2
    x = images((4, 6, 3, 3), torch.float32).detach()
    torch.save(network, tmp_path / "network.pt")
    again = torch.load(tmp_path / "network.pt", weights_only=False)
    assert torch.equal(again(x), network(x))
    assert torch.equal(copy.deepcopy(network)(x), network(x))


def test_no_reference_has_example_weighing() -> None:
    layer = normalizer("bn").layer(6).eval()
    set_example_weight(layer, 0.5)
    with pytest.raises(ValueError, match="has no reference"):
        layer.reference(images((4, 6, 3, 3)))


def test_statistics_of_group_norm_are_never_half_precision() -> None:
    layer = normalizer("gn").layer(32)
    recalibrate(layer, [torch.randn(8, 32, 3, 3)])
    assert {buffer.dtype for buffer in layer.half().buffers()} == {torch.float32}


def test_a_network_without_running_statistics_says_what_would_bring_them() -> None:
    network = nn.Sequential(normalizer("gn").layer(32))
    with pytest.raises(
        ValueError,
        match=r"layer 0 has no running statistics; recalibrate\(model",
    ):
        set_example_weight(network, 0.5)
    assert set_example_weight(network, 1.0) == 1
    stateless = nn.BatchNorm2d(6, track_running_stats=False)
    with pytest.raises(ValueError, match="layer itself has no running statistics"):
        set_example_weight(stateless, 1.0)
    with pytest.raises(ValueError, match=r"alpha=1.5: .* from 0 to 1"):
        set_example_weight(network, 1.5)
    with pytest.raises(ValueError, match="no layer that supports an example weight"):
        set_example_weight(nn.Sequential(normalizer("evonorm_b0").layer(6)), 0.5)


# Recalibration


def network(name: str) -> nn.Sequential:
    """Two layers, the second behind a convolution, and a dropout that must not act."""
    torch.manual_seed(0)
    norm = normalizer(name).with_max_groups(3)
    layers = [norm.layer(6), nn.Conv2d(6, 6, 3), nn.Dropout(0.9), norm.layer(6)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("name", [*BATCH, "bgn", "gn", "ln", "sn", "sn_tied", "evonorm_b0"])
@pytest.mark.parametrize("workers", [1, 2])
def test_statistics_are_the_mean_over_batches(name: str, workers: int) -> None:
    model = network(name)
    set_workers(model, workers)
    batches = [images((16, 6, 5, 5)).detach() * (k + 1) for k in range(3)]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    assert recalibrate(model, batches) == 2
    assert [module.training for module in model.modules()] == modes
    for key, value in model.named_parameters():
        assert torch.equal(value, before[key])
    assert getattr(model[0], "momentum", None) == getattr(
        normalizer(name).layer(6), "momentum", None
    )
    mean = torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0)
    square = torch.stack([x.square().mean((0, 2, 3)) for x in batches]).mean(0)
    buffers = dict(model[0].named_buffers())
    torch.testing.assert_close(buffers["running_var"], square - mean**2)
    if "running_mean" in buffers:
        torch.testing.assert_close(buffers["running_mean"], mean)


@pytest.mark.parametrize("mix", ["var", "std"])
def test_unbiased_statistics_are_those_of_a_training_step(mix: str) -> None:
    layer = normalizer("sn", unbiased=True, mix=mix, momentum=1.0).layer(6).double()
    x = images((16, 6, 5, 5)).detach()
    layer.train()(x)
    trained = layer.get_buffer("running_var").clone()
    recalibrate(layer, [x])
    torch.testing.assert_close(layer.get_buffer("running_var"), trained)
    biased = x.var((0, 2, 3), correction=0)
    assert ((trained / biased).sub(1).abs() > 0.01).all()


def test_the_second_layer_sees_what_training_shows_it() -> None:
    model = network("bn")
    set_workers(model, 2)
    x = images((16, 6, 5, 5)).detach()
    recalibrate(model, [x])
    second = copy.deepcopy(model)[:2]
    second.train()
    output = second(x)
    torch.testing.assert_close(model[3].get_buffer("running_mean"), output.mean((0, 2, 3)))
    var = output.var((0, 2, 3), correction=0)
    torch.testing.assert_close(model[3].get_buffer("running_var"), var)


def test_batch_average_of_sn_differs_from_its_moving_average() -> None:
    model = network("sn")
    x = images((16, 6, 5, 5)).detach()
    model.train()
    model(x)
    moving = model.eval()(x)
    recalibrate(model, [x])
    assert (model(x) - moving).abs().max() > 1e-2


def test_torchs_counter_of_batches_stays() -> None:
    layer = nn.BatchNorm2d(6)
    recalibrate(layer, [torch.randn(8, 6, 3, 3)])
    assert layer.get_buffer("num_batches_tracked").item() == 0


def test_recalibration_without_layers_or_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="no layer with running statistics"):
        recalibrate(nn.Sequential(nn.Conv2d(3, 3, 1)), [torch.ones(1, 3, 2, 2)])
    model = network("bn")
    with pytest.raises(ValueError, match="no batch"):
        recalibrate(model, [])
    assert model.training
    assert model[0].momentum == 0.1


# Ratios of switchable normalization


def random_ratios(name: str) -> nn.Sequential:
    model = network(name)
    for key, value in model.named_parameters():
        if key.endswith("logits"):
            value.data.normal_()
    return model


@pytest.mark.parametrize("name", ["sn", "sn_tied"])
def test_ratios_travel_from_network_to_network(name: str) -> None:
    learned = random_ratios(name)
    other = network(name)
    set_ratios(other, ratios(learned))
    for layer, values in ratios(other).items():
        assert values["mean"] == pytest.approx(ratios(learned)[layer]["mean"], abs=1e-6)
        assert values["var"] == pytest.approx(ratios(learned)[layer]["var"], abs=1e-6)
    assert all(not layer.hard for _, layer in switchable_layers(other))


@pytest.mark.parametrize("name", ["sn", "sn_tied"])
def test_hard_ratios_are_the_largest_of_each_layer_and_learn_no_more(name: str) -> None:
    model = random_ratios(name)
    soft = ratios(model)
    harden(model)
    for layer, values in ratios(model).items():
        for kind in ("mean", "var"):
            largest = soft[layer][kind].index(max(soft[layer][kind]))
            assert values[kind] == [float(k == largest) for k in range(3)]
    model(images((8, 6, 5, 5))).sum().backward()
    logits = [value for key, value in model.named_parameters() if key.endswith("logits")]
    assert logits
    assert all(value.grad is None for value in logits)
    fresh = network(name)  # a saved state keeps them
    fresh.load_state_dict(model.state_dict())
    for layer, values in ratios(fresh).items():
        assert values["mean"] == pytest.approx(ratios(model)[layer]["mean"], abs=1e-9)
    set_ratios(model, soft)  # and back again
    assert all(value.requires_grad for value in logits)


@pytest.mark.parametrize(
    ("learned", "says"),
    [
        ({}, "no ratios for the layer 0"),
        ({"0": {"mean": [1.0, 0.0], "var": [1.0, 0.0]}}, "are not 3 with sum 1"),
        ({"0": {"mean": [1.0, 1.0, 0.0], "var": [1.0, 0.0, 0.0]}}, "are not 3 with sum 1"),
    ],
)
def test_ratios_that_do_not_fit_are_refused(learned: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        set_ratios(network("sn"), learned)


def test_two_ratios_for_a_tied_layer_are_refused() -> None:
    with pytest.raises(ValueError, match="has one vector of ratios"):
        set_ratios(random_ratios("sn_tied"), ratios(random_ratios("sn")))


def test_a_network_without_switchable_layers_has_no_ratios() -> None:
    with pytest.raises(ValueError, match="no switchable normalization"):
        ratios(network("gn"))


@pytest.mark.parametrize("name", normalizers())
def test_every_normalizer_is_recalibrated_or_refused(name: str) -> None:
    """Every normalizer has a network that recalibration takes or refuses with a sentence.

    It refuses networks that have no running statistics and those whose statistics are frozen.
    """
    model = network(name)
    updates = any(
        "running_var" in layer._buffers and not getattr(layer, "keeps_statistics", False)
        for layer in model.modules()
    )
    try:
        assert recalibrate(model, [images((16, 6, 5, 5)).detach()]) == 2
    except ValueError as error:
        assert "no layer with running statistics" in str(error)
        assert not updates
