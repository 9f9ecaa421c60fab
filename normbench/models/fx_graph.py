"""A network as a torch.fx graph of calls with shapes, which the swap rewrites.

torch.fx traces one forward pass; layers, convolutions and activations are leaves, all else is
traced into. Shapes are computed on the meta device. The graph answers which activation follows a
normalization, whether a map is pooled and where a branch ends, whatever attributes are called.
"""

import operator
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import timm.layers
import torch
import torchvision
from timm.models import get_notrace_functions, get_notrace_modules
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional as F

from normbench.errors import Impossible
from normbench.models.layer_types import (
    ACTIVATION_MODULES,
    GATE,
    GATES,
    NORMS,
    activation_name,
    drop_rate,
    is_activation,
    is_norm,
    match_activation,
)
from normbench.norms.base.activations import GAINS
from normbench.norms.base.layer import NormAct

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
POOLED = (1, 1)
_DROPS = (timm.layers.DropPath, torchvision.ops.StochasticDepth)
#: Activation functions, whether normalizers support them or not.
_FUNCTIONS = {*GAINS, "clamp", "clamp_min", "threshold", "hardtanh", "prelu", "rrelu", "softshrink"}
_NORM_FUNCTIONS = (F.batch_norm, F.group_norm, F.instance_norm, torch.batch_norm, torch.group_norm)


