"""Layers of all normalizers, of timm and of torch, over torch's batch normalization and ReLU.

Processor time of a forward and a backward pass, as wall time says more of the machine than of the
layer. On the way stand bytes kept for the backward pass over those of the input; of a compiled
layer those that autograd knows, of the others all that lies there.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import timm.layers
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.bench.measured import Once, in_turn, leave, taken
from normbench.catalog import normalizer, normalizers
from normbench.errors import BadInput, Impossible, choose_from, counted
from normbench.norms.activations import activation
from normbench.norms.layer import largest_divisor
from normbench.norms.lean import set_lean
from normbench.performance import IMPLS
from normbench.probes.memory import kept

BASE = "F.batch_norm + relu"
OWN = {
    "norm": "", "impl": ",".join(IMPLS), "shape": "4x256x56x56,32x256x14x14", "act": "relu",
    "dtype": "float32", "rounds": "7", "threads": "1", "peers": "true", "out": "",
}  # fmt: skip
#: Layers of timm, joint with their activations.
TIMM = {
    "timm bn": "BatchNormAct2d", "timm gn": "GroupNormAct", "timm frn": "FilterResponseNormTlu2d",
    "timm evonorm_b0": "EvoNorm2dB0", "timm evonorm_s0": "EvoNorm2dS0",
}  # fmt: skip
Function = Callable[[Tensor], Tensor]


def bench(words: Sequence[str]) -> None:
    """As the command says."""
    own, rest = taken(words, OWN)
    if rest:
        raise BadInput(f"{rest[0]}: layers has no such word; it has {', '.join(OWN)}")
    torch.set_num_threads(counted("threads", own["threads"], 1))
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(own["dtype"])
    if dtype is None:
        raise BadInput(f"dtype={own['dtype']}: float32 or bfloat16")
    if own["peers"] not in ("true", "false"):
        raise BadInput(f"peers={own['peers']}: true or false")
    norms = own["norm"].split(",") if own["norm"] else normalizers()
    impls, rounds = own["impl"].split(","), counted("rounds", own["rounds"], 7)
    for key, words_, known in (("norm", norms, normalizers()), ("impl", impls, IMPLS)):
        for word in words_:
            if word not in known:
                raise BadInput(f"{key}={word} is unknown; {choose_from(word, known)}")
    try:
        activation(own["act"])
    except ValueError as error:
        raise BadInput(str(error)) from None
    lines = []
    for shape in map(_shape, own["shape"].split(",")):
        entries = dict(_peers(shape[1], own["act"])) if own["peers"] == "true" else {}
        for name in norms:
            for impl in impls:
                entries[f"{name} {impl}"] = partial(_ours, name, shape[1], own["act"], impl)
        lines += list(_timed(entries, shape, dtype, rounds))
    leave(own["out"], lines)


def _shape(word: str) -> tuple[int, ...]:
    try:
        n, c, h, w = map(int, word.split("x"))
    except ValueError:
        raise BadInput(f"shape={word}: it is NxCxHxW, as 4x256x56x56") from None
    if min(n, c, h, w) < 1 or n * h * w == 1:
        raise BadInput(f"shape={word}: a channel needs two values at least, as in 4x256x56x56")
    return n, c, h, w


def _ours(name: str, channels: int, act: str, impl: str) -> Function:
    layer = normalizer(name).layer(channels, act)
    set_lean(layer, impl == "lean")
    if impl == "compile":
        compiled: Function = torch.compile(layer, fullgraph=True, dynamic=False)
        return compiled
    return layer


def _peers(channels: int, act: str) -> Iterator[tuple[str, Callable[[], Function]]]:
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


def _base(channels: int) -> Function:
    weight, bias = (each.requires_grad_() for each in (torch.ones(channels), torch.zeros(channels)))
    mean, var = torch.zeros(channels), torch.ones(channels)
    return lambda x: F.relu(F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5))


def _timed(
    entries: dict[str, Callable[[], Function]],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    rounds: int,
) -> Iterator[dict[str, object]]:
    x = torch.randn(shape, dtype=dtype).requires_grad_()
    gradient = torch.randn(shape, dtype=dtype)
    makers: dict[str, Callable[[], Function]] = {BASE: partial(_base, shape[1]), **entries}
    steps: dict[str, Once] = {}
    maps: dict[str, float] = {}
    for name, make in makers.items():
        try:
            function = make()
            keeps = _kept_by_autograd if name.endswith(" compile") else kept
            maps[name] = keeps(function, x) / x.untyped_storage().nbytes()
        except (Impossible, ValueError, AssertionError) as reason:  # timm refuses some channels
            print(f"{name} at {'x'.join(map(str, shape))}: {reason}")
            continue
        steps[name] = partial(_seconds, function, x, gradient)
    found = in_turn(steps, rounds)
    base = found[BASE].median
    for name, took in found.items():
        yield {
            "shape": "x".join(map(str, shape)), "layer": name, **took.over(base),
            "kept": maps[name], "milliseconds": 1000 * took.median,
        }  # fmt: skip


def _seconds(function: Function, x: Tensor, gradient: Tensor) -> float:
    """Processor time of a forward and a backward pass."""
    x.grad = None
    started = time.process_time()
    function(x).backward(gradient)
    return time.process_time() - started


def _kept_by_autograd(function: Function, x: Tensor) -> int:
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = function(x)
    saved.pop(out.untyped_storage().data_ptr(), None)
    return sum(saved.values())
