"""Properties that the papers state of their layers: invariances, bounds, ratios, variances."""

import copy
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normbench.catalog import normalizer, normalizers
from normbench.errors import BadInput, Impossible
from normbench.norms.base.activations import GAINS
from normbench.norms.base.layer import NormAct
from normbench.norms.base.options import largest_divisor
from normbench.norms.base.residual import FixUp, NormalizerFree, Residual, SkipInit
from normbench.norms.base.standardized_conv import ScaledStandardizedConv2d, Standardization
from normbench.norms.evonorm_expressions import EXPRESSIONS, REPEATS
from normbench.norms.switchable import SwitchableNormAct
from normbench.norms.workers import PerWorker, set_workers
from support.layers import images, perturbed_layer

# Scale invariance

INVARIANT: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("bn", "sync_bn", "ghost_bn", "bgn", "gn", "ln", "in", "frn", "rms")),
    *((name, {}) for name in ("bn_pn", "gn_pn", "ln_pn", "in_pn", "bn_ws", "gn_ws", "ln_ws")),
    *((name, {}) for name in ("gn_ws_pn", "sn", "sn_tied", "evonorm_b0", "evonorm_b2")),
    *(("evonorm_candidate", {"which": which}) for which in ("d1.2", "d1.5", "d1.9")),
]
#: x * sigmoid(k v x) goes to x where v x > 0, and to 0 elsewhere, as k grows (EvoNorm, E.3).
ASYMPTOTIC: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("evonorm_s0", "evonorm_s1", "evonorm_s2")),
    *(("evonorm_candidate", {"which": which}) for which in ("d1.3", "d2.1")),
]


@pytest.mark.parametrize(("name", "options"), INVARIANT, ids=str)
def test_the_scale_of_the_input_changes_nothing(name: str, options: dict[str, Any]) -> None:
    layer = perturbed_layer(normalizer(name, eps=1e-30, **options), 6, "relu", torch.float64)
    x = images((8, 6, 3, 3)).detach()
    torch.testing.assert_close(layer(1000 * x), layer(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), ASYMPTOTIC, ids=str)
def test_the_scale_of_a_large_input_changes_nothing(name: str, options: dict[str, Any]) -> None:
    layer = perturbed_layer(normalizer(name, **options), 6, "relu", torch.float64)
    x = images((8, 6, 3, 3)).detach()
    large = layer(1e6 * x)
    torch.testing.assert_close(layer(1e9 * x), large, rtol=1e-5, atol=1e-5)
    assert (layer(x) - large).abs().max() > 1e-2  # the control: it is not invariant
    v = dict(layer.named_parameters()).get("v", torch.ones(6)).view(-1, 1, 1)
    dead = (large - layer.get_parameter("bias").view(-1, 1, 1)).abs() < 1e-4
    assert torch.equal(dead, v * x < 0)


# Bounds


@pytest.mark.parametrize("shape", [(4, 1, 1, 1), (2, 1, 3, 5), (32, 1, 1, 1)], ids=str)
def test_bn_is_bounded_by_the_root_of_its_values(shape: tuple[int, ...]) -> None:
    """gamma sqrt(n - 1) + |beta| (Summers and Dinneen, eq. 2), n values of a channel; tight."""
    layer = normalizer("bn", eps=1e-30).layer(1, None).double()
    with torch.no_grad():
        layer.weight.fill_(1.5)  # type: ignore[union-attr]
        layer.bias.fill_(-0.7)  # type: ignore[union-attr]
    n = shape[0] * shape[2] * shape[3]
    lowest, highest = -1.5 * sqrt(n - 1) - 0.7, 1.5 * sqrt(n - 1) - 0.7
    for seed in range(50):
        heavy = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double() ** 5
        output = layer(heavy)
        assert lowest - 1e-9 <= output.min()
        assert output.max() <= highest + 1e-9
    alone = torch.zeros(shape, dtype=torch.float64)
    alone.view(-1)[0] = -3.0
    assert layer(alone).min().item() == pytest.approx(lowest)
    assert layer(-alone).max().item() == pytest.approx(highest)


