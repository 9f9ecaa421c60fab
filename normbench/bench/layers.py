"""Layers of all normalizers, of timm and of torch, over torch's batch normalization and ReLU.

On a CPU processor time of a forward and a backward pass, as wall time says more of the machine
than of the layer; on a CUDA device that of its own clock. On the way stand bytes kept for the
backward pass over those of the input: on the CPU of layers that are not compiled all that lies
there, else those that autograd knows. On a CUDA device there is also how near a layer comes to what
the memory allows: the time in which a copy moves what the layer must at least, over its own.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm.layers
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.bench.measured import Once, in_turn, leave, taken
from normbench.catalog import normalizer, normalizers
from normbench.errors import BadInput, Impossible, choose_from, counted
from normbench.measurements.memory import memory_for_backward
from normbench.norms.base.activations import activation
from normbench.norms.base.layer import NormAct, largest_divisor
from normbench.norms.impl import set_impl

BASE = "F.batch_norm + relu"
IMPLS = ("eager", "lean", "compile")
OWN = {
    "norm": "", "impl": "", "shape": "4x256x56x56,32x256x14x14", "act": "relu", "device": "cpu",
    "format": "contiguous", "dtype": "float32", "rounds": "7", "threads": "1", "peers": "true",
    "out": "",
}  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
#: Maps that move at least: a group of an image is read and written once, and read twice and written
#: once on the way back; of several images it is read once more and three times.
LEAST = {True: 5, False: 8}
BUSY = 3_000_000  # cycles of a GPU, more than a millisecond
#: Layers of timm, joint with their activations.
TIMM = {
    "timm bn": "BatchNormAct2d", "timm gn": "GroupNormAct", "timm frn": "FilterResponseNormTlu2d",
    "timm evonorm_b0": "EvoNorm2dB0", "timm evonorm_s0": "EvoNorm2dS0",
}  # fmt: skip
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Maps:
    """What goes into the layers, and where."""

    dtype: torch.dtype
    device: torch.device
    format: torch.memory_format

    def drawn(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, dtype=self.dtype).to(self.device, memory_format=self.format)


def bench(words: Sequence[str]) -> None:
    """As the command says."""
    own, rest = taken(words, OWN)
    if rest:
        raise BadInput(f"{rest[0]}: layers has no such word; it has {', '.join(OWN)}")
    torch.set_num_threads(counted("threads", own["threads"], 1))
    known_words: dict[str, Collection[str]] = {
        "dtype": DTYPES, "format": FORMATS, "device": ("cpu", "cuda"), "peers": ("true", "false"),
    }  # fmt: skip
    for key, allowed in known_words.items():
        if own[key] not in allowed:
            raise BadInput(f"{key}={own[key]}: {' or '.join(allowed)}")
    if own["device"] == "cuda" and not torch.cuda.is_available():
        raise BadInput("device=cuda: no CUDA device is visible; device=cpu works")
    maps = Maps(DTYPES[own["dtype"]], torch.device(own["device"]), FORMATS[own["format"]])
    usual = IMPLS if own["device"] == "cpu" else (*IMPLS, "triton")
    norms = own["norm"].split(",") if own["norm"] else normalizers()
    impls = own["impl"].split(",") if own["impl"] else list(usual)
    if "triton" in impls and own["device"] == "cpu":
        raise BadInput("impl=triton: its kernels are for CUDA devices; device=cuda has them timed")
    for key, chosen, known in (("norm", norms, normalizers()), ("impl", impls, usual)):
        for word in chosen:
            if word not in known:
                raise BadInput(f"{key}={word} is unknown; {choose_from(word, known)}")
    try:
        activation(own["act"])
    except ValueError as error:
        raise BadInput(str(error)) from None
    rounds, lines = counted("rounds", own["rounds"], 7), []
    for shape in map(_shape, own["shape"].split(",")):
        entries = dict(_peers(shape[1], own["act"])) if own["peers"] == "true" else {}
        for name in norms:
            for impl in impls:
                entries[f"{name} {impl}"] = partial(_ours, name, shape[1], own["act"], impl)
        lines += list(_timed(entries, shape, maps, rounds))
    leave(own["out"], lines)


def _shape(word: str) -> tuple[int, ...]:
    try:
        n, c, h, w = map(int, word.split("x"))
    except ValueError:
        raise BadInput(f"shape={word}: it is NxCxHxW, as 4x256x56x56") from None
    if min(n, c, h, w) < 1 or n * h * w == 1:
        raise BadInput(f"shape={word}: a channel needs two values at least, as in 4x256x56x56")
    return n, c, h, w


def _ours(name: str, channels: int, act: str, impl: Any) -> nn.Module:
    layer = normalizer(name).layer(channels, act)
    if impl == "compile":
        layer.compile(fullgraph=True, dynamic=False)
        return layer
    set_impl(layer, impl)
    if impl == "triton":
        from normbench.norms.kernels.dispatch import (
            has_kernel,  # there is no Triton for some machines
        )

        if not has_kernel(layer):
            raise Impossible("there is no kernel for it")
    return layer


def _peers(channels: int, act: str) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
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


def _base(channels: int, device: torch.device) -> Function:
    ones, zeros = (make(channels, device=device) for make in (torch.ones, torch.zeros))
    weight, bias = (each.clone().requires_grad_() for each in (ones, zeros))
    return lambda x: F.relu(F.batch_norm(x, zeros, ones, weight, bias, True, 0.1, 1e-5))


def _timed(
    entries: dict[str, Callable[[], nn.Module]], shape: tuple[int, ...], maps: Maps, rounds: int
) -> Iterator[dict[str, object]]:
    x, gradient = maps.drawn(shape).requires_grad_(), maps.drawn(shape)
    on_cpu = maps.device.type == "cpu"
    steps: dict[str, Once] = {BASE: partial(_seconds, _base(shape[1], maps.device), x, gradient)}
    base_kept = memory_for_backward if on_cpu else _kept_by_autograd
    kept_maps = {BASE: base_kept(_base(shape[1], maps.device), x)}
    least: dict[str, int] = {}
    for name, make in entries.items():
        try:
            layer = make().to(maps.device)
            counts = (
                memory_for_backward
                if on_cpu and not name.endswith(" compile")
                else _kept_by_autograd
            )
            kept_maps[name] = counts(layer, x)
        except (Impossible, ValueError, AssertionError) as reason:  # timm refuses some channels
            said = str(reason) or f"it takes no {shape[1]} channels"
            print(f"{name} at {'x'.join(map(str, shape))}: {said}")
            continue
        steps[name] = partial(_seconds, layer, x, gradient)
        if isinstance(layer, NormAct):
            least[name] = LEAST[layer.batch_independent]
    if not on_cpu:
        steps["copy"] = partial(_copied, x.detach(), gradient)
    found = in_turn(steps, rounds)
    base = found[BASE].median
    copy = None if on_cpu else found.pop("copy").median / 2  # it reads and writes
    for name, took in found.items():
        line: dict[str, object] = {
            "shape": "x".join(map(str, shape)), "layer": name, **took.over(base),
            "kept": kept_maps[name] / x.untyped_storage().nbytes(),
            "milliseconds": 1000 * took.median,
        }  # fmt: skip
        if copy is not None:
            line["of_copy"] = copy * least[name] / took.median if name in least else ""
        yield line


def _seconds(function: Function, x: Tensor, gradient: Tensor) -> float:
    """Of a forward and a backward pass."""
    x.grad = None
    return _clocked(lambda: function(x).backward(gradient), x.device)


def _copied(x: Tensor, onto: Tensor) -> float:
    return _clocked(lambda: onto.copy_(x), x.device)


def _clocked(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the processor, or of the device."""
    if device.type == "cpu":
        started = time.process_time()
        work()
        return time.process_time() - started
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(BUSY)  # while all is launched, which is none of the device's time
    begun.record()
    work()
    ended.record()
    torch.cuda.synchronize(device)
    return float(begun.elapsed_time(ended)) / 1000


def _kept_by_autograd(function: Function, x: Tensor) -> int:
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = function(x)
    saved.pop(out.untyped_storage().data_ptr(), None)
    return sum(saved.values())
