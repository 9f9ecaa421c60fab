"""Layers against implementations that are not ours, each with its tolerance."""

import copy
from collections.abc import Callable
from datetime import timedelta
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm as gaussian
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.evo_norm import (
    EvoNorm2dB0,
    EvoNorm2dB1,
    EvoNorm2dB2,
    EvoNorm2dS0,
    EvoNorm2dS1,
    EvoNorm2dS2,
)
from timm.layers.filter_response_norm import FilterResponseNormTlu2d
from timm.layers.norm import RmsNorm2d
from timm.layers.pool2d_same import MaxPool2dSame
from timm.layers.std_conv import ScaledStdConv2d, StdConv2d
from timm.models.nfnet import _nonlin_gamma
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torchvision.ops import FrozenBatchNorm2d

from normbench.catalog import normalizer
from normbench.norms.base import devices
from normbench.norms.base.activations import GAINS, activation
from normbench.norms.base.progress import set_progress
from normbench.norms.base.same_padding import SameConv2d, SameMaxPool2d
from normbench.norms.base.standardized_conv import Standardization
from normbench.norms.batch import BatchNorm, SyncBatchNormAct
from normbench.norms.renorm import BatchRenormAct
from normbench.norms.workers import set_workers
from support.layers import images, perturbed_layer

#: Rounding alone: timm takes statistics in fp32 even of fp64.
FP32: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
FP64: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


