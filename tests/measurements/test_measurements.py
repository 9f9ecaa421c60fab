"""Probes as functions: what they measure is what the papers say, and nothing is changed by them."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import model, normalizer, normalizers
from normbench.data.digits import Digits
from normbench.errors import BadInput, Impossible
from normbench.measurements.memory import peak_memory
from normbench.measurements.power import linearity, power, powers, set_eps
from normbench.measurements.ratios import divergence, field_groups, ratios
from normbench.measurements.receptive_field import receptive_fields
from normbench.measurements.spp import propagation
from normbench.models.swap import swap
from normbench.norms.base.activations import GAINS, activation
from normbench.norms.base.layer import Normalizing
from normbench.norms.batch import BatchNormAct
from normbench.norms.group import GroupNormAct
from normbench.norms.inference import set_example_weight
from normbench.norms.ratios import set_ratios
from normbench.norms.workers import PerWorker, set_workers
from normbench.probe import example_weight, gains
from normbench.probe.speed import Mode, TimedNetwork, measure_speeds
from support.cells import network_for
from support.slow import EVERYDAY_NORMS, slow_except

CPU = torch.device("cpu")
MODES: tuple[Mode, ...] = ("training", "inference")
LOOKS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "spp": propagation,
    "power": power,
    "ratios": lambda network, x: ratios(network, (1, 8, 8)),
    "receptive fields": lambda network, x: receptive_fields(network, (1, 8, 8)),
}


def network_of(norm: str, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    options = {**network_for(norm), **more}
    return model(norm=normalizer(norm), num_classes=10, in_chans=1, **options)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Bit for bit: parameters, statistics, modes, workers, and the stream of random numbers."""

    def everything() -> list[Any]:
        workers = [m.workers for m in network.modules() if isinstance(m, PerWorker)]
        modes = [m.training for m in network.modules()]
        return [workers, modes, torch.get_rng_state().tolist()]

    state, rest = copy.deepcopy(network.state_dict()), everything()
    yield
    assert everything() == rest
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("norm", slow_except(normalizers(), EVERYDAY_NORMS))
def test_a_probe_changes_nothing(norm: str, look: str) -> None:
    network = network_of(norm, dropout=0.1, stochastic_depth=0.2).train()
    set_workers(network, 2)
    network(noise(32, 1, 8, 8))  # running statistics are somewhere
    with unchanged(network):
        try:
            LOOKS[look](network, noise(16, 1, 8, 8))
        except (Impossible, ValueError):
            assert look in ("power", "ratios")  # not every normalizer has a y, or ratios


def test_a_network_that_is_evaluated_stays_so() -> None:
    network = network_of("bn").eval()
    network.get_submodule("blocks.0").train()
    with unchanged(network):
        propagation(network, noise(8, 1, 8, 8))


# Signal propagation


def test_every_block_by_hand() -> None:
    """Against the network's own modules, called one by one."""
    network = network_of("bn", name="resnet14_v2").train()
    x = noise(32, 1, 8, 8)
    found = propagation(network, x)
    with torch.no_grad():
        h: Tensor = network.stem(x)  # type: ignore[operator]
        for block, seen in zip(network.blocks, found, strict=True):  # type: ignore[arg-type]
            branches: list[Tensor] = []
            hook = block.join.register_forward_pre_hook(
                lambda _, given, b=branches: b.append(given[1])
            )
            h = block(h)
            hook.remove()
            mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), correction=0)
            assert seen.squared_mean == pytest.approx(float((mean**2).mean()), rel=1e-4)
            assert seen.variance == pytest.approx(float(var.mean()), rel=1e-4)
            branch = branches[0].var((0, 2, 3), correction=0).mean()
            assert seen.branch_variance == pytest.approx(float(branch), rel=1e-4)
    assert [block.stage for block in found] == [1, 1, 2, 2, 3, 3]
    assert [block.ends_stage for block in found] == [False, True] * 3
    assert [block.name for block in found] == [f"blocks.{number}" for number in range(6)]