# EvoNorm

#: Appendix D as printed, written as Python: s2 a variance and mu a mean over the axes named.
APPENDIX = {
    "d1.1": "x / max(sqrt(s2(x, bwh)), (x + 1) * sqrt(mu(x**2, wh)))",
    "d1.2": "x / max(sqrt(s2(x, bwh)), x + sqrt(mu(x**2, whc)))",
    "d1.3": "-(x * sigma(x)) / sqrt(s2(x, bwh))",
    "d1.4": "x / max(sqrt(s2(x, bwh)), x * sqrt(mu(x**2, wh)))",
    "d1.5": "x / max(sqrt(s2(x, bwh)), sqrt(mu(x**2, whc)) - x)",
    "d1.6": "x / max(sqrt(s2(x, bwh)), v1 * x + sqrt(s2(x, wh)))",
    "d1.7": "x / max(sqrt(s2(x, bwh)), sqrt(mu(x**2, wh)) - x)",
    "d1.9": "x / max(sqrt(s2(x, bwh)), x + sqrt(s2(x, wh)))",
    "d2.1": "x * tanh(sigma(x)) / sqrt(mu(x**2, whcg))",
    "d2.2": "x * sigma(x) / sqrt(mu(x**2, whcg))",
    "d2.5": "x * sigma(x) / sqrt(s2(x, whcg))",
    "d2.6": "x * sigma(v1 * x) / sqrt(s2(x, whcg))",
    "d2.10": "x / sqrt(mu(x**2, whcg)) * sigma(max(x, x / sqrt(mu(x**2, whcg))))",
}


@pytest.mark.parametrize("which", EXPRESSIONS)
def test_an_expression_is_that_of_the_appendix(which: str) -> None:
    norm = normalizer("evonorm_candidate", which=which, groups=3)
    layer = perturbed_layer(norm, 6, "relu", torch.float64)
    x = images((4, 6, 3, 5))
    z = evaluated(APPENDIX[which], x.detach().numpy(), layer)
    weight, bias = (
        layer.get_parameter(name).detach().numpy().reshape(1, 6, 1, 1)
        for name in ("weight", "bias")
    )
    np.testing.assert_allclose(layer(x).detach().numpy(), z * weight + bias, rtol=1e-10)


def evaluated(expression: str, x: np.ndarray[Any, Any], layer: NormAct) -> Any:
    """The value of a line of the appendix, by numpy; every root has eps beside its argument."""

    def mean(values: Any, axes: Any) -> Any:
        if axes != "whcg":
            return values.mean(axes, keepdims=True)
        groups = values.reshape(4, 3, 2, 3, 5).mean((2, 3, 4), keepdims=True)
        return np.broadcast_to(groups, (4, 3, 2, 3, 5)).reshape(values.shape)

    v = dict(layer.named_parameters()).get("v", torch.ones(6))
    words = {
        "x": x,
        "v1": v.detach().numpy().reshape(1, 6, 1, 1),
        "bwh": (0, 2, 3),
        "wh": (2, 3),
        "whc": (1, 2, 3),
        "whcg": "whcg",
        "mu": mean,
        "s2": lambda values, axes: mean(values**2, axes) - mean(values, axes) ** 2,
        "sqrt": lambda values: np.sqrt(values + 1e-5),
        "sigma": lambda values: 1 / (1 + np.exp(-values)),
        "tanh": np.tanh,
        "max": np.maximum,
    }
    return eval(expression, {"__builtins__": {}}, words)


def test_the_appendix_is_whole() -> None:
    every = {f"d{series}.{number}" for series, number in product((1, 2), range(1, 11))}
    assert EXPRESSIONS.keys() | REPEATS.keys() == every
    assert APPENDIX.keys() == EXPRESSIONS.keys()
    assert sum(which.startswith("d1") for which in EXPRESSIONS) == 8
    assert sum(which.startswith("d2") for which in EXPRESSIONS) == 5


