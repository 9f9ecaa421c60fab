"""The kernels, in Triton's interpreter: values and gradients, in every layout and dtype."""

import copy
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normbench.catalog import model, normalizer, normalizers
from normbench.norms import kernels
from normbench.norms.base.layer import NormAct
from normbench.norms.group import GroupNorm, GroupNormAct
from normbench.norms.implementation import set_implementation
from normbench.norms.kernels.dispatch import run_kernel, set_triton
from normbench.norms.workers import set_workers
from support.cells import SHORT
from support.commands import Command
from support.covering import covering
from support.layers import TOLERANCE, images, perturbed_layer, values_and_gradients
from support.slow import slow_except

pytestmark = pytest.mark.skipif(
    not kernels.interpreted(), reason="Triton compiles for a GPU here: make gpu has them"
)

LAYOUTS = [torch.contiguous_format, torch.channels_last]
#: Normalizers with kernels in training; layers without one compute their formula in PyTorch.
WITH_KERNELS = {
    "bn", "bn_pn", "bn_ws", "evonorm_b0", "evonorm_b1", "evonorm_b2", "evonorm_s0", "evonorm_s1",
    "evonorm_s2", "frn", "gn", "gn_pn", "gn_ws", "gn_ws_pn", "in", "in_pn", "ln", "ln_pn", "ln_ws",
    "sn", "sn_tied", "sync_bn",
}  # fmt: skip
#: One normalizer for each kind of map.
FAMILIES = ["ln_pn", "gn", "evonorm_s0", "frn", "bn", "evonorm_b0", "sn"]


def has_kernel(layer: NormAct, x: Tensor) -> bool:
    return run_kernel(copy.deepcopy(layer), x) is not None


def twins(
    name: str, channels: int, act: str | None, dtype: torch.dtype, workers: int = 2, **options: Any
) -> tuple[NormAct, NormAct]:
    """A layer as its formula stands, and the same by kernels."""
    layer = perturbed_layer(normalizer(name, **options), channels, act, dtype)
    set_workers(layer, workers)
    fused = copy.deepcopy(layer)
    set_triton(fused)
    return layer, fused