@pytest.mark.parametrize(
    ("name", "blocks", "stages"),
    [
        ("resnet50", 16, 4),
        ("resnet50_v2", 16, 4),
        ("mobilenetv2", 10, 7),
        ("efficientnet_b0", 9, 7),
        ("nf_regnet_b0", 16, 4),
        ("timm/resnet18", 8, 4),
        ("timm/resnetv2_50", 16, 4),
        ("timm/regnety_004", 16, 4),
    ],
)
def test_blocks_are_found_in_any_residual_network(name: str, blocks: int, stages: int) -> None:
    network = model(name, norm=normalizer("gn"), num_classes=10)
    found = propagation(network, noise(2, 3, 96, 96))
    assert len(found) == blocks
    assert len({block.stage for block in found}) <= stages
    assert all(block.variance > 0 for block in found)


def test_the_output_of_a_post_activation_block_is_rectified() -> None:
    network: Any = timm.create_model("resnet18", zero_init_last=False)
    x = noise(4, 3, 64, 64)
    found = propagation(swap(network, normalizer("bn")), x)
    seen: list[Tensor] = []
    network.layer1[0].register_forward_hook(lambda _, __, out: seen.append(out.detach().clone()))
    network.train()(x)
    assert seen[0].min() == 0
    variance = float(seen[0].var((0, 2, 3), correction=0).mean())
    assert found[0].variance == pytest.approx(variance, rel=1e-4)


def test_in_either_order_a_block_ends_with_its_sum() -> None:
    """The activation that begins the next block is none of it."""
    for order in ("norm_act_conv", "act_norm_conv"):
        torch.manual_seed(0)
        network = model("resnet50_v2", norm=normalizer("bn"), num_classes=10, order=order, width=8)
        found = propagation(network, noise(4, 3, 64, 64))
        ends = [block for block in found if block.ends_stage]
        before = [found[found.index(end) - 1] for end in ends]
        for last, block in zip(before, ends, strict=True):  # a rectified one would have less
            assert block.variance > last.variance


def test_a_network_without_branches_says_so() -> None:
    with pytest.raises(Impossible, match="no residual branch"):
        propagation(
            model("inception_v3", norm=normalizer("bn"), num_classes=10), noise(2, 3, 96, 96)
        )


def test_what_depends_on_values_cannot_be_traced() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(Impossible, match="cannot be traced"):
        propagation(nn.Sequential(Odd()), noise(2, 3, 8, 8))


# Power


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


def share(layer: Any, x: Tensor) -> float:
    """mean of var / (var + eps) over what the layer normalizes together."""
    if isinstance(layer, BatchNormAct):
        var = x.var((0, 2, 3), correction=0)
    else:
        assert isinstance(layer, GroupNormAct)
        var = x.unflatten(1, (layer.groups, -1)).var((2, 3, 4), correction=0)
    return float((var / (var + layer.eps)).mean())


def test_powers_by_hand() -> None:
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