class Tracer(fx.Tracer):
    """Treat as leaves what the swap looks for, and what timm marks as untraceable."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=tuple(get_notrace_functions()))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (*NORMS, *_DROPS, NormAct, nn.Conv2d, nn.Linear))
        activates = type(m).__module__.startswith(ACTIVATION_MODULES)
        untraceable = type(m) in get_notrace_modules()
        own = known or activates or untraceable
        return own or super().is_leaf_module(m, module_qualified_name)


class CallGraph:
    """The calls of a network with the shapes of their results, and operations to rewrite them.

    Args:
        network: the network; it is not changed, but the rebuilt one shares its parameters.
        image: (C, H, W) of an image, large enough that every map is larger than 1x1 until pooled.

    Raises:
        Impossible: the network differs between training and evaluation, or its control flow depends
            on values in its maps.
    """

    def __init__(self, network: nn.Module, image: tuple[int, int, int]) -> None:
        modes = {module: module.training for module in network.modules()}
        try:
            calls = Tracer().trace(network.train())
            in_evaluation = Tracer().trace(network.eval())
            self.module = fx.GraphModule(network, calls, type(network).__name__)
            self.shapes = _shapes(self.module.eval(), image)
        except Exception as error:  # foreign code can raise anything
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise Impossible(
                f"the network cannot be traced for images {image}: {reason}"
            ) from error
        finally:
            for module, training in modes.items():
                module.training = training
        _require_one_way(calls, in_evaluation)
        self.module.training = network.training

    @property
    def calls(self) -> list[fx.Node]:
        return list(self.module.graph.nodes)

    def layer(self, call: fx.Node) -> nn.Module | None:
        """Return the module that `call` calls, or None."""
        return layer(self.module, call)

    def normalizations(self) -> Iterator[tuple[fx.Node, nn.Module]]:
        """Yield the calls of normalizations of torch and timm, with their layers."""
        for call in self.calls:
            layer = self.layer(call)
            if is_norm(layer):
                assert layer is not None
                yield call, layer

    def shape(self, call: fx.Node) -> tuple[int, ...]:
        """Return the shape of a result, (1, C, H, W) of maps; () if it is no tensor."""
        return self.shapes.get(call.name, ())

    def is_map(self, call: fx.Node) -> bool:
        """Whether `call` returns maps that are not pooled yet."""
        shape = self.shape(call)
        return len(shape) == 4 and shape[2:] != POOLED

    def consumers(self, call: fx.Node) -> list[fx.Node]:
        """Return the calls that use the result of `call`, looking through identities."""
        found = []
        for user in call.users:
            found += self.consumers(user) if self.is_identity(user) else [user]
        return found

    def producer(self, call: fx.Node) -> fx.Node:
        """Return the call that computes the first argument, looking through identities."""
        given: Any = call.args[0]
        return self.producer(given) if self.is_identity(given) else given

    def is_identity(self, call: fx.Node) -> bool:
        """Whether `call` returns its input."""
        return isinstance(self.layer(call), nn.Identity) or self.drop_rate(call) == 0.0

    def drop_rate(self, call: fx.Node) -> float | None:
        """Return the rate of a call of dropout or stochastic depth; None of any other call."""
        if call.target is F.dropout:
            given: Any = call.args[1] if len(call.args) > 1 else call.kwargs.get("p", 0.5)
            return float(given)
        return drop_rate(self.layer(call))

    def activation(self, call: fx.Node) -> str | None:
        """Return the name of the activation that `call` computes, or None."""
        layer = self.layer(call)
        if layer is not None:
            return activation_name(layer)
        if _function(call) not in _FUNCTIONS or len(call.all_input_nodes) != 1:
            return None
        given, options = call.args[1:], call.kwargs
        if isinstance(call.target, str):
            return match_activation(lambda u: getattr(u, str(call.target))(*given, **options))
        target: Any = call.target
        return match_activation(lambda u: target(u, *given, **options))

    def unsupported_activation(self, call: fx.Node) -> str:
        """Return the name of an activation that normalizers do not support, or ""."""
        if self.activation(call) is not None:
            return ""
        layer = self.layer(call)
        if layer is None:
            function = _function(call)
            return function if function in _FUNCTIONS - {GATE} else ""
        return type(layer).__name__ if is_activation(layer) else ""

    def is_in_place(self, call: fx.Node) -> bool:
        """Whether an activation overwrites its input."""
        layer = self.layer(call)
        if layer is not None:
            return bool(getattr(layer, "inplace", False))
        named = _function(call, bare=False).endswith("_")
        return named or bool(call.kwargs.get("inplace"))

    def is_self_gated(self, call: fx.Node) -> bool:
        """Whether the result is multiplied by a gate of itself, as in x * sigmoid(x)."""
        readers = self.consumers(call)
        gates = [each for each in readers if isinstance(self.layer(each), GATES)]
        gates += [each for each in readers if _function(each) == GATE]
        return any(set(self.consumers(gate)) & set(readers) for gate in gates)

    def is_norm_function(self, call: fx.Node) -> bool:
        """Whether `call` normalizes by a function instead of a layer."""
        return call.target in _NORM_FUNCTIONS

    def downstream(self, call: fx.Node) -> set[fx.Node]:
        """Return all calls that depend on the result of `call`."""
        found: set[fx.Node] = set()
        ahead = list(call.users)
        while ahead:
            each = ahead.pop()
            if each not in found:
                found.add(each)
                ahead += each.users
        return found

    def is_addition(self, call: fx.Node) -> bool:
        return call.target in ADDITIONS

    def depths(self) -> dict[fx.Node, int]:
        """Return, for each call, the largest number of convolutions on a path from the images."""
        return depths(self.module)

    def replace(self, call: fx.Node, layer: nn.Module) -> None:
        """Let `call` call `layer`, under the name of the old layer."""
        if call.op != "call_module":
            name = f"{call.name}_"
            self.module.add_submodule(name, layer)
            with self.module.graph.inserting_before(call):
                fresh = self.module.graph.call_module(name, (call.args[0],))
            self.shapes[fresh.name] = self.shape(call)
            call.replace_all_uses_with(fresh)
            self.module.graph.erase_node(call)
            return
        others = [other for other in self.calls if other.target == call.target and other != call]
        if others:  # a layer in several places: each gets its own
            call.target = f"{call.target}_{call.name}"
        self.module.add_submodule(str(call.target), layer)

    def insert_after(self, call: fx.Node, layer: nn.Module, name: str) -> None:
        """Pass the result of `call` through `layer`, named after `call` with the suffix `name`."""
        path = f"{call.target}_{name}"
        self.module.add_submodule(path, layer)
        with self.module.graph.inserting_after(call):
            fresh = self.module.graph.call_module(path, (call,))
        call.replace_all_uses_with(fresh, lambda user: user is not fresh)
        self.shapes[fresh.name] = self.shape(call)

    def pad_before(self, call: fx.Node, conv: nn.Conv2d) -> None:
        """Pad before a convolution that pads dynamically ("same"), outside of it."""
        sizes = (conv.kernel_size, conv.stride, conv.dilation)
        with self.module.graph.inserting_before(call):
            padded = self.module.graph.call_function(timm.layers.pad_same, (call.args[0], *sizes))
        call.args = (padded, *call.args[1:])

    def bypass(self, call: fx.Node) -> None:
        """Remove `call`; its consumers receive its input."""
        call.replace_all_uses_with(call.args[0])  # type: ignore[arg-type]
        self.module.graph.erase_node(call)

    def rebuild(self) -> fx.GraphModule:
        """Return the network with all changes."""
        self.module.delete_all_unused_submodules()
        self.module.graph.lint()
        self.module.recompile()
        self.module.train(self.module.training)  # new layers, too
        return self.module


def layer(module: fx.GraphModule, call: fx.Node) -> nn.Module | None:
    """Return the module that `call` calls, or None."""
    return module.get_submodule(str(call.target)) if call.op == "call_module" else None


def depths(module: fx.GraphModule) -> dict[fx.Node, int]:
    """Return, for each call, the largest number of convolutions on a path from the images."""
    found: dict[fx.Node, int] = {}
    for call in module.graph.nodes:
        before = max((found[source] for source in call.all_input_nodes), default=0)
        found[call] = before + isinstance(layer(module, call), nn.Conv2d)
    return found


def _function(call: fx.Node, *, bare: bool = True) -> str:
    """Return the name of a called function or method, without the _ of in-place ones."""
    if call.op not in ("call_function", "call_method"):
        return ""
    name = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", "")
    return name.strip("_") if bare else name


def _require_one_way(calls: fx.Graph, in_evaluation: fx.Graph) -> None:
    pairs = zip_longest(_described(calls), _described(in_evaluation))
    if others := [(one, other) for one, other in pairs if one != other]:
        place = next(call[1] for call in others[0] if call is not None)
        raise Impossible(
            f"the network computes in training what it does not in evaluation, at {place}, and one "
            "way is all that is traced; auxiliary outputs, for one, can often be switched off"
        )


def _described(calls: fx.Graph) -> list[tuple[object, ...]]:
    """List all calls with their arguments, except those of dropout, which depend on the mode."""
    return [
        (call.op, call.target)
        if call.target is F.dropout
        else (call.op, call.target, str(call.args), str(call.kwargs))
        for call in calls.nodes
    ]


def _shapes(module: fx.GraphModule, image: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}

    class Shapes(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                found[n.name] = tuple(value.shape)
            return value

    class Run(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> None:
            Shapes(self.inner).run(x)

    run = Run()
    tensors = {**dict(run.named_parameters()), **dict(run.named_buffers())}
    on_meta = {name: tensor.to("meta") for name, tensor in tensors.items()}
    with torch.no_grad():
        functional_call(run, on_meta, (torch.empty(1, *image, device="meta"),))
    return found