# Batch statistics


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["bn", "sync_bn", "bn_ws"])
def test_bn_is_torchs_bit_for_bit(name: str, training: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.BatchNorm2d(6).train(training)
    ours = normalizer(name).layer(6).train(training)
    for step in range(3):
        x = torch.randn(4, 6, 5, 5) * (step + 1)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        left, right = ours(a), F.relu(theirs(b))
        assert torch.equal(left, right)
        inputs = [a, *ours.parameters()], [b, *theirs.parameters()]
        for mine, other in zip(
            torch.autograd.grad(left.square().sum(), inputs[0]),
            torch.autograd.grad(right.square().sum(), inputs[1]),
            strict=True,
        ):
            assert torch.equal(mine, other)
    for buffer in ("running_mean", "running_var"):
        assert torch.equal(ours.get_buffer(buffer), theirs.get_buffer(buffer))


def test_sync_bn_is_torchs_bn_of_all_workers() -> None:
    theirs = nn.BatchNorm2d(6).double()
    ours = normalizer("sync_bn").layer(6, None).double()
    set_workers(ours, 4)
    x = images((8, 6, 3, 3))
    torch.testing.assert_close(ours(x), theirs(x), **FP64)
    torch.testing.assert_close(ours.get_buffer("running_var"), theirs.running_var, **FP64)


def test_sync_bn_merges_the_moments_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two devices, with the other's moments in place of a process group."""
    together, device = (
        perturbed_layer(normalizer("sync_bn"), 6, "silu", torch.float64) for _ in range(2)
    )
    x = images((8, 6, 3, 3)).detach()
    expected, normalized = together(x)[0::2], together.normalize(x)[0::2]  # type: ignore[operator]
    other, mean = x[1::2], x.mean((0, 2, 3), keepdim=True)
    moments = [other.mean((0, 2, 3)), (other - mean).square().mean((0, 2, 3))]
    turns = cycle(moments)
    monkeypatch.setattr(devices, "all_reduce", lambda value: value + next(turns))
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    torch.testing.assert_close(device.normalize(x[0::2]), normalized, **FP64)  # type: ignore[operator]
    torch.testing.assert_close(device(x[0::2]), expected, **FP64)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(device.get_buffer(name), together.get_buffer(name), **FP64)
    assert device.refusal(torch.Size((1, 6, 1, 1))) == ""  # two values on two devices


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_options_of_bn_are_those_of_torch(training: bool) -> None:
    ours = BatchNorm(momentum=0.3, eps=0.1).layer(6, None).double().train(training)
    theirs = nn.BatchNorm2d(6, momentum=0.3, eps=0.1).double().train(training)
    x = images((4, 6, 3, 3))
    torch.testing.assert_close(ours(x), theirs(x), **FP64)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(ours.get_buffer(name), theirs.get_buffer(name), **FP64)


def test_bn_inherits_the_options_of_the_layer_that_it_replaces() -> None:
    old = nn.BatchNorm2d(6, eps=1e-3, momentum=0.02)
    assert BatchNorm().inherit_options(old) == BatchNorm(momentum=0.02, eps=1e-3)
    assert BatchNorm(momentum=0.3).inherit_options(old) == BatchNorm(momentum=0.3, eps=1e-3)
    cumulative = nn.BatchNorm2d(6, momentum=None)
    assert BatchNorm().inherit_options(cumulative) == BatchNorm()
    assert BatchNorm().inherit_options(nn.GroupNorm(2, 6, eps=1e-3)) == BatchNorm()


def test_bn_inherits_parameters_and_statistics_of_equal_shape() -> None:
    old = nn.BatchNorm2d(6)
    for value in (old.weight, old.bias, old.running_mean, old.running_var):
        assert value is not None
        value.data.uniform_(0.5, 1.5)
    new, other = BatchNorm().layer(6), BatchNorm().layer(5)
    new.inherit_parameters(old)
    other.inherit_parameters(old)
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(new.state_dict()[name], old.state_dict()[name])
    assert torch.equal(other.get_parameter("weight"), torch.ones(5))
    evonorm = normalizer("evonorm_b0").layer(6)
    evonorm.inherit_parameters(old)
    assert torch.equal(evonorm.get_parameter("weight"), old.weight)
    assert torch.equal(evonorm.get_buffer("running_var"), torch.ones(6))  # of another formula


@pytest.mark.slow
def test_sync_bn_of_two_processes_is_torchs_bn_of_both(tmp_path: Path) -> None:
    spawn(_one_of_two, (tmp_path,), nprocs=2)
    theirs = nn.BatchNorm2d(6).double()
    x = images((8, 6, 3, 3))
    expected = theirs(x)
    inputs = [x, *theirs.parameters()]
    gradients = torch.autograd.grad((expected * torch.sin(x.detach())).sum(), inputs)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for rank, (output, of_x, of_weight, of_bias, mean, var) in enumerate(results):
        torch.testing.assert_close(output, expected[rank::2], **FP64)
        torch.testing.assert_close(of_x, gradients[0][rank::2], rtol=1e-10, atol=1e-10)
        other = results[1 - rank]
        torch.testing.assert_close(of_weight + other[2], gradients[1], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(of_bias + other[3], gradients[2], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(mean, theirs.running_mean, **FP64)
        torch.testing.assert_close(var, theirs.running_var, **FP64)


def _one_of_two(rank: int, folder: Path) -> None:
    """A process of a gloo group with every second image: image k belongs to rank k mod 2."""
    store = distributed.FileStore(  # type: ignore[attr-defined]
        str(folder / "store"), 2
    )
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    layer = normalizer("sync_bn").layer(6, None).double()
    assert isinstance(layer, SyncBatchNormAct)
    x = images((8, 6, 3, 3)).detach()[rank::2].requires_grad_()
    output = layer(x)
    inputs = [x, *layer.parameters()]
    gradients = torch.autograd.grad((output * torch.sin(x.detach())).sum(), inputs)
    results = [output.detach(), *gradients, layer.running_mean, layer.running_var]
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


def test_frozen_bn_is_torchvisions_and_never_changes() -> None:
    ours = perturbed_layer(normalizer("frozen_bn"), 6, None, torch.float64).train()
    theirs = FrozenBatchNorm2d(6).double()
    theirs.load_state_dict(ours.state_dict())
    before = copy.deepcopy(ours.state_dict())
    x = images((4, 6, 3, 3))
    torch.testing.assert_close(ours(x), theirs(x), **FP64)
    ours(x).square().sum().backward()
    assert x.grad is not None
    assert all(each.grad is None for each in ours.parameters())
    for name, value in ours.state_dict().items():
        assert torch.equal(value, before[name])


def test_ghost_bn_is_torchs_bn_of_every_group() -> None:
    ours = perturbed_layer(normalizer("ghost_bn", ghost=2), 6, None, torch.float64)
    set_workers(ours, 2)
    x = images((16, 6, 3, 3))
    expected = torch.empty_like(x)
    for group in range(8):  # 2 workers of 8 images, 4 groups in each
        part = F.batch_norm(x[group::8], None, None, ours.weight, ours.bias, training=True)
        expected[group::8] = part
    torch.testing.assert_close(ours(x), expected, **FP64)


def test_batch_renorm_begins_as_torchs_bn() -> None:
    ours = perturbed_layer(normalizer("batch_renorm"), 6, None, torch.float64)
    assert isinstance(ours, BatchRenormAct)
    set_progress([ours], 0.0)
    x = images((8, 6, 3, 3))
    expected = F.batch_norm(x, None, None, ours.weight, ours.bias, training=True)
    torch.testing.assert_close(ours(x), expected, **FP64)


# Statistics of one image


@pytest.mark.parametrize(("name", "groups"), [("gn", 4), ("ln", 1), ("gn_ws", 4)])
def test_gn_and_ln_are_torchs_group_norm(name: str, groups: int) -> None:
    layer = normalizer(name).with_max_groups(4).layer(12, None).double()
    x = images((3, 12, 5, 4))
    torch.testing.assert_close(layer(x), nn.GroupNorm(groups, 12).double()(x), **FP64)


def test_ln_is_torchs_layer_norm_over_maps() -> None:
    x = images((3, 12, 5, 4))
    layer = normalizer("ln").layer(12, None).double()
    torch.testing.assert_close(layer(x), F.layer_norm(x, [12, 5, 4]), **FP64)


def test_in_is_torchs_instance_norm() -> None:
    x = images((3, 12, 5, 4))
    layer = normalizer("in").layer(12, None).double()
    torch.testing.assert_close(layer(x), nn.InstanceNorm2d(12, affine=True).double()(x), **FP64)


def test_rms_is_timms_and_torchs() -> None:
    ours = perturbed_layer(normalizer("rms"), 12, None, torch.float32)
    theirs = RmsNorm2d(12, eps=1e-6)
    theirs.load_state_dict(ours.state_dict())
    x = images((3, 12, 5, 4), torch.float32)
    torch.testing.assert_close(ours(x), theirs(x), **FP32)
    last = F.rms_norm(x.permute(0, 2, 3, 1), (12,), ours.weight, eps=1e-6).permute(0, 3, 1, 2)
    torch.testing.assert_close(ours(x), last, **FP32)


@pytest.mark.parametrize("act", ["relu", None])
def test_frn_is_timms_with_the_papers_eps(act: str | None) -> None:
    ours = perturbed_layer(normalizer("frn"), 12, act, torch.float32)
    theirs = FilterResponseNormTlu2d(12, apply_act=act is not None, eps=1e-6)
    theirs.load_state_dict(ours.state_dict())
    x = images((3, 12, 5, 4), torch.float32)
    torch.testing.assert_close(ours(x), theirs(x), **FP32)


SERIES = {
    "evonorm_b0": EvoNorm2dB0,
    "evonorm_b1": EvoNorm2dB1,
    "evonorm_b2": EvoNorm2dB2,
    "evonorm_s0": EvoNorm2dS0,
    "evonorm_s1": EvoNorm2dS1,
    "evonorm_s2": EvoNorm2dS2,
}


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("act", ["relu", None])
def test_evonorms_are_timms_with_the_papers_eps(name: str, training: bool, act: str | None) -> None:
    ours = perturbed_layer(normalizer(name), 64, act, torch.float32).train(training)
    theirs = SERIES[name](64, apply_act=act is not None, eps=1e-5).train(training)
    theirs.load_state_dict(ours.state_dict(), strict=act is not None)
    before = copy.deepcopy(ours.state_dict())
    x = images((4, 64, 5, 4), torch.float32)
    torch.testing.assert_close(ours(x), theirs(x), **FP32)
    if name[8] == "b" and training and act is not None:
        n = 4 * 5 * 4  # theirs keeps the unbiased variance, the paper the biased one
        moved = (
            each.get_buffer("running_var") - 0.9 * before["running_var"] for each in (ours, theirs)
        )
        biased, unbiased = moved
        torch.testing.assert_close(biased, unbiased * (n - 1) / n, **FP32)


# Weights and activations


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_padding_same_is_that_of_timms_ports_of_tensorflow(size: int, stride: int) -> None:
    theirs = Conv2dSame(4, 6, size, stride, groups=2)
    ours = SameConv2d(nn.Conv2d(4, 6, size, stride, groups=2))
    ours.load_state_dict(theirs.state_dict())
    pool, their_pool = SameMaxPool2d(size, stride), MaxPool2dSame(size, stride)
    for height, width in [(8, 8), (9, 9), (8, 7), (5, 6), (1, 2)]:
        x = torch.randn(2, 4, height, width) - 3  # below the zeros of a padding that was wrong
        torch.testing.assert_close(ours(x), theirs(x))
        assert torch.equal(pool(x), their_pool(x))


@pytest.mark.parametrize("kind", ["ws", "scaled_ws"])
def test_standardized_convolutions_keep_the_padding(kind: Any) -> None:
    x, conv = torch.randn(2, 4, 8, 8), SameConv2d(nn.Conv2d(4, 6, 3, 2, bias=False))
    standardized = Standardization(kind, 1e-5).convert(conv)
    plain = F.conv2d(F.pad(x, (0, 1, 0, 1)), standardized.standardized(), stride=2)
    torch.testing.assert_close(standardized(x), plain)


@pytest.mark.parametrize(("groups", "size"), [(1, 3), (4, 3), (8, 3), (1, 1)])
def test_weight_standardization_is_timms(groups: int, size: int) -> None:
    theirs = StdConv2d(8, 16, size, stride=2, padding=1, groups=groups, bias=False, eps=1e-5)
    ours = Standardization("ws", 1e-5).convert(copy.deepcopy(theirs))
    x = images((2, 8, 6, 6), torch.float32)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("groups", "size"), [(1, 3), (4, 3), (8, 3), (1, 1)])
def test_scaled_weight_standardization_is_timms(groups: int, size: int) -> None:
    theirs = ScaledStdConv2d(8, 16, size, padding=1, groups=groups, gamma=1.0, eps=1e-12)
    ours = Standardization("scaled_ws", 1e-4).convert(copy.deepcopy(theirs))
    with torch.no_grad():
        gain = torch.linspace(0.5, 1.5, 16)
        ours.gain.copy_(gain)  # type: ignore[operator]
        theirs.gain.copy_(gain.view(-1, 1, 1, 1))
    x = images((2, 8, 6, 6), torch.float32)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["ws", "scaled_ws"])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_standardized_weights_are_those_of_the_reference(kind: str, groups: int) -> None:
    conv = nn.Conv2d(8, 16, 3, groups=groups, bias=False).double()
    ours = Standardization(kind, 1e-10).convert(conv)  # type: ignore[arg-type]
    actual, expected = ours.standardized(), ours.reference()
    torch.testing.assert_close(actual, expected, **FP64)
    weights = torch.randn(actual.shape, dtype=torch.float64)
    left, right = (
        torch.autograd.grad((each * weights).sum(), ours.weight)[0] for each in (actual, expected)
    )
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


def moments(function: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """Mean and variance of function(u), u ~ N(0, 1), by adaptive quadrature."""

    def expectation(of: Callable[[float], float]) -> float:
        cuts = [-12, -3, 0, 3, 6, 12]  # no activation has a kink elsewhere
        parts = pairwise(cuts)
        return float(
            sum(quad(lambda u: of(u) * gaussian.pdf(u), *part, epsabs=1e-13)[0] for part in parts)
        )

    def value(u: float) -> float:
        return float(function(torch.tensor(u, dtype=torch.float64)))

    mean = expectation(value)
    return mean, expectation(lambda u: (value(u) - mean) ** 2)


@pytest.mark.parametrize("act", GAINS)
def test_gains_are_those_of_quadrature(act: str) -> None:
    _, var = moments(activation(act))
    assert GAINS[act] == pytest.approx(var**-0.5, rel=1e-9)


@pytest.mark.parametrize("act", sorted(GAINS.keys() & _nonlin_gamma.keys()))
def test_gains_are_near_those_of_the_papers_code(act: str) -> None:
    assert GAINS[act] == pytest.approx(_nonlin_gamma[act], rel=2e-3)  # theirs are of random vectors


# Proxy normalization, of which no usable implementation exists


@pytest.mark.parametrize(
    ("act", "samples", "mean", "var", "scale"),
    [
        ("relu", 200, 0.398451, 0.338035, 1.648373),
        ("relu", 256, 0.398565, 0.338637, 1.647026),
        ("silu", 200, 0.206048, 0.310004, 1.714977),
        ("silu", 256, 0.206184, 0.310665, 1.713312),
    ],
)
def test_the_proxy_has_the_moments_of_the_official_code(
    act: str, samples: int, mean: float, var: float, scale: float
) -> None:
    layer = normalizer("ln_pn", samples=samples).layer(4, act).double()
    found_mean, found_var = layer.proxy_moments()  # type: ignore[operator]
    assert found_mean[0].item() == pytest.approx(mean, abs=1e-6)
    assert found_var[0].item() == pytest.approx(var, abs=1e-6)
    assert (found_var[0] + 0.03).rsqrt().item() == pytest.approx(scale, abs=2e-6)


@pytest.mark.parametrize("act", ["relu", "silu", "gelu", "tanh"])
@pytest.mark.parametrize(("samples", "off"), [(200, 0.04), (256, 0.03), (100_000, 2e-4)])
def test_the_proxy_has_the_moments_of_quadrature(act: str, samples: int, off: float) -> None:
    layer = perturbed_layer(normalizer("ln_pn", samples=samples), 5, act, torch.float64)
    mean, var = layer.proxy_moments()  # type: ignore[operator]
    for c in range(5):
        weight, bias, shift, spread = (
            layer.get_parameter(name)[c].item()
            for name in ("weight", "bias", "proxy_bias", "proxy_weight")
        )

        def function(
            u: Tensor, w: float = weight, b: float = bias, s: float = shift, t: float = spread
        ) -> Tensor:
            return activation(act)(w * (s + (1 + t) * u) + b)

        exact_mean, exact_var = moments(function)
        assert mean[c].item() == pytest.approx(exact_mean, abs=off)
        assert var[c].item() == pytest.approx(exact_var, rel=off)
