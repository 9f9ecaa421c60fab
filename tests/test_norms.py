"""Every normalizer of conf/norm/ against its own reference, and against others' implementations."""

import pytest
import torch
from timm.layers.evo_norm import EvoNorm2dS0
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import normalizer, normalizers
from normbench.errors import BadInput, Impossible
from normbench.norms.layer import NormAct, Normalizer, largest_divisor
from normbench.norms.workers import PerWorker, set_workers

# Odd maps, a 1x1 map, one group of one channel, more channels than groups.
SHAPES = [(8, 6, 5, 3), (8, 64, 2, 2), (8, 4, 1, 1)]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 4e-2}

batch_dependent = [name for name in normalizers() if not normalizer(name).batch_independent]
batch_independent = [name for name in normalizers() if normalizer(name).batch_independent]


def made(norm: Normalizer, channels: int, act: str | None, dtype: torch.dtype) -> NormAct:
    """A layer with parameters and running statistics as they might be after some training."""
    layer = norm.layer(channels, act).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
        for name, buffer in layer.named_buffers():
            noise = torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype)
            buffer.copy_(noise + (0.5 if "var" in name else -0.5))
    return layer


def images(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    x = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype) + 0.7
    return x.requires_grad_()


def values_and_gradients(layer: NormAct, x: Tensor, output: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    gradients = torch.autograd.grad((output * weights).sum(), [x, *layer.parameters()])
    return [output, *gradients]


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("act", ["relu", "silu", None])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_values_and_gradients_are_those_of_the_reference(
    name: str, shape: tuple[int, ...], act: str | None, workers: int, training: bool
) -> None:
    layer = made(normalizer(name), shape[1], act, torch.float64).train(training)
    set_workers(layer, workers)
    x = images(shape)
    found = values_and_gradients(layer, x, layer(x))
    layer.load_state_dict(made(normalizer(name), shape[1], act, torch.float64).state_dict())
    expected = values_and_gradients(layer, x, layer.reference(x))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_dtype_and_layout(name: str, dtype: torch.dtype, layout: torch.memory_format) -> None:
    layer = made(normalizer(name), 8, "relu", dtype)
    x = images((8, 8, 4, 4), dtype).detach().to(memory_format=layout)
    output = layer(x)
    assert output.dtype == dtype
    reference = made(normalizer(name), 8, "relu", torch.float64)
    reference.load_state_dict(layer.state_dict())
    expected = reference.train().reference(x)
    worst = TOLERANCE[dtype]
    torch.testing.assert_close(output.double(), expected, rtol=worst, atol=worst)


@pytest.mark.parametrize("name", normalizers())
def test_statistics_are_fp32_under_autocast(name: str) -> None:
    """A mean of 300 and a deviation of 1 are beyond what bf16 statistics could tell apart."""
    layer = normalizer(name).layer(8)
    x = 300 + torch.randn(8, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    x = x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x).float()
    torch.testing.assert_close(output, layer.reference(x).float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("act", ["relu", None])
def test_parameters_have_the_names_and_starts_of_the_contract(name: str, act: str | None) -> None:
    layer = normalizer(name).layer(6, act)
    start = {"weight": 1.0, "bias": 0.0, "v": 1.0}
    for parameter, values in layer.named_parameters():
        assert values.shape == (6,)
        assert torch.equal(values, torch.full((6,), start[parameter]))
        assert parameter in layer.roles
    assert {buffer for buffer, _ in layer.named_buffers()} <= {"running_mean", "running_var"}


@pytest.mark.parametrize("name", normalizers())
def test_forward_is_activation_and_affine_of_normalize(name: str) -> None:
    layer = made(normalizer(name), 6, "silu", torch.float64)
    normalize = getattr(layer, "normalize", None)
    if normalize is None:
        pytest.skip(f"{name} says that it has no normalized input")
    x = images((4, 6, 3, 3))
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    y = normalize(x)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    torch.testing.assert_close(layer(x), F.silu(layer.affine(y)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", batch_independent)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_an_image_of_a_batch_independent_layer_sees_itself_alone(name: str, training: bool) -> None:
    layer = made(normalizer(name), 6, "relu", torch.float64).train(training)
    assert layer.batch_independent
    x = images((4, 6, 3, 3))
    alone = torch.cat([layer(image[None]) for image in x])
    torch.testing.assert_close(layer(x), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", batch_dependent)
def test_a_batch_dependent_layer_sees_the_images_of_its_worker(name: str) -> None:
    layer = made(normalizer(name), 6, "relu", torch.float64)
    assert not layer.batch_independent
    x = images((8, 6, 3, 3))
    together = layer(x)
    set_workers(layer, 4)
    apart = layer(x)
    assert (together - apart).abs().max() > 1e-2  # the control: the grouping changes something
    for worker in range(4):
        set_workers(layer, 1)
        torch.testing.assert_close(apart[worker::4], layer(x[worker::4]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_bn_is_torchs_bit_for_bit(training: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.BatchNorm2d(6).train(training)
    ours = normalizer("bn").layer(6).train(training)
    for step in range(3):
        x = torch.randn(4, 6, 5, 5) * (step + 1)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        left, right = ours(a), F.relu(theirs(b))
        assert torch.equal(left, right)
        left.square().sum().backward()
        right.square().sum().backward()
        assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]
        assert torch.equal(ours.weight.grad, theirs.weight.grad)  # type: ignore[arg-type]
    assert torch.equal(ours.get_buffer("running_mean"), theirs.get_buffer("running_mean"))
    assert torch.equal(ours.get_buffer("running_var"), theirs.get_buffer("running_var"))


def test_running_statistics_are_the_mean_over_workers() -> None:
    torch.manual_seed(0)
    layer = normalizer("bn").layer(3)
    workers = [nn.BatchNorm2d(3) for _ in range(4)]
    set_workers(layer, 4)
    for _ in range(3):
        x = torch.randn(8, 3, 4, 4)
        layer(x)
        for worker, module in enumerate(workers):
            module(x[worker::4])
    for name in ("running_mean", "running_var"):
        mean = torch.stack([module.get_buffer(name) for module in workers]).mean(0)
        torch.testing.assert_close(layer.get_buffer(name), mean)


@pytest.mark.parametrize(("name", "groups"), [("gn", 4), ("ln", 1)])
def test_gn_and_ln_are_torchs_group_norm(name: str, groups: int) -> None:
    layer = normalizer(name).capped(4).layer(12, None)
    x = torch.randn(3, 12, 5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x), nn.GroupNorm(groups, 12)(x))


def test_ln_is_torchs_layer_norm_over_maps() -> None:
    x = images((3, 12, 5, 4))
    layer = normalizer("ln").layer(12, None).double()
    torch.testing.assert_close(layer(x), F.layer_norm(x, [12, 5, 4]))


@pytest.mark.parametrize("channels", [32, 64])
def test_evonorm_s0_is_timms(channels: int) -> None:
    torch.manual_seed(0)
    theirs = EvoNorm2dS0(channels, groups=32, eps=1e-5)
    ours = normalizer("evonorm_s0").layer(channels)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, channels, 7, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


def test_evonorm_without_activation_is_affine_alone() -> None:
    layer = made(normalizer("evonorm_s0"), 6, None, torch.float64)
    x = images((2, 6, 3, 3))
    expected = x * layer.weight.view(-1, 1, 1) + layer.bias.view(-1, 1, 1)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize(
    ("channels", "groups", "used"),
    [(64, 32, 32), (16, 32, 16), (24, 32, 24), (40, 32, 20), (112, 32, 28), (7, 4, 1)],
)
def test_groups_are_the_largest_divisor(channels: int, groups: int, used: int) -> None:
    assert largest_divisor(channels, groups) == used


def test_one_value_per_channel_is_refused_in_training_alone() -> None:
    layer = normalizer("bn").layer(4)
    with pytest.raises(Impossible, match="single value per channel"):
        layer(torch.ones(1, 4, 1, 1))
    set_workers(layer, 2)
    with pytest.raises(Impossible):
        layer(torch.ones(2, 4, 1, 1))
    assert layer.eval()(torch.ones(1, 4, 1, 1)).isfinite().all()


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
        ("bn", {"momentum": 2.0}, "norm.momentum=2.0: the new value's weight"),
    ],
)
def test_an_impossible_option_is_one_sentence(
    name: str, options: dict[str, float], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        normalizer(name, **options)


def test_an_unknown_activation_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean relu"):
        normalizer("bn").layer(4, "rellu")
