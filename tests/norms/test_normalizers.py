"""Every normalizer of conf/norm/ against its own reference, and the contract of its layers.

All tests here are generated over conf/norm/: a new normalizer is tested without a new line.
`make errors` prints the worst errors against the references.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import normalizer, normalizers
from normbench.errors import Impossible
from normbench.measurements.memory import memory_for_backward
from normbench.norms.base.activations import GAINS, activation
from normbench.norms.base.progress import set_progress
from normbench.norms.evonorm_expressions import EXPRESSIONS
from normbench.norms.proxy import ProxyAct
from normbench.norms.renorm import BatchRenormAct
from normbench.norms.workers import PerWorker, set_workers
from support.covering import covering, pairs
from support.layers import TOLERANCE, images, perturbed_layer, values_and_gradients
from support.slow import EVERYDAY_NORMS, slow_except

FACTORS: dict[str, Sequence[Any]] = {
    "map": [(1, 1), (1, 2), (2, 2), (5, 1), (3, 3), (4, 4), (7, 5)],
    "channels": [1, 3, 16, 24, 40, 64, 96],
    "batch": [1, 2, 3, 8],
    "workers": [1, 2, 4],
    "act": ["relu", "silu", None],
    "training": [True, False],
}
#: Options beside those of the yaml that make another layer.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "batch_renorm": [{"r_max": 1.1, "d_max": 0.1}],
    "bgn": [{"images": 1}, {"groups": 3}],
    "evonorm_candidate": [{"which": which} for which in EXPRESSIONS],
    "frn": [{"learned_eps": True}],
    "ghost_bn": [{"ghost": 1}, {"ghost": 2}],
    "gn": [{"groups": 4, "grouping": "strided"}],
    "graph": [
        {"formula": "x/max(std_bwh(x),v1*x+std_wh(x))"},
        {"formula": "max(v1*((x-mean_bwh(x))/std_bwh(x))+v0,0)"},
        {"formula": "tanh(x-mean_whc(x))/rms_bwh(abs(x)+rms_g(x))*exp(-sigmoid(v0))"},
    ],
    "gn_pn": [{"additional": False, "samples": 200}, {"groups": 4, "grouping": "strided"}],
    "sn": [
        {"mix": "std", "over": ["in", "ln"]},
        {"over": ["in", "bn"], "unbiased": True},
        {"sync": True},
        {"mix": "std", "over": ["ln", "bn"]},
        {"hard": True, "mean_ratios": [0.2, 0.7, 0.1], "var_ratios": [0.1, 0.2, 0.7]},
    ],
    "sn_tied": [{"mix": "std"}],
    "ssn": [{"tied": True}, {"over": ["in", "bn"], "unbiased": True}],
}
CASES = [
    *((name, {}) for name in normalizers()),
    *((name, options) for name, every in VARIANTS.items() for options in every),
]
#: Running statistics; a formula may have several, with the number of their node.
RUNNING = re.compile(r"running_(mean|var)|running_(mean|square|var)_\d+")
#: Buffers that no image enters: the progress of the training, and members chosen for good.
CHOICES = ("progress", "fixed", "fixed_mean", "fixed_var")
HALF = (torch.float16, torch.bfloat16)


def case_id(value: object) -> str | None:
    if isinstance(value, dict):
        return "-".join(f"{key}={value[key]}" for key in value) or "default"
    return None


# Against the reference


def worst_error(name: str, options: dict[str, Any], row: dict[str, Any]) -> float | None:
    """The largest |a - b| / max(1, |b|) of values and gradients; None for a refused shape."""
    channels, act, workers = row["channels"], row["act"], row["workers"]
    layer = perturbed_layer(normalizer(name, **options), channels, act, torch.float64).train(
        row["training"]
    )
    set_workers(layer, workers)
    x = images((row["batch"] * workers, channels, *row["map"]))
    if reason := layer.refusal(x.shape):
        with pytest.raises(Impossible) as refused:
            layer(x)
        assert str(refused.value) == reason
        return None
    before = copy.deepcopy(layer.state_dict())
    actual = values_and_gradients(layer, x, layer(x))
    layer.load_state_dict(before)
    expected = values_and_gradients(layer, x, layer.reference(x))
    errors = (
        (ours - theirs).abs() / theirs.abs().clamp(min=1)
        for ours, theirs in zip(actual, expected, strict=True)
    )
    return max(float(error.detach().max()) for error in errors)


@pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
def test_values_and_gradients_are_those_of_the_reference(
    name: str, options: dict[str, Any]
) -> None:
    rows = covering(FACTORS)
    errors = [worst_error(name, options, row) for row in rows]
    failed = [
        (error, row)
        for error, row in zip(errors, rows, strict=True)
        if error is not None and not error <= 1e-10
    ]
    assert not failed
    # A layer that refused nearly all shapes would pass without having computed anything.
    for training in (True, False):
        cases = zip(errors, rows, strict=True)
        computed = [error is not None for error, row in cases if row["training"] == training]
        assert sum(computed) >= (0.1 if training else 0.8) * len(computed)


def test_in_the_sample_every_pair_of_values_occurs() -> None:
    rows = covering(FACTORS)
    for (first, i), (second, j) in pairs(FACTORS):
        pair = FACTORS[first][i], FACTORS[second][j]
        assert any((row[first], row[second]) == pair for row in rows)


def tensors(layer: nn.Module, x: Tensor) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The layer as a function of its input and its parameters."""
    names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]

    def function(x: Tensor, *values: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(
            layer, dict(zip(names, values, strict=True)), (x,)
        )
        return output

    return function, [x, *(layer.get_parameter(name) for name in names)]


@pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_gradients_are_those_of_finite_differences(
    name: str, options: dict[str, Any], training: bool
) -> None:
    layer = perturbed_layer(normalizer(name, **options), 3, "silu", torch.float64).train(training)
    x = images((8, 3, 2, 4))  # 192 elements
    if isinstance(layer, BatchRenormAct) and training:  # r and d are constants to the gradient
        moments = layer._scale_and_shift(x)[2]
        constants = layer.corrections(*(each.detach() for each in moments))
        layer.corrections = lambda mean, var: constants  # type: ignore[method-assign]
    function, inputs = tensors(layer, x)
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("name", [n for n in normalizers() if normalizer(n).conv is not None])
@pytest.mark.parametrize("act", ["silu", None])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_standardized_convolution_and_its_layer_are_those_of_the_references(
    name: str, act: str | None, groups: int
) -> None:
    norm = normalizer(name)
    assert norm.conv is not None
    torch.manual_seed(0)
    conv = norm.conv.convert(nn.Conv2d(6, 8, 3, groups=groups, bias=False).double())
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    both = nn.Sequential(conv, perturbed_layer(norm, 8, act, torch.float64))
    x = images((8, 6, 5, 4))
    before = copy.deepcopy(both.state_dict())
    actual = values_and_gradients(both, x, both(x))
    both.load_state_dict(before)
    out = F.conv2d(x, conv.reference(), conv.bias, groups=groups)
    expected = values_and_gradients(both, x, both[1].reference(out))  # type: ignore[operator]
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


# Dtypes and memory formats


LAYOUT_FACTORS: dict[str, Sequence[Any]] = {
    "name": normalizers(),
    "dtype": [*TOLERANCE],
    "layout": [torch.contiguous_format, torch.channels_last],
    "workers": [1, 2],
    "training": [True, False],
}


@pytest.mark.parametrize(
    tuple(LAYOUT_FACTORS),
    slow_except(
        [*product(*LAYOUT_FACTORS.values())],
        [tuple(row.values()) for row in covering(LAYOUT_FACTORS)],
    ),
    ids=str,
)
def test_dtype_and_layout(
    name: str, dtype: torch.dtype, layout: torch.memory_format, workers: int, training: bool
) -> None:
    layer = perturbed_layer(normalizer(name), 8, "relu", dtype).train(training)
    reference = perturbed_layer(normalizer(name), 8, "relu", torch.float64).train(training)
    reference.load_state_dict(layer.state_dict())
    x = images((16, 8, 4, 4), dtype).detach().to(memory_format=layout)
    for each in (layer, reference):
        set_workers(each, workers)
    output = layer(x)
    assert output.dtype == dtype
    assert output.is_contiguous(memory_format=layout)
    assert all(buffer.dtype not in HALF for buffer in layer.buffers())
    expected = reference.reference(x)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_statistics_are_fp32_under_autocast(name: str, dtype: torch.dtype, training: bool) -> None:
    """Squares of 300 and more are beyond fp16; a deviation of 1 beside them is beyond bf16."""
    layer = normalizer(name).layer(8).train(training)
    x = 320 + torch.randn(8, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    x = x.to(dtype)
    before = copy.deepcopy(layer.state_dict())
    with torch.autocast("cpu", dtype):
        output = layer(x).float()
    layer.load_state_dict(before)
    torch.testing.assert_close(output, layer.reference(x).float(), rtol=2e-2, atol=2e-2)


# The contract


STARTS = {
    "weight": 1.0,
    "bias": 0.0,
    "v": 1.0,
    "v0": 0.0,
    "v1": 1.0,
    "tau": 0.0,
    "proxy_weight": 0.0,
    "proxy_bias": 0.0,
}
#: Initial values of parameters whose size does not depend on the channels.
FEW = {
    "eps": [1e-4],
    "alpha": [0.5],
    "offset": [0.0],
    "logits": [1.0] * 3,
    "mean_logits": [1.0] * 3,
    "var_logits": [1.0] * 3,
}


@pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
@pytest.mark.parametrize("act", ["relu", None])
def test_parameters_have_the_names_and_starts_of_the_contract(
    name: str, options: dict[str, Any], act: str | None
) -> None:
    layer = normalizer(name, **options).layer(6, act)
    assert layer.act == act
    for parameter, values in layer.named_parameters():
        assert parameter in layer.roles
        if parameter in FEW and not {"over", "mean_ratios"} & options.keys():
            assert values.tolist() == pytest.approx(FEW[parameter])
        elif parameter not in FEW and layer.roles[parameter] != "residual":
            assert torch.equal(values, torch.full((6,), STARTS[parameter]))
    buffers = {buffer for buffer in layer.state_dict() if buffer not in layer.roles}
    assert {buffer for buffer in buffers if not RUNNING.fullmatch(buffer)} <= {*CHOICES}


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_forward_is_activation_and_affine_of_normalize(name: str, training: bool) -> None:
    layer = perturbed_layer(normalizer(name), 6, "silu", torch.float64).train(training)
    normalize = getattr(layer, "normalize", None)
    if normalize is None:
        pytest.skip(f"{name} says that it has no normalized input")
    x = images((8, 6, 3, 3))
    before = copy.deepcopy(layer.state_dict())
    y = normalize(x)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    expected = layer.activation(layer.affine(y))
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", normalizers())
def test_in_evaluation_an_image_sees_itself_alone(name: str) -> None:
    layer = perturbed_layer(normalizer(name), 6, "relu", torch.float64).eval()
    x = images((4, 6, 3, 3))
    before = copy.deepcopy(layer.state_dict())
    alone = torch.cat([layer(image[None]) for image in x])
    torch.testing.assert_close(layer(x), alone, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


batch_independent = [name for name in normalizers() if normalizer(name).batch_independent]
batch_dependent = [name for name in normalizers() if name not in batch_independent]


@pytest.mark.parametrize("name", batch_independent)
def test_in_training_an_image_of_a_batch_independent_layer_sees_itself_alone(name: str) -> None:
    layer = perturbed_layer(normalizer(name), 6, "relu", torch.float64)
    assert layer.batch_independent
    x = images((4, 6, 3, 3))
    alone = torch.cat([layer(image[None]) for image in x])
    torch.testing.assert_close(layer(x), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", batch_dependent)
def test_in_training_a_batch_dependent_layer_sees_the_images_of_its_worker(name: str) -> None:
    layer = perturbed_layer(normalizer(name), 6, "relu", torch.float64)
    assert isinstance(layer, PerWorker)
    assert not layer.batch_independent
    if isinstance(layer, BatchRenormAct):  # whose corrections, at their widest, undo the workers
        set_progress([layer], 0.0)
    state = copy.deepcopy(layer.state_dict())
    x = images((32, 6, 3, 3))
    outputs = list(of_workers(layer, x, state, range(4)))
    set_workers(layer, 4)
    layer.load_state_dict(state)
    apart = layer(x)
    if layer.sets(32) == 1:  # synchronized: all workers are one
        torch.testing.assert_close(apart, outputs[-1])
        return
    torch.testing.assert_close(
        apart, torch.stack(outputs[:4], 1).flatten(0, 1), rtol=1e-9, atol=1e-9
    )
    changed = (outputs[-1] - apart).abs().max()
    assert changed > 1e-2 or layer.sets(32) != 4  # the control: the grouping changes something


def of_workers(
    layer: nn.Module, x: Tensor, state: dict[str, Tensor], workers: range
) -> Iterator[Tensor]:
    """Yield the output of a layer for the images of each worker, then for all images at once."""
    for part in (*(x[worker :: len(workers)] for worker in workers), x):
        layer.load_state_dict(state)
        yield layer(part)


@pytest.mark.parametrize("name", batch_dependent)
def test_running_statistics_are_the_mean_over_workers(name: str) -> None:
    layer = normalizer(name).layer(3).double()
    assert isinstance(layer, PerWorker)
    set_workers(layer, 4)
    if layer.sets(32) == 1:
        pytest.skip(f"{name} has one worker")
    workers = [normalizer(name).layer(3).double() for _ in range(4)]
    x = images((32, 3, 4, 4)).detach()
    layer(x)
    buffers = dict(layer.named_buffers())
    for worker, each in enumerate(workers):
        each(x[worker::4])
    for key in buffers.keys() - {*CHOICES}:
        mean = torch.stack([each.get_buffer(key) for each in workers]).mean(0)
        if isinstance(layer, BatchRenormAct) and key == "running_var":  # its deviation moves
            roots = [torch.sqrt(each.get_buffer(key) + layer.eps) for each in workers]
            mean = torch.stack(roots).mean(0).square() - layer.eps
        torch.testing.assert_close(buffers[key], mean)


#: Normalizers with the unbiased running variance, as in torch.
UNBIASED = {"bn", "sync_bn", "bn_pn", "bn_ws"}


@pytest.mark.parametrize("name", batch_dependent)
@pytest.mark.parametrize("steps", [1, 3])
def test_running_statistics_move_by_momentum_to_those_of_the_workers(name: str, steps: int) -> None:
    layer = normalizer(name).layer(3).double()
    momentum = normalizer(name).momentum  # type: ignore[attr-defined]
    set_workers(layer, 2)
    mean, var = torch.zeros(3).double(), torch.ones(3).double()
    for step in range(steps):
        x = images((32, 3, 2, 2)).detach() * (step + 1) + step
        layer(x)
        workers = [x] if layer.sets(32) == 1 else [x[0::2], x[1::2]]  # type: ignore[operator]
        variances = [w.var((0, 2, 3), correction=int(name in UNBIASED)) for w in workers]
        mean = (1 - momentum) * mean + momentum * x.mean((0, 2, 3))
        if isinstance(layer, BatchRenormAct):  # whose deviation moves
            root = torch.stack([torch.sqrt(v + layer.eps) for v in variances]).mean(0)
            moved = (1 - momentum) * torch.sqrt(var + layer.eps) + momentum * root
            var = moved.square() - layer.eps
        else:
            var = (1 - momentum) * var + momentum * torch.stack(variances).mean(0)
    torch.testing.assert_close(layer.get_buffer("running_var"), var)
    if not name.startswith("evonorm"):
        torch.testing.assert_close(layer.get_buffer("running_mean"), mean)


# Saving, copying and compiling


@pytest.mark.parametrize("name", normalizers())
def test_a_state_travels_and_a_copy_is_alike(name: str) -> None:
    layer = perturbed_layer(normalizer(name), 6, "relu", torch.float32).eval()
    x = images((4, 6, 3, 3), torch.float32).detach()
    fresh = normalizer(name).layer(6).eval()
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), layer(x))
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(fresh(x), layer(x))  # changing the copy changes nothing here


@pytest.mark.parametrize(
    ("name", "training"),
    slow_except(
        [*product(normalizers(), (True, False))],
        [
            ("bn", True),
            ("batch_renorm", False),
            ("evonorm_b0", True),
            ("gn_pn", False),
            ("sn", True),
        ],
    ),
)
def test_a_compiled_layer_has_no_graph_breaks(name: str, training: bool) -> None:
    torch._dynamo.reset()
    layer = perturbed_layer(normalizer(name), 8, "silu", torch.float32).train(training)
    set_workers(layer, 2)
    state = copy.deepcopy(layer.state_dict())
    x = images((16, 8, 3, 3), torch.float32)
    expected = values_and_gradients(layer, x, layer(x))
    layer.load_state_dict(state)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    actual = values_and_gradients(layer, x, compiled(x))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


# Implementations


#: Maps that a layer keeps for the backward pass with relu, with silu and without activation: its
#: input, and what torch's own normalization or an autograd of the formula cannot do without.
KEPT: dict[str, tuple[float, float, float]] = {
    **dict.fromkeys(
        ("bn", "bn_ws", "frozen_bn", "ghost_bn", "gn", "gn_ws", "in", "ln", "ln_ws", "none", "rms",
         "sync_bn"), (1, 2, 1)),
    **dict.fromkeys(
        ("batch_renorm", "bgn", "evonorm_b0", "evonorm_b1", "evonorm_b2", "evonorm_candidate",
         "evonorm_s0", "evonorm_s1", "evonorm_s2", "frn", "gn_pn", "gn_ws_pn", "in_pn", "ln_pn",
         "sn", "sn_tied", "ssn"), (1, 1, 1)),
    "bn_pn": (2, 2, 1),
    "derf": (3, 4, 3),
    "dyt": (2, 3, 2),
    "fixup": (0, 1, 0),
    "graph": (4, 4, 1),
    "ln2d": (1.125, 2.125, 1.125),  # mean and deviation of each position, 2 values for 16 channels
    "nf": (1, 1, 0),
    "skipinit": (0, 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize(("act", "column"), [("relu", 0), ("silu", 1), (None, 2)], ids=str)
def test_what_a_layer_keeps_for_the_backward_pass(name: str, act: str | None, column: int) -> None:
    layer, x = normalizer(name).layer(16, act), torch.randn(8, 16, 16, 16)
    proxies = 4 * 16 * 256 * 4 if isinstance(layer, ProxyAct) else 0  # 256 values a channel
    kept = memory_for_backward(layer, x) - KEPT[name][column] * x.nbytes
    assert 0 <= kept <= 0.06 * x.nbytes + proxies


@pytest.mark.parametrize("act", [name for name in GAINS if name not in ("logsigmoid", "gelu_tanh")])
def test_a_compiled_activation_is_the_one_of_torch(act: str) -> None:
    """At 0, infinity and NaN too."""
    torch._dynamo.reset()
    edges = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
    one, other = (torch.tensor(edges, requires_grad=True) for _ in range(2))
    function = torch.compile(activation(act), fullgraph=True, backend="aot_eager")
    actual, expected = function(one), getattr(F, act)(other)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    actual.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", slow_except(normalizers(), EVERYDAY_NORMS))
def test_a_layer_can_be_exported(name: str) -> None:
    layer = perturbed_layer(normalizer(name), 8, "relu", torch.float32).eval()
    x = images((4, 8, 3, 3), torch.float32).detach()
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("shape", [(0, 6, 3, 3), (2, 6, 0, 3), (2, 5, 3, 3), (2, 6, 3)], ids=str)
def test_what_is_no_batch_of_maps_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"is empty|expected maps \(N, 6, H, W\)"):
        normalizer(name).layer(6)(torch.ones(shape))


if __name__ == "__main__":
    print("worst |a - b| / max(1, |b|) of values and gradients against the reference, fp64")
    for name, options in CASES:
        errors = [worst_error(name, options, row) for row in covering(FACTORS)]
        computed = [error for error in errors if error is not None]
        label = f"{name} {case_id(options)}"
        print(f"{label:<90} {max(computed):.1e}  {len(computed)} of {len(errors)} shapes computed")