def test_y_is_what_the_layers_themselves_give(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of("gn", name="resnet14_v2")
    before = power(network, noise(8, 1, 8, 8))
    own = GroupNormAct.normalize
    monkeypatch.setattr(GroupNormAct, "normalize", lambda self, x: 2 * own(self, x))
    doubled = power(network, noise(8, 1, 8, 8))
    for one, two in zip(before, doubled, strict=True):
        assert two.total == pytest.approx(4 * one.total, rel=1e-5)


@pytest.mark.parametrize("norm", ["batch_renorm", "bn", "sn"])
def test_y_is_that_of_this_very_forward_pass(norm: str) -> None:
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
def test_layers_without_y_say_so(norm: str) -> None:
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


@pytest.fixture(scope="module")
def collapsing() -> dict[str, list[tuple[float, float]]]:
    """Of random nets of width 512 what is no constant at each layer, and the bound."""
    found = {}
    for key, norm, act in (
        ("ln", "ln", "relu"), ("linear", "ln", "identity"), ("ln_pn", "ln_pn", "relu"),
    ):  # fmt: skip
        network: Any = random_net(norm, 14, 512, act=act)
        found[key] = [
            (layer.p2 + layer.p3 + layer.p4, network.rho ** (layer.depth - 1))
            for layer in power(network, digits())
        ]
    return found


def test_layer_normalization_collapses_below_the_bound(
    collapsing: dict[str, list[tuple[float, float]]],
) -> None:
    """Theorem 1, random nets of definition 1: gains N(1, 0.2^2), shifts N(0, 0.2^2), ReLU."""
    assert all(varies <= bound for varies, bound in collapsing["ln"])
    assert collapsing["ln"][-1][0] < 0.4 * collapsing["ln"][-1][1]


def test_without_activation_it_follows_the_bound(
    collapsing: dict[str, list[tuple[float, float]]],
) -> None:
    for varies, bound in collapsing["linear"][:10]:
        assert varies == pytest.approx(bound, rel=0.1)


def test_proxy_normalization_does_not_collapse(
    collapsing: dict[str, list[tuple[float, float]]],
) -> None:
    """As with BN most of the power is no constant, at every depth."""
    assert all(varies > 0.85 for varies, _ in collapsing["ln_pn"])
    assert collapsing["ln_pn"][-1][0] > 0.95


def test_the_bound_is_that_of_the_drawn_gains_and_shifts() -> None:
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


# Receptive fields and ratios


@pytest.mark.parametrize(
    ("network", "field"),
    [  # Araujo, Norris and Sim 2019, and figure 3 of Luo et al. 2019 for ResNet-50
        ("resnet50", 427), ("inception_v3", 1311), ("timm/resnet18", 435), ("timm/vgg16_bn", 212),
        ("timm/mobilenetv1_100", 315),
    ],
)  # fmt: skip
def test_receptive_fields_that_are_known(network: str, field: int) -> None:
    side = 299 if network == "inception_v3" else 224
    made = model(network, norm=normalizer("bn"), num_classes=10).eval()
    found = receptive_fields(made, (3, side, side))
    assert max(found.values()) == field


def test_a_receptive_field_is_what_gradients_see() -> None:
    """The pixels of which the middle of a map is a function, along the network's longest way."""
    network = network_of("bn", name="resnet20_v2").eval()
    fields = receptive_fields(network, (1, 101, 101))
    for name in ("blocks.0.convs.1", "blocks.3.norms.0", "blocks.4.convs.1"):
        x = noise(1, 1, 201, 201).requires_grad_()
        seen: list[Tensor] = []
        hook = network.get_submodule(name).register_forward_hook(
            lambda _, given, __, s=seen: s.append(given[0])
        )
        network(x)
        hook.remove()
        place = seen[0].shape[-1] // 2
        (gradient,) = torch.autograd.grad(seen[0][0, :, place, place].sum(), x)
        touched = gradient[0, 0].ne(0).any(0).sum()
        # ReLU hides a pixel now and then, at the border too.
        assert fields[name] - 4 <= touched <= fields[name]


def test_gates_do_not_see_everything() -> None:
    fields = receptive_fields(
        model("efficientnet_b0", norm=normalizer("bn"), num_classes=10), (3, 224, 224)
    )
    assert max(fields.values()) == 851


def test_ratios_are_those_that_were_given() -> None:
    network = network_of("sn")
    names = [layer.name for layer in ratios(network, (1, 8, 8))]
    given = {name: {"mean": [0.5, 0.3, 0.2], "var": [0.1, 0.2, 0.7]} for name in names}
    set_ratios(network, given)
    found = ratios(network, (1, 8, 8))
    assert len(found) == 15
    for layer in found:
        assert layer.mean == pytest.approx((0.5, 0.3, 0.2), abs=1e-6)
        assert layer.var == pytest.approx((0.1, 0.2, 0.7), abs=1e-6)
    fields = [layer.field for layer in found]
    assert fields[0] == 3
    assert max(fields) == 103


def test_a_member_that_is_not_mixed_has_no_ratio() -> None:
    sn = normalizer("sn", over=["in", "ln"])
    network = model("resnet14", norm=sn, num_classes=10, in_chans=1)
    assert {layer.mean for layer in ratios(network, (1, 8, 8))} == {(0.5, 0.5, 0.0)}


def test_divergence() -> None:
    p, q = (0.5, 0.25, 0.25), (0.25, 0.5, 0.25)
    by_hand = sum(
        a * torch.tensor(a / b).log() + b * torch.tensor(b / a).log()
        for a, b in zip(p, q, strict=True)
    )
    assert divergence(p, q) == pytest.approx(float(by_hand))
    assert divergence(p, p) == 0
    assert divergence((1, 0, 0), (1, 0, 0)) == 0
    assert divergence((1, 0, 0), (0, 1, 0)) == float("inf")


def test_groups_of_receptive_fields_are_the_papers() -> None:
    known = field_groups([7, 49, 59, 99, 107, 203, 299, 363, 427])
    assert list(dict.fromkeys(known.values())) == [
        "RF 7 to 49", "RF 50 to 99", "RF 100 to 199", "RF 200 to 299", "RF 300 to 427",
    ]  # fmt: skip
    small = field_groups([3, 5, 7, 9, 11, 13, 15, 17, 19])
    assert list(dict.fromkeys(small.values())) == ["RF 3 to 7", "RF 8 to 13", "RF 14 to 19"]


# Example weights


def trained(norm: str) -> nn.Module:
    """A network whose running statistics are those of some batches."""
    network = network_of(norm, stem_stride=1).train()
    for seed in range(20):
        network(noise(32, 1, 8, 8, seed=seed) * 2 + 1)
    return network.eval()


@pytest.mark.parametrize("alpha", [1e-9, 1 - 1e-7])
def test_of_a_layer_the_formula_ends_at_batch_and_at_instance_normalization(alpha: float) -> None:
    """In single precision."""
    layer: Any = normalizer("bn").layer(8, None)
    for seed in range(5):
        layer.train()(noise(32, 8, 6, 6, seed=seed) * 2 + 1)
    x, means = noise(16, 8, 6, 6), (layer.running_mean, layer.running_var)
    expected = F.batch_norm(x, *means) if alpha < 0.5 else F.instance_norm(x)
    set_example_weight(layer.eval(), alpha)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-6)


