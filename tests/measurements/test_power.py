"""The power decomposition and linearity against the statements of Labatie et al. 2021."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import model, normalizer
from normbench.data.digits import Digits
from normbench.errors import Impossible
from normbench.measurements.power import linearity, power, powers, set_eps
from normbench.norms.base.layer import Normalizing
from normbench.norms.batch import BatchNormAct
from normbench.norms.group import GroupNormAct
from support.networks import network_of, noise


@pytest.mark.parametrize("norm", ["bn", "ln", "in", "gn", "gn_ws", "bn_pn", "ln_pn"])
@pytest.mark.parametrize("eps", [0.0, None])
def test_power_terms_sum_to_one(norm: str, eps: float | None) -> None:
    """With eps = 0 to 1e-10, and with a layer's own to the mean of var / (var + eps)."""
    torch.manual_seed(0)
    network = model("resnet20_v2", norm=normalizer(norm), num_classes=10).double()
    if eps is not None:
        assert set_eps(network, eps) == 19
    seen: dict[str, Tensor] = {}
    for name, layer in network.named_modules():
        if isinstance(layer, Normalizing):
            layer.register_forward_hook(lambda _, given, __, n=name: seen.update({n: given[0]}))
    found = power(network, noise(12, 3, 16, 16).double())
    assert len(found) == 19
    for layer in found:
        expected = 1.0 if eps == 0 else share(network.get_submodule(layer.name), seen[layer.name])
        assert layer.total == pytest.approx(expected, abs=1e-10)
        assert min(layer.p1, layer.p2, layer.p3, layer.p4) >= 0
        assert layer.total < 1 or eps == 0


@pytest.mark.parametrize("learned", [False, True])
def test_the_eps_of_frn_is_set_beside_a_learned_one(learned: bool) -> None:
    layer = normalizer("frn", learned_eps=learned).layer(4)
    x = noise(2, 4, 3, 3)
    before = layer(x)
    assert set_eps(layer, 0.5) == 1
    assert not torch.allclose(layer(x), before)


def share(layer: Any, x: Tensor) -> float:
    """mean of var / (var + eps) over what the layer normalizes together."""
    if isinstance(layer, BatchNormAct):
        var = x.var((0, 2, 3), correction=0)
    else:
        assert isinstance(layer, GroupNormAct)
        var = x.unflatten(1, (layer.groups, -1)).var((2, 3, 4), correction=0)
    return float((var / (var + layer.eps)).mean())


def test_powers_agree_with_loops() -> None:
    y = noise(5, 3, 4, 6).double() * 2 + noise(5, 3, 1, 1).double()
    p1, p2, p3, p4 = powers(y)
    means = torch.stack([torch.stack([y[n, c].mean() for c in range(3)]) for n in range(5)])
    deviations = torch.stack(
        [torch.stack([y[n, c].std(correction=0) for c in range(3)]) for n in range(5)]
    )
    torch.testing.assert_close(p1, means.mean(0) ** 2)
    torch.testing.assert_close(p2, means.var(0, correction=0))
    torch.testing.assert_close(p3, deviations.mean(0) ** 2)
    torch.testing.assert_close(p4, deviations.var(0, correction=0))
    torch.testing.assert_close(p1 + p2 + p3 + p4, y.square().mean((0, 2, 3)))


def test_instance_normalization_has_no_variability_of_instances() -> None:
    """Theorem 2, at every layer: P1 = P2 = P4 = 0 and P3 = 1."""
    torch.manual_seed(0)
    network = model("resnet20_v2", norm=normalizer("in"), num_classes=10).double()
    set_eps(network, 0.0)
    for layer in power(network, noise(12, 3, 16, 16).double()):
        assert max(layer.p1, layer.p2, layer.p4) < 1e-12
        assert layer.p3 == pytest.approx(1, abs=1e-12)


def test_y_comes_from_normalize_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of("gn", name="resnet14_v2")
    before = power(network, noise(8, 1, 8, 8))
    own = GroupNormAct.normalize
    monkeypatch.setattr(GroupNormAct, "normalize", lambda self, x: 2 * own(self, x))
    doubled = power(network, noise(8, 1, 8, 8))
    for one, two in zip(before, doubled, strict=True):
        assert two.total == pytest.approx(4 * one.total, rel=1e-5)


