"""Layers of all normalizers, of timm and of torch, over torch's batch normalization and ReLU.

Measured are a forward and a backward pass: on a CPU processor time, on a CUDA device the time of
its own events. `kept` is the bytes kept for the backward pass over those of the input: on a CPU all
memory that stays allocated (of compiled layers, and on a CUDA device, what autograd saves). On a
CUDA device `of_copy` is the time in which a copy moves the least that the layer must, over its own.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import timm.layers
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.bench.measure import Timer, measure_in_turn, save
from normbench.bench.options import BenchLayersOptions
from normbench.catalog import normalizer, normalizers
from normbench.config.files import CONF, choose_name
from normbench.errors import BadInput, Impossible
from normbench.measurements.memory import memory_for_backward
from normbench.norms.base.activations import activation
from normbench.norms.base.layer import NormAct
from normbench.norms.base.options import largest_divisor
from normbench.norms.implementation import set_implementation

BASE = "F.batch_norm + relu"
IMPLS = ("eager", "compile")
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
#: Fewest maps read or written, by `batch_independent`: within an image forward 1 read and 1 write,
#: backward 2 and 1; over images forward 2 and 1, backward 4 and 1.
LEAST_MAPS = {True: 5, False: 8}
LARGEST = 10**10  # values of a map
BUSY = 3_000_000  # cycles of a GPU, more than a millisecond
#: Layers of timm, joint with their activations.
TIMM = {
    "timm bn": "BatchNormAct2d", "timm gn": "GroupNormAct", "timm frn": "FilterResponseNormTlu2d",
    "timm evonorm_b0": "EvoNorm2dB0", "timm evonorm_s0": "EvoNorm2dS0",
}  # fmt: skip
Function = Callable[[Tensor], Tensor]


def bench_layers(options: BenchLayersOptions, _: Sequence[str]) -> None:
    """Time the layers over torch's batch normalization and ReLU."""
    torch.set_num_threads(options.threads)
    device = require_device(options.device)
    impls = options.impl or (IMPLS if options.device == "cpu" else (*IMPLS, "triton"))
    if "triton" in impls and options.device == "cpu":
        raise BadInput("impl=triton: its kernels are for CUDA devices; device=cuda has them timed")
    for name in options.norm:
        if name not in normalizers():
            raise BadInput(f"norm={name} is unknown; {choose_name(name, CONF / 'norm')}")
    try:
        activation(options.act)
    except ValueError as error:
        raise BadInput(str(error)) from None
    dtype: torch.dtype = getattr(torch, options.dtype)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, dtype=dtype).to(device, memory_format=FORMATS[options.format])

    names, shapes = options.norm or normalizers(), [*map(_parse_shape, options.shape)]
    # All layers are one function to torch.compile, which otherwise compiles it 8 times at most.
    torch.compiler.config.recompile_limit = len(names) * len(shapes)
    lines: list[dict[str, object]] = []
    for shape in shapes:
        entries = dict(_peer_layers(shape[1], options.act)) if options.peers else {}
        for name in names:
            for impl in impls:
                entries[f"{name} {impl}"] = partial(_build_layer, name, shape[1], options.act, impl)
        lines += _time_layers(entries, draw(shape), draw(shape), options.rounds)
    save(options.out, lines)