@pytest.mark.parametrize("which", REPEATS)
def test_a_repeated_candidate_names_the_first(which: str) -> None:
    number = which[3:]
    message = f"norm.which={which}: number {number} of the appendix repeats {REPEATS[which]};"
    with pytest.raises(BadInput, match=message):
        normalizer("evonorm_candidate", which=which)


def test_evonorm_b0_in_evaluation_replaces_the_variance_of_the_batch_alone() -> None:
    layer = perturbed_layer(normalizer("evonorm_b0"), 6, "relu", torch.float64).eval()
    assert [name for name, _ in layer.named_buffers()] == ["running_var"]
    x = images((4, 6, 3, 3)).detach()
    v, weight, bias = (layer.get_parameter(n).view(-1, 1, 1) for n in ("v", "weight", "bias"))
    std = torch.sqrt(x.var((2, 3), correction=0, keepdim=True) + 1e-5)
    running = torch.sqrt(layer.get_buffer("running_var").view(-1, 1, 1) + 1e-5)
    expected = x / torch.maximum(running, v * x + std) * weight + bias
    torch.testing.assert_close(layer(x), expected)
    # It is no fixed affine map: the output of a mean of inputs is not the mean of outputs.
    middle = (layer(x[:2]) + layer(x[2:])) / 2
    assert (layer((x[:2] + x[2:]) / 2) - middle).abs().max() > 1e-2


EVONORMS = [name for name in normalizers() if name.startswith("evonorm")]


@pytest.mark.parametrize("name", EVONORMS)
def test_evonorm_without_activation_is_affine_alone(name: str) -> None:
    layer = perturbed_layer(normalizer(name), 6, None, torch.float64)
    x = images((2, 6, 3, 3))
    weight, bias = (layer.get_parameter(each).view(-1, 1, 1) for each in ("weight", "bias"))
    torch.testing.assert_close(layer(x), x * weight + bias)


@pytest.mark.parametrize(
    ("channels", "groups", "used"),
    [(64, 32, 32), (16, 32, 16), (24, 32, 24), (40, 32, 20), (112, 32, 28), (7, 4, 1)],
)
def test_groups_are_the_largest_divisor(channels: int, groups: int, used: int) -> None:
    assert largest_divisor(channels, groups) == used


# Normalizer-free networks


@pytest.mark.parametrize("act", GAINS)
def test_nf_keeps_the_variance_of_every_activation(act: str) -> None:
    u = torch.randn(64, 16, 40, 40, generator=torch.Generator().manual_seed(0))
    assert normalizer("nf").layer(16, act)(u).var().item() == pytest.approx(1, rel=5e-3)


@pytest.mark.parametrize("act", GAINS)
def test_nf_keeps_the_variance_through_a_convolution(act: str) -> None:
    """Weights of mean 0 take the mean away that the activation brings (section 4.1)."""
    norm = normalizer("nf")
    assert norm.conv is not None
    torch.manual_seed(0)
    conv = norm.conv.convert(nn.Conv2d(256, 256, 3, padding=1, bias=False, padding_mode="circular"))
    u = torch.randn(8, 256, 8, 8)
    assert conv(norm.layer(256, act)(u)).var().item() == pytest.approx(1, rel=3e-2)


def test_nf_without_activation_does_nothing() -> None:
    x = images((2, 6, 3, 3))
    layer = normalizer("nf").layer(6, None)
    assert not list(layer.parameters())
    assert torch.equal(layer(x), x)


def test_betas_are_those_of_the_papers_resnet_50() -> None:
    """sqrt(Var) before each block of [3, 4, 6, 3] blocks, alpha = 0.2."""
    first, second, third, fourth = NormalizerFree(0.2).deviations([3, 4, 6, 3])
    assert first == pytest.approx([1, 1.0198, 1.0392], abs=1e-4)
    assert second == pytest.approx([1.0583, 1.0198, 1.0392, 1.0583], abs=1e-4)
    assert third == pytest.approx([1.0770, 1.0198, 1.0392, 1.0583, 1.0770, 1.0954], abs=1e-4)
    assert fourth == pytest.approx([1.1136, 1.0198, 1.0392], abs=1e-4)


