"""What a CUDA device must do like the CPU. Run by `make gpu`; skipped where there is none."""

import copy
from pathlib import Path

import pytest
import torch

from normbench.catalog import normalizer, normalizers
from normbench.data.counter_rng import Draws
from normbench.norms.implementation import Implementation, set_implementation
from normbench.norms.workers import set_workers
from normbench.records import probes
from normbench.results import read
from support.cells import BROKEN, SHORT, cell, train_cell
from support.commands import Command, Probe, Rows
from support.layers import (
    TOLERANCE,
    images,
    perturbed_layer,
    trained_parameters,
    values_and_gradients,
)

if not torch.cuda.is_available():  # one skip, not one for each of a thousand tests
    pytest.skip("no CUDA device is visible", allow_module_level=True)

pytestmark = pytest.mark.gpu

ON_GPU = [argument for argument in SHORT if argument != "trainer=cpu"] + ["trainer=gpu"]


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("impl", ["eager", "triton"])
def test_values_and_gradients_are_those_of_the_reference(
    name: str, dtype: torch.dtype, layout: torch.memory_format, workers: int, impl: Implementation
) -> None:
    layer = perturbed_layer(normalizer(name), 8, "silu", dtype).cuda()
    set_implementation(layer, impl)
    reference = perturbed_layer(normalizer(name), 8, "silu", torch.float64).cuda()
    reference.load_state_dict(layer.state_dict())
    for each in (layer, reference):
        set_workers(each, workers)
    x = images((32, 8, 5, 3), dtype).detach().cuda().to(memory_format=layout).requires_grad_()
    output, expected = layer(x), reference.reference(x)
    assert output.is_contiguous(memory_format=layout)
    found = torch.autograd.grad(output.double().sin().sum(), [x, *trained_parameters(layer)])
    wanted = torch.autograd.grad(expected.sin().sum(), [x, *trained_parameters(reference)])
    worst = 4 * TOLERANCE[dtype]
    torch.testing.assert_close(output.double(), expected, rtol=worst, atol=worst)
    for ours, theirs in zip(found, wanted, strict=True):
        scale = float(theirs.abs().max()) + 1
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=worst, atol=worst * scale)


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_statistics_are_fp32_under_autocast(name: str, dtype: torch.dtype) -> None:
    """Squares of 300 and more are beyond fp16; a deviation of 1 beside them is beyond bf16."""
    layer = normalizer(name).layer(8).cuda()
    x = (320 + torch.randn(8, 8, 4, 4, device="cuda")).to(dtype)
    before = copy.deepcopy(layer.state_dict())
    with torch.autocast("cuda", dtype):
        output = layer(x)
    assert output.dtype == dtype
    layer.load_state_dict(before)
    torch.testing.assert_close(output.float(), layer.reference(x).float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", normalizers())
def test_a_layer_compiled_by_inductor_is_the_layer(name: str) -> None:
    layer = perturbed_layer(normalizer(name), 8, "silu", torch.float32).cuda()
    state = copy.deepcopy(layer.state_dict())
    x = images((16, 8, 5, 3), torch.float32).detach().cuda().requires_grad_()
    expected = values_and_gradients(layer, x, layer(x))
    layer.load_state_dict(state)
    found = values_and_gradients(layer, x, torch.compile(layer, fullgraph=True)(x))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["gn", "ln", "in", "frn", "evonorm_s0", "gn_pn", "bn", "sn"])
@pytest.mark.parametrize("shape", [(8, 64, 56, 56), (8, 512, 28, 28), (8, 2048, 7, 7)], ids=str)
def test_kernels_have_the_maps_of_a_resnet_50(name: str, shape: tuple[int, ...]) -> None:
    layer = perturbed_layer(normalizer(name), shape[1], "relu", torch.float32).cuda()
    fused = copy.deepcopy(layer)
    set_implementation(fused, "triton")
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):  # torch's layers refuse mixed types without
        output, expected = fused(x), layer(x)
    found = values_and_gradients(fused, x, output)
    for ours, theirs in zip(found, values_and_gradients(layer, x, expected), strict=True):
        scale = float(theirs.detach().abs().max()) + 1
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=4e-2, atol=4e-2 * scale)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_random_numbers_are_those_of_the_cpu(kind: str) -> None:
    here = getattr(Draws(3, 1, torch.arange(100)), kind)("noise", 4)
    there = getattr(Draws(3, 1, torch.arange(100).cuda()), kind)("noise", 4)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_run_trains_on_the_device(command: Command, rows: Rows, precision: str) -> None:
    end = command("-m", "norm=bn,evonorm_s0", "batch=4", f"precision={precision}", *ON_GPU)
    assert end.code == 0, end.err
    for row in rows():
        assert row.status == "ok"
        assert torch.cuda.get_device_name(0) in row.devices


