"""A network as a graph of calls: what feeds what, whatever its attributes are called.

torch.fx records one forward pass; layers, convolutions and activations stay whole, all else is
taken apart. With shapes, found on the meta device, the questions that the swap asks have short
answers: which activation follows this normalization, is this map pooled, is that a branch?
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
#: Functions that activate, whether normalizers know them or not.
_FUNCTIONS = {*GAINS, "clamp", "clamp_min", "threshold", "hardtanh", "prelu", "rrelu", "softshrink"}
_NORM_FUNCTIONS = (F.batch_norm, F.group_norm, F.instance_norm, torch.batch_norm, torch.group_norm)


class Tracer(fx.Tracer):
    """Keeps whole what the swap looks for, and what timm says cannot be traced."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=tuple(get_notrace_functions()))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (*NORMS, *_DROPS, NormAct, nn.Conv2d, nn.Linear))
        activates = type(m).__module__.startswith(ACTIVATION_MODULES)
        untraceable = type(m) in get_notrace_modules()
        own = known or activates or untraceable
        return own or super().is_leaf_module(m, module_qualified_name)


class CallGraph:
    """A network that can be rebuilt: its calls, with the shape of what each returns.

    Args:
        network: what to look at; it is not changed, but the rebuilt one shares its parameters.
        image: (C, H, W) of images that are large enough for every map to be larger than 1x1 until
            it is pooled.

    Raises:
        Impossible: the network computes something else in training than in evaluation, or what it
            computes depends on the values in its maps.
    """

    def __init__(self, network: nn.Module, image: tuple[int, int, int]) -> None:
        modes = {module: module.training for module in network.modules()}
        try:
            calls = Tracer().trace(network.train())
            in_evaluation = Tracer().trace(network.eval())
            self.module = fx.GraphModule(network, calls, type(network).__name__)
            self.shapes = _shapes(self.module.eval(), image)
        except Exception as error:  # code of other people's can fail in any way
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
        """The module that is called, if it is one."""
        return layer(self.module, call)

    def normalizations(self) -> Iterator[tuple[fx.Node, nn.Module]]:
        """Calls of layers of torch and timm that normalize."""
        for call in self.calls:
            layer = self.layer(call)
            if is_norm(layer):
                assert layer is not None
                yield call, layer

    def shape(self, call: fx.Node) -> tuple[int, ...]:
        """(1, C, H, W) of a map; () of what is no tensor."""
        return self.shapes.get(call.name, ())

    def is_map(self, call: fx.Node) -> bool:
        """Whether it returns maps that are not pooled yet."""
        shape = self.shape(call)
        return len(shape) == 4 and shape[2:] != POOLED

    def consumers(self, call: fx.Node) -> list[fx.Node]:
        """The calls that what `call` returns goes to, through those that do nothing."""
        found = []
        for user in call.users:
            found += self.consumers(user) if self.is_identity(user) else [user]
        return found

    def producer(self, call: fx.Node) -> fx.Node:
        """The call whose result `call` works on first, through those that do nothing."""
        given: Any = call.args[0]
        return self.producer(given) if self.is_identity(given) else given

    def is_identity(self, call: fx.Node) -> bool:
        """Whether what it returns is what it was given."""
        return isinstance(self.layer(call), nn.Identity) or self.drop_rate(call) == 0.0

    def drop_rate(self, call: fx.Node) -> float | None:
        """Of a call that drops values or paths at random: its rate."""
        if call.target is F.dropout:
            given: Any = call.args[1] if len(call.args) > 1 else call.kwargs.get("p", 0.5)
            return float(given)
        return drop_rate(self.layer(call))

    def activation(self, call: fx.Node) -> str | None:
        """The name of the activation that `call` computes, or None if it computes another thing."""
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
        """The name of an activation that `call` computes and normalizers do not know, or ""."""
        if self.activation(call) is not None:
            return ""
        layer = self.layer(call)
        if layer is None:
            function = _function(call)
            return function if function in _FUNCTIONS - {GATE} else ""
        return type(layer).__name__ if is_activation(layer) else ""

    def is_in_place(self, call: fx.Node) -> bool:
        """Whether an activation overwrites what it was given."""
        layer = self.layer(call)
        if layer is not None:
            return bool(getattr(layer, "inplace", False))
        named = _function(call, bare=False).endswith("_")
        return named or bool(call.kwargs.get("inplace"))

    def is_self_gated(self, call: fx.Node) -> bool:
        """Whether what `call` returns is multiplied by a gate of itself, as in x * sigmoid(x)."""
        readers = self.consumers(call)
        gates = [each for each in readers if isinstance(self.layer(each), GATES)]
        gates += [each for each in readers if _function(each) == GATE]
        return any(set(self.consumers(gate)) & set(readers) for gate in gates)

    def is_norm_function(self, call: fx.Node) -> bool:
        """Whether a function normalizes that should be a layer."""
        return call.target in _NORM_FUNCTIONS

    def downstream(self, call: fx.Node) -> set[fx.Node]:
        """All calls that what `call` returns has a part in."""
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
        """The most convolutions on a way from the images to each call."""
        return depths(self.module)

    def replace(self, call: fx.Node, layer: nn.Module) -> None:
        """Let `call` call `layer`, under the name that the old one has."""
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
        if others:  # one layer in several places: each gets its own
            call.target = f"{call.target}_{call.name}"
        self.module.add_submodule(str(call.target), layer)

    def insert_after(self, call: fx.Node, layer: nn.Module, name: str) -> None:
        """Let what `call` returns go through `layer`, a submodule `name` beside that of `call`."""
        path = f"{call.target}_{name}"
        self.module.add_submodule(path, layer)
        with self.module.graph.inserting_after(call):
            fresh = self.module.graph.call_module(path, (call,))
        call.replace_all_uses_with(fresh, lambda user: user is not fresh)
        self.shapes[fresh.name] = self.shape(call)

    def pad_before(self, call: fx.Node, conv: nn.Conv2d) -> None:
        """Before a convolution that pads as it goes ("same"), pad outside of it."""
        sizes = (conv.kernel_size, conv.stride, conv.dilation)
        with self.module.graph.inserting_before(call):
            padded = self.module.graph.call_function(timm.layers.pad_same, (call.args[0], *sizes))
        call.args = (padded, *call.args[1:])

    def bypass(self, call: fx.Node) -> None:
        """Take `call` out: its readers get what it was given."""
        call.replace_all_uses_with(call.args[0])  # type: ignore[arg-type]
        self.module.graph.erase_node(call)

    def rebuild(self) -> fx.GraphModule:
        """The network as it now is."""
        self.module.delete_all_unused_submodules()
        self.module.graph.lint()
        self.module.recompile()
        self.module.train(self.module.training)  # new layers, too
        return self.module


def layer(module: fx.GraphModule, call: fx.Node) -> nn.Module | None:
    """The module that is called, if it is one."""
    return module.get_submodule(str(call.target)) if call.op == "call_module" else None


def depths(module: fx.GraphModule) -> dict[fx.Node, int]:
    """The most convolutions on a way from the images to each call."""
    found: dict[fx.Node, int] = {}
    for call in module.graph.nodes:
        before = max((found[source] for source in call.all_input_nodes), default=0)
        found[call] = before + isinstance(layer(module, call), nn.Conv2d)
    return found


def _function(call: fx.Node, *, bare: bool = True) -> str:
    """The name of the function or method that is called, without the _ of those in place."""
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
    """Every call with its arguments; those of a dropout, which is replaced, say if it trains."""
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