@pytest.mark.parametrize(
    ("residual", "expected"),
    [
        (Residual(), 3.0),
        (SkipInit(), 1.0),
        (NormalizerFree(0.2), 1.0),
        (NormalizerFree(0.2, skip_gain=False), 1.4),
        (FixUp(), 3.0),
    ],
    ids=str,
)
def test_a_residual_scheme_joins_shortcut_and_branch(residual: Residual, expected: float) -> None:
    join = residual.join()
    shortcut, branch = torch.ones(2, 3, 4, 4), torch.full((2, 3, 4, 4), 2.0)
    assert torch.allclose(join(shortcut, branch), torch.tensor(expected))
    for parameter in join.parameters():
        (gradient,) = torch.autograd.grad(join(shortcut, branch).sum(), parameter)
        assert gradient.abs() > 0


def test_fixup_starts_branches_at_zero() -> None:
    branches = [
        [nn.Conv2d(32, 32, 3), nn.Conv2d(32, 32, 3), nn.Conv2d(32, 64, 3)] for _ in range(16)
    ]
    head = nn.Linear(64, 10)
    FixUp().initialize(head, branches, head)
    for first, second, last in branches:
        for conv in (first, second):
            std = sqrt(2 / (32 * 9)) * 16 ** (-1 / 4)  # three convolutions in a branch
            assert conv.weight.std().item() == pytest.approx(std, rel=0.05)
        assert not last.weight.any()
    assert not head.weight.any()
    assert not head.bias.any()


@pytest.mark.parametrize("kind", ["ws", "scaled_ws"])
def test_standardized_filters_have_mean_0_and_their_variance(kind: Any) -> None:
    conv = Standardization(kind, 1e-10).convert(nn.Conv2d(8, 16, 3, groups=2).double())
    weights = conv.standardized().flatten(1)
    torch.testing.assert_close(weights.mean(1), torch.zeros(16).double())
    variance = 1 / 36 if isinstance(conv, ScaledStandardizedConv2d) else 1.0
    torch.testing.assert_close(weights.var(1, correction=0), torch.full((16,), variance).double())
    with pytest.raises(Impossible, match="filters of a single weight"):
        Standardization(kind, 1e-10).convert(nn.Conv2d(8, 8, 1, groups=8))


# Switchable normalization


@pytest.mark.parametrize("name", ["sn", "sn_tied"])
@pytest.mark.parametrize("over", [["in", "ln", "bn"], ["in", "ln"], ["in", "bn"], ["ln", "bn"]])
@pytest.mark.parametrize("hard", [False, True])
def test_ratios_sum_to_one(name: str, over: list[str], hard: bool) -> None:
    layer = perturbed_layer(normalizer(name, over=over), 6, "relu", torch.float64)
    assert isinstance(layer, SwitchableNormAct)
    layer.hard = hard
    for ratio in layer.ratios():
        assert ratio.shape == (len(over),)
        assert ratio.sum().item() == pytest.approx(1)
        assert (ratio.max() == 1) == hard