@pytest.mark.parametrize("norm", ["bn", "gn", "sn", "evonorm_s0", "gn_pn"])
@pytest.mark.parametrize("impl", ["eager", "compile", "triton"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    "more", [(), ("trainer.per_forward=8", "reg.mixup=0.2", "recipe.ema=0.9")], ids=["", "passes"]
)
def test_a_step_that_is_replayed_is_the_step(
    norm: str, impl: str, precision: str, more: tuple[str, ...]
) -> None:
    """Within rounding, as kernels of convolutions add in whatever order."""
    words = (f"norm={norm}", "batch=4", f"precision={precision}", f"trainer.impl={impl}", *ON_GPU)
    words = (*words, *more)
    (plain, _), (replayed, _) = (
        train_cell(cell(*words, f"trainer.cuda_graph={on}")) for on in ("false", "true")
    )
    assert (plain["cuda_graphs"], replayed["cuda_graphs"]) == (False, True)
    worst = 1e-4 if precision == "32-true" else 1e-2
    assert replayed["train_loss"] == pytest.approx(plain["train_loss"], rel=worst)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("norm", ["bn", "sync_bn", "batch_renorm"])
def test_two_devices_compute_what_one_does(norm: str, command: Command) -> None:
    words = (f"norm={norm}", "precision=64-true", "model.stem_stride=1", "trainer=gpu")
    for devices in (1, 2):
        more = ("recipe.images=2560", "logger=none", f"trainer.devices={devices}")
        assert command(*words, *more, f"runs=r{devices}").code == 0
    (one,), (two,) = read("r1"), read("r2")
    assert two.devices.startswith("2 x ")
    assert two.train_loss == pytest.approx(one.train_loss, rel=1e-9)


def test_what_is_too_large_for_the_device_is_tried_in_smaller_portions(command: Command) -> None:
    end = command(*BROKEN, "norm=greedy", "batch=4", *ON_GPU)
    assert end.code == 0, end.err
    assert end.out.count("out of memory") == 2
    (row,) = read("runs")
    assert row.plan == "32 workers: devices=1 per_forward=8 accumulation=4"


@pytest.mark.parametrize("task", ["segment", "depth", "detect"])
def test_dense_tasks_train_as_on_the_cpu(task: str) -> None:
    words = (
        f"task={task}", "norm=gn", "model.width=4", "data.size=64", "data.scenes=60",
        "data.test_scenes=10", "global_batch=8", "batch=4", "recipe.images=96", "logger=none",
    )  # fmt: skip
    (on_cpu, _), (on_gpu, _) = (
        train_cell(cell(*words, f"trainer={each}")) for each in ("cpu", "gpu")
    )
    assert on_gpu["status"] == on_cpu["status"] == "ok"
    assert on_gpu["train_loss"] == pytest.approx(on_cpu["train_loss"], rel=1e-2)


def test_probes_look_at_the_device(probe_command: Probe) -> None:
    words = ("norm=bn,gn", "model=resnet14_v2", "images=32", "trainer=gpu", "precision=64-true")
    for kind in ("spp", "power"):
        numbers = []
        for where in ("gpu", "cpu"):
            assert (
                probe_command(
                    kind, *words[:-2], f"trainer={where}", words[-1], f"reports={where}"
                ).code
                == 0
            )
            numbers.append(probes.read_records(Path(where) / "probes" / f"{kind}.csv"))
        for ours, theirs in zip(*numbers, strict=True):
            for key, value in theirs.items():
                same = value if isinstance(value, str) else pytest.approx(value, rel=1e-6, abs=1e-9)
                assert ours[key] == same
    found = probe_command("speed", "norm=gn", "batch=8", "repeats=1", "trainer=gpu")
    assert found.code == 0, found.err
    records = probes.read_records(Path("runs/reports/probes/speed.csv"))
    assert all(record["memory"] > 0 for record in records)