@pytest.mark.parametrize("norm", ["batch_renorm", "bn", "sn"])
def test_y_uses_the_statistics_of_this_forward_pass(norm: str) -> None:
    """Batch renormalization normalizes with what the pass itself moves."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"act": "identity", "width": 8, "depths": [1, 1], "strides": [1, 2]}
    network = model("resnet50_v2", norm=normalizer(norm), num_classes=10, **options).train()
    for seed in range(3):
        network(noise(4, 3, 64, 64, seed=seed) + 1)
    seen: dict[str, Tensor] = {}
    for name, layer in network.named_modules():
        if isinstance(layer, Normalizing):  # of gain 1 and shift 0, so its output is y
            layer.register_forward_hook(lambda _, __, z, n=name: seen.update({n: z}))
    found = power(network, noise(4, 3, 64, 64, seed=9) + 1)
    assert len(found) == 7
    for each in found:
        assert each.total == pytest.approx(float(seen[each.name].square().mean()), rel=1e-5)


@pytest.mark.parametrize("norm", ["evonorm_s0", "evonorm_b0", "nf", "none", "skipinit"])
def test_layers_without_normalized_maps_are_refused(norm: str) -> None:
    with pytest.raises(Impossible, match="with normalized maps before an affine"):
        power(network_of(norm), noise(8, 1, 8, 8))


def random_net(norm: str, depth: int, width: int, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    options = {"depth": depth, "width": width, **more}
    return model("random_net", norm=normalizer(norm), num_classes=10, in_chans=1, **options)


def digits(number: int = 32) -> Tensor:
    """Handwritten digits, centred, 16x16."""
    train, _ = Digits().load()
    images = train.images[:number].float() / 16
    return F.interpolate(images - images.mean(), scale_factor=2)


@cache
def varying(norm: str, act: str) -> list[tuple[float, float]]:
    """Of a random net of width 512 what is no constant at each layer, and the bound."""
    network: Any = random_net(norm, 14, 512, act=act)
    return [
        (layer.p2 + layer.p3 + layer.p4, network.rho ** (layer.depth - 1))
        for layer in power(network, digits())
    ]


@pytest.mark.slow
def test_layer_normalization_collapses_below_the_bound() -> None:
    """Theorem 1, random nets of definition 1: gains N(1, 0.2^2), shifts N(0, 0.2^2), ReLU."""
    layers = varying("ln", "relu")
    assert all(varies <= bound for varies, bound in layers)
    assert layers[-1][0] < 0.4 * layers[-1][1]


def test_linear_nets_follow_the_bound() -> None:
    for varies, bound in varying("ln", "identity")[:10]:
        assert varies == pytest.approx(bound, rel=0.1)


@pytest.mark.slow
def test_proxy_normalization_does_not_collapse() -> None:
    """As with BN most of the power is no constant, at every depth."""
    shares = [varies for varies, _ in varying("ln_pn", "relu")]
    assert min(shares) > 0.85
    assert shares[-1] > 0.95


def test_the_bound_uses_the_drawn_gains_and_shifts() -> None:
    network: Any = random_net("ln", 30, 256, gain=0.5, shift=0.7)
    layers: list[Any] = [m for m in network.modules() if isinstance(m, Normalizing)]
    gain = torch.cat([layer.weight for layer in layers]).detach().square().mean()
    shift = torch.cat([layer.bias for layer in layers]).detach().square().mean()
    assert network.rho == pytest.approx(float(gain / (gain + shift)), rel=0.03)
    assert all(
        conv.padding_mode == "circular" for conv in network.modules() if isinstance(conv, nn.Conv2d)
    )


def test_collapsed_channels_are_linear() -> None:
    """Proposition 2: what lies on one side of the kink of ReLU is mapped linearly."""
    y = noise(8, 4, 5, 5).double()
    assert linearity(y, 3 * y - 2) == pytest.approx(1, abs=1e-12)
    assert linearity(y + 100, torch.relu(y + 100)) == pytest.approx(1, abs=1e-9)
    # Of relu(u), u ~ N(0, 1): power 1/2, of which the best affine function, u / 2 + 1 / sqrt(2 pi),
    # has 1/4 + 1 / (2 pi).
    u = noise(1, 1, 1000, 1000).double()
    assert linearity(u, torch.relu(u)) == pytest.approx(
        (1 / 4 + 1 / (2 * torch.pi)) / 0.5, rel=5e-3
    )
    deep = power(random_net("ln", 14, 256), digits())
    assert deep[0].linearity is not None
    assert deep[-1].linearity is not None
    assert deep[-1].linearity > 0.98 > deep[0].linearity