@pytest.mark.parametrize("member", ["in", "ln", "bn"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("mix", ["var", "std"])
@pytest.mark.parametrize("workers", [1, 2])
def test_one_hot_logits_are_the_normalizer_that_they_pick(
    member: str, training: bool, mix: str, workers: int
) -> None:
    theirs = perturbed_layer(normalizer(member), 6, "silu", torch.float64).train(training)
    ours = normalizer("sn", mix=mix).layer(6, "silu").double().train(training)
    ours.load_state_dict(theirs.state_dict(), strict=False)
    one_hot = torch.tensor([100.0 * (each == member) for each in ("in", "ln", "bn")])
    for name in ("mean_logits", "var_logits"):
        ours.get_parameter(name).data.copy_(one_hot)
    for layer in (ours, theirs):
        set_workers(layer, workers)
    x = images((8, 6, 3, 3))
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


def test_the_codes_unbiased_variance_leaks_into_all_members() -> None:
    """As in the authors' code, all variances come from the unbiased one of each channel."""
    x = images((4, 6, 2, 2)).detach()
    ours = normalizer("sn", unbiased=True, over=["ln"]).layer(6, None).double()
    mean, var = x.mean((2, 3)), x.var((2, 3))  # torch's default is unbiased
    of_layer = (var + mean**2).mean(1) - mean.mean(1) ** 2
    expected = (x - x.mean((1, 2, 3), keepdim=True)) / torch.sqrt(of_layer + 1e-5).view(-1, 1, 1, 1)
    torch.testing.assert_close(ours(x), expected)
    biased = normalizer("sn", over=["ln"]).layer(6, None).double()
    assert (biased(x) - expected).abs().max() > 1e-2


# Proxy normalization


@pytest.mark.parametrize("name", ["gn_pn", "ln_pn", "in_pn", "bn_pn", "gn_ws_pn"])
def test_a_gaussian_channel_comes_out_normalized(name: str) -> None:
    layer = normalizer(name, proxy_eps=1e-9, samples=4000).layer(4, "relu").double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, 1.0, 1.5, 1.0]))  # type: ignore[union-attr]
        layer.bias.copy_(torch.tensor([0.0, 0.3, -0.5, 1.0]))  # type: ignore[union-attr]
    x = torch.randn(2, 4, 300, 300, generator=torch.Generator().manual_seed(0)).double()
    output = layer(x)
    torch.testing.assert_close(output.mean((0, 2, 3)), torch.zeros(4).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(output.var((0, 2, 3)), torch.ones(4).double(), atol=0.02, rtol=0)


def test_before_the_final_mean_the_proxys_scale_is_left_out() -> None:
    norm = normalizer("gn_pn")
    layer, last = norm.layer(8), norm.final_layer(8)
    x = images((2, 8, 3, 3), torch.float32)
    _, var = layer.proxy_moments()  # type: ignore[operator]
    torch.testing.assert_close(last(x), layer(x) * torch.sqrt(var + 0.03).view(-1, 1, 1))
    torch.testing.assert_close(last(x).double(), last.reference(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("additional", "left"), [(True, {"weight"}), (False, {"weight", "bias"})])
def test_without_activation_the_additional_parameters_replace_the_shift(
    additional: bool, left: set[str]
) -> None:
    norm = normalizer("gn_pn", additional=additional)
    assert {name for name, _ in norm.layer(8, None).named_parameters()} == left
    names = {name for name, _ in norm.layer(8).named_parameters()} - {"weight", "bias"}
    assert names == ({"proxy_weight", "proxy_bias"} if additional else set())


# Batch renormalization


@pytest.mark.parametrize(
    ("progress", "r", "d"),
    [(0.0, 1, 0), (0.04, 1, 0), (0.12, 1.6154, 2.5), (0.2, 2.2308, 5), (0.3, 3, 5), (1.0, 3, 5)],
)
def test_the_limits_of_batch_renorm_open_linearly(progress: float, r: float, d: float) -> None:
    layer = normalizer("batch_renorm").layer(4)
    layer.get_buffer("progress").fill_(progress)
    limits = [each.item() for each in layer.limits()]  # type: ignore[operator]
    assert limits == pytest.approx([r, d], abs=1e-3)


# Refusals


@pytest.mark.parametrize(
    ("name", "options", "shape", "workers", "says"),
    [
        ("bn", {}, (1, 4, 1, 1), 1, "a worker has 1 image"),
        ("bn", {}, (2, 4, 1, 1), 2, "a worker has 1 image"),
        ("bn_pn", {}, (2, 4, 1, 1), 2, "a worker has 1 image"),
        ("sync_bn", {}, (1, 4, 1, 1), 1, "a worker has 1 image"),
        ("batch_renorm", {}, (1, 4, 1, 1), 1, "a worker has 1 image"),
        ("ghost_bn", {}, (4, 4, 3, 3), 1, "norm.ghost=4: .* a worker has 4 here"),
        ("ghost_bn", {"ghost": 3}, (16, 4, 3, 3), 2, "norm.ghost=3: .* a worker has 8 here"),
        ("ghost_bn", {"ghost": 1}, (16, 4, 1, 1), 2, "a single value per channel"),
        ("bgn", {}, (2, 4, 1, 1), 2, "use batch=2, fewer groups or a larger map"),
        (
            "bgn",
            {"images": 2},
            (6, 4, 3, 3),
            2,
            "norm.images=2 does not divide a worker's 3",
        ),
        ("gn", {}, (4, 8, 1, 1), 1, "use fewer groups or a larger map"),
        ("in", {}, (4, 8, 1, 1), 1, "use fewer groups or a larger map"),
        ("sn", {"unbiased": True}, (4, 8, 1, 1), 1, "norm.unbiased=false works"),
        ("sn", {"over": ["in", "bn"]}, (2, 8, 1, 1), 2, "more members of norm.over"),
    ],
)
def test_single_values_and_groups_that_do_not_fit_are_refused(
    name: str, options: dict[str, Any], shape: tuple[int, ...], workers: int, says: str
) -> None:
    layer = normalizer(name, **options).layer(shape[1])
    set_workers(layer, workers)
    with pytest.raises(Impossible, match=says):
        layer(torch.ones(shape))
    if "bn" in name:  # running statistics are not of one value
        assert layer.eval()(torch.ones(1, *shape[1:])).isfinite().all()


@pytest.mark.parametrize("shape", [(2, 4, 1, 1), (1, 4, 2, 2), (1, 4, 1, 2), (1, 4, 2, 1)], ids=str)
@pytest.mark.parametrize("name", ["bn", "batch_renorm", "bgn", "sn"])
def test_two_values_of_a_channel_are_enough(name: str, shape: tuple[int, ...]) -> None:
    layer = normalizer(name).layer(4)
    assert layer.refusal(torch.Size(shape)) == ""
    assert layer(torch.randn(shape)).isfinite().all()


def test_synchronized_workers_of_one_image_work() -> None:
    layer = normalizer("sync_bn").layer(4)
    set_workers(layer, 2)
    assert layer(torch.randn(2, 4, 1, 1)).isfinite().all()


def test_images_must_fall_evenly_on_workers() -> None:
    layer = normalizer("bn").layer(4)
    with pytest.raises(ValueError, match="workers=0"):
        set_workers(layer, 0)
    set_workers(layer, 3)
    assert isinstance(layer, PerWorker)
    with pytest.raises(ValueError, match="4 images do not fall evenly on 3 workers"):
        layer(torch.ones(4, 4, 2, 2))


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gn", {"groups": 0}, "norm.groups=0: it must be above 0"),
        ("evonorm_s0", {"groups": -1}, "norm.groups=-1: it must be above 0"),
        ("ln", {"eps": -1.0}, "norm.eps=-1.0: it must be above 0"),
        ("bn", {"eps": 0.0}, "norm.eps=0.0: it must be above 0"),
        ("bn", {"momentum": 2.0}, "norm.momentum=2.0: it must be above 0 and at most 1"),
        ("bgn", {"images": 0}, "norm.images=0: it must be above 0"),
        ("ghost_bn", {"ghost": 0}, "norm.ghost=0: it must be above 0"),
        ("bn", {"momentum": 0.0}, "norm.momentum=0.0: it must be above 0 and at most 1"),
        ("bgn", {"eps": 0.0}, "norm.eps=0.0: it must be above 0"),
        ("bgn", {"momentum": 1.1}, "norm.momentum=1.1: it must be above 0 and at most 1"),
        ("batch_renorm", {"eps": 0.0}, "norm.eps=0.0: it must be above 0"),
        ("batch_renorm", {"d_max": 0.0}, "norm.d_max=0.0: it must be above 0"),
        ("batch_renorm", {"r_max": 0.5}, "norm.r_max=0.5: it must be at least 1"),
        ("batch_renorm", {"start": 0.5}, "norm.start=0.5: .* below norm.r_open=0.3"),
        ("batch_renorm", {"start": 0.2}, "norm.start=0.2: .* below norm.d_open=0.2"),
        ("batch_renorm", {"start": -0.1}, "norm.start=-0.1: it must be at least 0"),
        ("batch_renorm", {"r_open": 1.1}, "norm.r_open=1.1, which is at most 1"),
        ("evonorm_b0", {"eps": 0.0}, "norm.eps=0.0: it must be above 0"),
        ("evonorm_b0", {"momentum": 2.0}, "norm.momentum=2.0: it must be above 0 and at most 1"),
        ("evonorm_candidate", {"momentum": 0.0}, "norm.momentum=0.0: it must be above 0 and at"),
        ("evonorm_candidate", {"eps": 0.0}, "norm.eps=0.0: it must be above 0"),
        ("frn", {"eps": 0.0}, "norm.eps=0.0: it must be above 0"),
        ("rms", {"eps": 0.0}, "norm.eps=0.0: it must be above 0"),
        ("fixup", {"rate": 0.0}, "norm.rate=0.0: it must be above 0"),
        ("gn_pn", {"groups": 0}, "norm.groups=0: it must be above 0"),
        ("gn_pn", {"samples": 0}, "norm.samples=0: it must be above 0"),
        ("gn_pn", {"proxy_eps": 0.0}, "norm.proxy_eps=0.0: it must be above 0"),
        ("nf", {"ws_eps": 0.0}, "norm.ws_eps=0.0: it must be above 0"),
        ("nf", {"gain": 0.0}, "norm.gain=0.0: it must be above 0"),
        ("nf", {"gate": -1.0}, "norm.gate=-1.0: it must be above 0"),
        ("sn", {"eps": 0.0}, "norm.eps=0.0: it must be above 0"),
        ("sn", {"momentum": 2.0}, "norm.momentum=2.0: it must be above 0 and at most 1"),
        ("nf", {"alpha": 0.0}, "norm.alpha=0.0: it must be above 0"),
        ("gn_ws", {"ws_eps": 0.0}, "norm.ws_eps=0.0: it must be above 0"),
        ("dyt", {"alpha": -1.0}, "norm.alpha=-1.0: it must be above 0"),
        ("sn", {"mix": "mean"}, "norm.mix=mean: it must be 'var' or 'std'"),
        ("sn", {"over": []}, r"norm.over=\[\]: some of in, ln, bn"),
        ("sn", {"over": ["bn", "in"]}, r"norm.over=\['bn', 'in'\]: some of in, ln, bn"),
        ("sn", {"mean_ratios": [0.5, 0.5]}, r"norm.mean_ratios=\[0.5, 0.5\]: 3 ratios"),
        ("sn_tied", {"var_ratios": [1, 0, 0]}, r"norm.var_ratios=\[1.0, 0.0, 0.0\]: tied"),
        ("evonorm_candidate", {"which": "b0"}, "norm.which=b0 is no candidate of appendix D"),
    ],
)
def test_an_option_that_cannot_be_is_one_sentence(
    name: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        normalizer(name, **options)


def test_an_unknown_activation_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean relu"):
        normalizer("bn").layer(4, "rellu")


def test_a_copy_is_a_layer_of_its_own() -> None:
    layer = normalizer("sn").layer(4)
    twin = copy.deepcopy(layer)
    x: Tensor = torch.randn(4, 4, 3, 3)
    twin(x)
    assert torch.equal(layer.get_buffer("running_mean"), torch.zeros(4))