def require_device(name: str) -> torch.device:
    """Return the device `name`, cpu or cuda.

    Raises:
        BadInput: there is no CUDA device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("device=cuda: no CUDA device is visible; device=cpu works")
    return torch.device(name)


def _parse_shape(word: str) -> tuple[int, ...]:
    try:
        n, c, h, w = map(int, word.split("x"))
    except ValueError:
        raise BadInput(f"shape={word}: it is NxCxHxW, as 4x256x56x56") from None
    if n * c * h * w > LARGEST:
        raise BadInput(f"shape={word}: a map may have at most {LARGEST:,} values")
    if min(n, c, h, w) < 1 or n * h * w == 1:
        raise BadInput(f"shape={word}: a channel needs two values at least, as in 4x256x56x56")
    return n, c, h, w


def _build_layer(name: str, channels: int, act: str, impl: Any) -> nn.Module:
    layer = normalizer(name).layer(channels, act)
    if impl == "compile":
        layer.compile(fullgraph=True, dynamic=False)
        return layer
    set_implementation(layer, impl)
    if impl == "triton":
        # Not at the top: there is no Triton for some machines.
        from normbench.norms.kernels.dispatch import has_kernel

        if not has_kernel(layer):
            raise Impossible("there is no kernel for it")
    return layer


def _peer_layers(channels: int, act: str) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    function = {"relu": nn.ReLU, "silu": nn.SiLU}.get(act)
    if function is None:
        raise BadInput(f"act={act}: relu or silu, or peers=false for any")
    groups = largest_divisor(channels, 32)
    yield "torch gn", lambda: nn.Sequential(nn.GroupNorm(groups, channels), function())
    for name, kind in TIMM.items():
        options: dict[str, Any] = {} if "Tlu" in kind else {"act_layer": function}
        if kind == "GroupNormAct":
            options["num_groups"] = groups
        yield name, partial(getattr(timm.layers, kind), channels, **options)


def _batch_norm_relu(channels: int, device: torch.device) -> Function:
    ones, zeros = (make(channels, device=device) for make in (torch.ones, torch.zeros))
    # Clones: training changes the others, which are the running statistics.
    weight, bias = (each.clone().requires_grad_() for each in (ones, zeros))
    return lambda x: F.relu(F.batch_norm(x, zeros, ones, weight, bias, True, 0.1, 1e-5))


def _time_layers(
    entries: Mapping[str, Callable[[], nn.Module]], x: Tensor, gradient: Tensor, rounds: int
) -> Iterator[dict[str, object]]:
    """Yield a line for the base and for each layer that takes maps like `x`."""
    # So that a backward pass computes the gradient of the input, too.
    x.requires_grad_()
    shape, channels = "x".join(map(str, x.shape)), x.shape[1]
    on_cpu = x.device.type == "cpu"
    base_layer = _batch_norm_relu(channels, x.device)
    steps: dict[str, Timer] = {BASE: partial(_seconds, base_layer, x, gradient)}
    count_kept = memory_for_backward if on_cpu else _kept_by_autograd
    saved = {BASE: count_kept(base_layer, x)}
    least_maps: dict[str, int] = {}
    for name, build in entries.items():
        try:
            layer = build().to(x.device)
            # Compiled code allocates without calling operations, which memory_for_backward counts.
            count = _kept_by_autograd if name.endswith(" compile") else count_kept
            saved[name] = count(layer, x)
        except (Impossible, ValueError, AssertionError) as reason:  # timm refuses some channels
            print(f"{name} at {shape}: {str(reason) or f'it takes no {channels} channels'}")
            continue
        steps[name] = partial(_seconds, layer, x, gradient)
        if isinstance(layer, NormAct):
            least_maps[name] = LEAST_MAPS[layer.batch_independent]
    if not on_cpu:
        steps["copy"] = partial(_copy, x.detach(), gradient)
    timings = measure_in_turn(steps, rounds)
    copy = None if on_cpu else timings.pop("copy").median / 2  # it reads and writes
    for name, result in timings.items():
        line: dict[str, object] = {
            "shape": shape, "layer": name, **result.over(timings[BASE].median),
            "kept": saved[name] / x.untyped_storage().nbytes(),
            "milliseconds": 1000 * result.median,
        }  # fmt: skip
        if copy is not None:
            least = least_maps.get(name)
            line["of_copy"] = "" if least is None else copy * least / result.median
        yield line


def _seconds(function: Function, x: Tensor, gradient: Tensor) -> float:
    """Return seconds of a forward and a backward pass."""
    x.grad = None
    return _clock(lambda: function(x).backward(gradient), x.device)


def _copy(x: Tensor, onto: Tensor) -> float:
    return _clock(lambda: onto.copy_(x), x.device)


def _clock(work: Callable[[], object], device: torch.device) -> float:
    """Return seconds of the processor, or of the device."""
    if device.type == "cpu":
        # Of the processor: other work on the machine does not count.
        started = time.process_time()
        work()
        return time.process_time() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(BUSY)  # so that launching is not part of the device's time
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end)) / 1000


def _kept_by_autograd(function: Function, x: Tensor) -> int:
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = function(x)
    # The next convolution saves the output anyway.
    saved.pop(out.untyped_storage().data_ptr(), None)
    return sum(saved.values())