def assert_alike(layer: NormAct, fused: NormAct, x: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    actual = values_and_gradients(fused, x, fused(x))
    expected = values_and_gradients(layer, x, layer(x))
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        scale = float(theirs.detach().abs().max()) + 1
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale)
    for ours, theirs in zip(fused.buffers(), layer.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_the_layers_of_the_papers_have_kernels() -> None:
    x = images((4, 8, 3, 3), torch.float32)
    layers = {
        name: perturbed_layer(normalizer(name), 8, "relu", torch.float32) for name in normalizers()
    }
    assert {name for name, layer in layers.items() if has_kernel(layer, x)} == WITH_KERNELS


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize(
    ("act", "training"),
    slow_except(
        [(act, training) for act in ("relu", "gelu", None) for training in (True, False)],
        [("gelu", True)],
    ),
)
def test_what_has_no_kernel_is_computed_as_it_stands(
    name: str, act: str | None, training: bool
) -> None:
    layer, fused = twins(name, 4, act, torch.float64, workers=1)
    x = images((8, 4, 2, 3), torch.float64)  # so many of a worker, for ghost batches
    assert_alike(layer.train(training), fused.train(training), x, torch.float64)
    if not has_kernel(fused, x):
        assert torch.equal(fused.eval()(x), layer.eval()(x))


DTYPE_FACTORS: dict[str, Sequence[Any]] = {
    "name": ["gn", "bn"],
    "dtype": [*TOLERANCE],
    "layout": LAYOUTS,
}


@pytest.mark.parametrize(
    tuple(DTYPE_FACTORS),
    slow_except(
        [*product(FAMILIES, TOLERANCE, LAYOUTS)],
        [tuple(row.values()) for row in covering(DTYPE_FACTORS)],
    ),
    ids=str,
)
def test_in_every_dtype_and_layout(
    name: str, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    layer, fused = twins(name, 12, "silu", dtype)  # in groups of 3 no power of two
    x = images((4, 12, 5, 3), dtype).detach().to(memory_format=layout).requires_grad_()
    assert run_kernel(copy.deepcopy(fused), x).is_contiguous(memory_format=layout)  # type: ignore[union-attr]
    assert_alike(layer, fused, x, dtype)


SHAPES = [(2, 1, 130, 131), (2, 80, 13, 14), (4, 64, 1, 1), (2, 6, 17, 2)]
SHAPE_FACTORS: dict[str, Sequence[Any]] = {"name": ["gn", "bn"], "layout": LAYOUTS, "shape": SHAPES}


@pytest.mark.parametrize(
    tuple(SHAPE_FACTORS),
    slow_except(
        [*product(FAMILIES, LAYOUTS, SHAPES)],
        [tuple(row.values()) for row in covering(SHAPE_FACTORS)],
    ),
    ids=str,
)
def test_whatever_fits_a_tile_or_does_not(
    name: str, layout: torch.memory_format, shape: tuple[int, ...]
) -> None:
    layer, fused = twins(name, shape[1], "relu", torch.float64)
    x = images(shape, torch.float64).detach().to(memory_format=layout).requires_grad_()
    if layer.refusal(x.shape):
        pytest.skip("a group of one value")
    assert_alike(layer, fused, x, torch.float64)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sn", {"mix": "std"}), ("sn", {"unbiased": True}), ("sn", {"over": ["in", "ln"]}),
        ("gn_pn", {"additional": False}), ("frn", {"eps": 1e-3}), ("gn", {"groups": 3}),
        ("evonorm_candidate", {"which": "d1.6"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("training", slow_except([True, False], [True]), ids=["train", "eval"])
def test_options_are_those_of_the_formula(
    name: str, options: dict[str, Any], training: bool
) -> None:
    layer, fused = twins(name, 12, "relu", torch.float64, **options)
    x = images((4, 12, 4, 3), torch.float64)
    assert has_kernel(fused, x)
    assert_alike(layer.train(training), fused.train(training), x, torch.float64)


def test_a_layer_that_is_derived_from_one_with_a_kernel_has_none() -> None:
    class Twice(GroupNormAct):
        def norm_act(self, x: Tensor) -> Tensor:
            return 2 * super().norm_act(x)

    layer, plain = (kind(4, "relu", GroupNorm(2)) for kind in (Twice, GroupNormAct))
    set_triton(layer)
    x = images((2, 4, 3, 3), torch.float32)
    torch.testing.assert_close(layer(x), 2 * plain(x))


def test_gradients_may_be_taken_twice_of_one_map() -> None:
    for name in ("gn", "bn"):
        _, fused = twins(name, 4, "relu", torch.float64)
        x = images((4, 4, 3, 3), torch.float64)
        total = fused(x).square().sum()
        once, again = (torch.autograd.grad(total, x, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(once, again)


def test_at_the_threshold_the_threshold_has_the_gradient() -> None:
    """Values are often 0, the initial threshold."""
    layer, fused = (normalizer("frn").layer(4).double() for _ in range(2))
    set_triton(fused)
    x = torch.zeros(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    assert_alike(layer, fused, x, torch.float64)


@pytest.mark.parametrize("name", slow_except(sorted(WITH_KERNELS), ["bn", "gn_pn", "sn"]))
def test_nothing_but_the_input_and_statistics_are_kept(name: str) -> None:
    layer = normalizer(name).layer(16)
    set_triton(layer)
    x = torch.randn(2, 16, 24, 24, requires_grad=True)
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(x)
    # Proxies are 256 values of every channel, whatever the size of the map.
    proxies = 8 * 16 * 256 * 4 if name.endswith("pn") else 0
    assert sum(saved.values()) <= 1.05 * x.nbytes + proxies


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gn", "bn", "evonorm_b0"])
def test_a_network_learns_the_same(name: str) -> None:
    torch.manual_seed(0)
    plain = model(norm=normalizer(name), num_classes=3, in_chans=1, name="resnet8").double()
    networks = {"eager": plain, "triton": copy.deepcopy(plain)}
    x, labels = images((4, 1, 8, 8), torch.float64).detach(), torch.tensor([0, 1, 2, 0])
    losses = {}
    for impl, network in networks.items():
        set_implementation(network, impl)  # type: ignore[arg-type]
        set_workers(network, 2)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network.train()(x), labels)
            loss.backward()
            optimizer.step()
        losses[impl] = float(loss.detach())
    assert losses["triton"] == pytest.approx(losses["eager"], rel=1e-9)


@pytest.mark.slow
def test_they_compile_for_a_gpu_where_there_is_none() -> None:
    script = Path(__file__).parents[1] / "support/compile_kernels.py"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stdout.splitlines() if line.startswith("  ")]
    names = {line.split()[0] for line in lines}
    assert names == {"forward", "backward", "moments_of", "sums", "inputs"}
    assert all(line.endswith(", 0 bytes outside of them") for line in lines)


@pytest.mark.slow
def test_a_run_for_a_cpu_is_refused(command: Command) -> None:
    end = command("norm=gn", *SHORT, "trainer.impl=triton")
    assert end.code == 2
    assert "trainer.impl=triton: the kernels need a CUDA device" in end.err
    assert "trainer.impl=eager works" in end.err