def instance_normalized(layer: BatchNormAct, x: Tensor) -> Tensor:
    return layer.activation(F.instance_norm(x, weight=layer.weight, bias=layer.bias, eps=layer.eps))


def test_alpha_0_is_batch_normalization_and_1_instance_normalization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the one formula: what alpha = 0 and 1 are is its limit, and no case of its own."""
    network, x = trained("bn").double(), noise(16, 1, 8, 8, seed=99).double() + 1
    plain = network(x)
    set_example_weight(network, 1e-12)
    torch.testing.assert_close(network(x), plain, rtol=0, atol=1e-6)
    set_example_weight(network, 0)
    torch.testing.assert_close(network(x), plain, rtol=0, atol=1e-6)

    instance = copy.deepcopy(network)
    for layer in [m for m in instance.modules() if isinstance(m, BatchNormAct)]:
        monkeypatch.setattr(layer, "norm_act", partial(instance_normalized, layer))
    expected = instance(x)
    for alpha in (1, 1 - 1e-12):
        set_example_weight(network, alpha)
        torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-6)
    assert (expected - plain).abs().max() > 1e-2


def pairs(seed: int, number: int = 64) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    x = noise(number, 1, 8, 8, seed=seed) + 1
    y = torch.arange(number) % 10

    def images() -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(x.split(20), y.split(20), strict=True)

    return images


@pytest.mark.parametrize("norm", ["bn", "ghost_bn", "sn", "bn_pn"])
def test_the_curve_and_what_is_chosen_by_it(norm: str) -> None:
    network = trained(norm)
    with unchanged(network):
        found = example_weight.alpha_curve(network, 10, pairs(1), pairs(2), [0.0, 0.3, 1.0])
        assert [point.alpha for point in found.points] == [0.0, 0.3, 1.0]
        assert found.usual == 0
    for measure, sign in (("top1", -1), ("top5", -1), ("loss", 1)):
        values = {point.alpha: sign * getattr(point, measure) for point in found.points}
        assert values[found.best[measure]] == min(values.values())
    assert {point.alpha for point in found.tested} == {0.0, *found.best.values()}
    # The test images decide nothing: others change no choice.
    others = example_weight.alpha_curve(network, 10, pairs(1), pairs(3), [0.0, 0.3, 1.0])
    assert others.best == found.best
    assert others.points == found.points
    assert others.test(0.0) != found.test(0.0)


def test_the_curve_is_evaluated_with_its_alpha() -> None:
    network = trained("bn")
    found = example_weight.alpha_curve(network, 10, pairs(1), pairs(2), [0.4])
    set_example_weight(network, 0.4)
    x, y = (torch.cat(each) for each in zip(*pairs(1)(), strict=True))
    loss = F.cross_entropy(network(x), y).detach()
    assert next(p.loss for p in found.points if p.alpha == 0.4) == pytest.approx(
        float(loss), rel=1e-4
    )


def test_group_normalization_needs_statistics_and_is_itself_at_1() -> None:
    network = trained("gn")
    with pytest.raises(ValueError, match="recalibrate"):
        example_weight.alpha_curve(network, 10, pairs(1), pairs(2))
    assert all(getattr(m, "example_weight", 1.0) == 1.0 for m in network.modules())


# Speed and memory


def test_memory_is_that_of_the_largest_moment() -> None:
    def run() -> None:
        a = torch.empty(1000, 1000)
        b = a + 1
        del a
        c = b.view(-1) * 2  # a view takes none
        del b
        c.add_(1)

    assert peak_memory(run, CPU) == 8_000_000


def test_memory_of_a_backward_pass_is_what_it_saves() -> None:
    layer = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
    x = noise(8, 3, 32, 32)
    one = 4 * 8 * 16 * 32 * 32

    def train() -> None:
        layer(x).square().sum().backward()

    def infer() -> None:
        with torch.no_grad():
            layer(x).square().sum()

    assert 3 * one <= peak_memory(train, CPU) < 6 * one
    assert 2 * one <= peak_memory(infer, CPU) < 2.5 * one


def entry(build: Callable[[], nn.Module], x: Tensor) -> TimedNetwork:
    return TimedNetwork(build, x)


def test_speeds_are_those_of_each_network() -> None:
    x = noise(4, 1, 8, 8)
    entries = {
        norm: entry(partial(model, "resnet8", norm=normalizer(norm), num_classes=10, in_chans=1), x)
        for norm in ("bn", "in", "gn")
    }
    training, inference = (
        {each.network: each for each in measure_speeds(entries, 10, mode, repeats=2)}
        for mode in MODES
    )
    assert list(training) == ["bn", "in", "gn"]
    assert training["in"].status == "n/a"
    assert "1x1 map" in training["in"].reason
    for found in (training, inference):
        for each in (found["bn"], found["gn"]):
            assert (each.status, each.batch) == ("ok", 4)
            assert each.lower <= each.steps_per_second <= each.upper  # type: ignore[operator]
    assert inference["bn"].memory < training["bn"].memory  # type: ignore[operator]


def test_the_memory_of_training_is_weights_gradients_momentum_and_maps() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(1000, 1000, bias=False))

    x, weights = noise(1, 1, 1, 1000), 4_000_000
    (training,) = measure_speeds({"it": entry(build, x)}, 1000, "training", repeats=1)
    (inference,) = measure_speeds({"it": entry(build, x)}, 1000, "inference", repeats=1)
    assert training.memory == pytest.approx(3 * weights, rel=0.02)
    assert inference.memory == pytest.approx(weights, rel=0.02)


def test_what_does_not_fit_is_oom() -> None:
    class Full(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("something else")

    x = noise(2, 1, 2, 2)
    entries = {
        "full": entry(lambda: Full(4, 10), x),
        "fits": entry(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 10)), x),
    }
    full, fits = measure_speeds(entries, 10, "inference", repeats=1)
    assert (full.status, full.steps_per_second, full.memory) == ("OOM", None, None)
    assert (fits.status, fits.reason) == ("ok", "")
    with pytest.raises(RuntimeError, match="something else"):
        measure_speeds({"broken": entry(lambda: Broken(4, 10), x)}, 10, "inference", repeats=1)


# Gains


@pytest.mark.parametrize("act", GAINS)
def test_a_gain_by_quadrature_is_the_constant_in_use(act: str) -> None:
    assert gains.gain_by_quadrature(activation(act)) == pytest.approx(GAINS[act], rel=1e-9)
    assert gains.gain_by_sampling(activation(act)) == pytest.approx(GAINS[act], rel=0.01)


def test_functions_of_vectors_are_sampled() -> None:
    """The constants of the paper's code, for vectors of 256."""
    for name, constant in (("glu", 1.8484), ("log_softmax", 1.0002)):
        function = gains.find_activation(name)
        assert gains.gain_by_sampling(function) == pytest.approx(constant, rel=0.01)
        with pytest.raises((ValueError, RuntimeError)):
            gains.gain_by_quadrature(function)


def test_an_activation_of_anybodys() -> None:
    found = gains.find_activation("torch.nn.functional.hardsigmoid")
    assert gains.gain_by_quadrature(found) > 1
    with pytest.raises(BadInput, match="act=nonsense cannot be found"):
        gains.find_activation("nonsense")
    with pytest.raises(BadInput, match=r"act=torch\.zeros is no activation"):
        gains.find_activation("torch.zeros")
