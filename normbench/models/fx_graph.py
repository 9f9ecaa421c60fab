"""A network as a torch.fx graph of calls with shapes, which the swap rewrites.

torch.fx traces one forward pass; layers, convolutions and activations are leaves, all else is
traced into. Shapes are computed on the meta device. The graph answers which activation follows a
normalization, whether a map is pooled and where a branch ends, whatever attributes are called.
"""

import operator
from collections.abc import Iterator
from copy import copy, deepcopy
from itertools import chain, zip_longest
from typing import Any

import timm.layers
import torch
import torchvision
from timm.models import get_notrace_functions, get_notrace_modules
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional as F

from normbench.errors import Impossible
from normbench.models import layer_types
from normbench.models.random_layers import RandomLayer
from normbench.norms.base.activations import GAINS
from normbench.norms.base.layer import NormAct
from normbench.norms.base.residual import Join
from normbench.norms.base.same_padding import SameMaxPool2d
from normbench.norms.channels_last import ChannelsLast

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
NORM_FUNCTIONS = (F.batch_norm, F.group_norm, F.instance_norm, torch.batch_norm, torch.group_norm)
POOLED = (1, 1)
_DROPS = (timm.layers.DropPath, torchvision.ops.StochasticDepth)
#: Activation functions, whether normalizers support them or not.
_FUNCTIONS = {*GAINS, "clamp", "clamp_min", "threshold", "hardtanh", "prelu", "rrelu", "softshrink"}


class Tracer(fx.Tracer):
    """Treat as leaves what the swap looks for, and what timm marks as untraceable."""

    def __init__(self) -> None:
        # pad_same stands in networks that the swap has rewritten.
        wrapped = (*get_notrace_functions(), timm.layers.pad_same)
        super().__init__(autowrap_functions=wrapped)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            isinstance(
                m,
                (
                    *layer_types.NORMS,
                    *_DROPS,
                    NormAct,
                    ChannelsLast,
                    Join,
                    nn.Conv2d,
                    nn.Linear,
                    SameMaxPool2d,
                ),
            )
            or layer_types.is_activation_or_gate(m)
            or type(m) in get_notrace_modules()
            or super().is_leaf_module(m, module_qualified_name)
        )


class TrainingTracer(Tracer):
    """Treat layers that draw random numbers as leaves, too, so that they draw in every call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, RandomLayer) or super().is_leaf_module(m, module_qualified_name)


class CallGraph:
    """The calls of a network with the shapes of their results, and operations to rewrite them.

    Args:
        network: the network; it is not changed, but the rebuilt one shares its parameters.
        image: (C, H, W) of an image, large enough that every map is larger than 1x1 until pooled.
        evaluation: trace the evaluation alone, whatever training computes.

    Raises:
        Impossible: the network differs between training and evaluation, or its control flow depends
            on values in its maps.
    """

    def __init__(
        self, network: nn.Module, image: tuple[int, int, int], *, evaluation: bool = False
    ) -> None:
        #: Names of parameters that networks of timm exempt from weight decay, as of embeddings.
        self.undecayed = frozenset(getattr(network, "no_weight_decay", frozenset)())
        modes = {module: module.training for module in network.modules()}
        try:
            in_evaluation = Tracer().trace(network.eval())
            calls = in_evaluation if evaluation else Tracer().trace(network.train())
            self.module = fx.GraphModule(network, calls, type(network).__name__)
            with torch.no_grad():
                dtype = next((each.dtype for each in network.parameters()), None)
                images = torch.empty(1, *image, device="meta", dtype=dtype)
                _ShapeRecorder(self.module.eval()).run(images)
        except Exception as error:  # foreign code can raise anything
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise Impossible(
                f"the network cannot be traced for images {image}: {reason}; if it takes images of "
                "another size, give image= to swap or +model.arguments.img_size=N to model=timm"
            ) from error
        finally:
            for module, training in modes.items():
                module.training = training
        _require_same_calls(network, calls, in_evaluation)
        self.module.training = network.training

    def copy(self) -> "CallGraph":
        """Return the same calls of the same layers, to be rewritten on their own."""
        copied = copy(self)
        calls = deepcopy(self.module.graph)
        copied.module = fx.GraphModule(self.module, calls, type(self.module).__name__)
        return copied

    @property
    def calls(self) -> list[fx.Node]:
        """All calls, each after those whose results it uses."""
        return list(self.module.graph.nodes)

    def layer(self, call: fx.Node) -> nn.Module | None:
        """Return the module that `call` calls, or None."""
        return layer(self.module, call)

    def normalizations(self) -> Iterator[tuple[fx.Node, nn.Module]]:
        """Yield the calls of normalizations of torch and timm, with their layers."""
        for call in self.calls:
            layer = self.layer(call)
            if layer is not None and layer_types.is_norm(layer):
                yield call, layer

    def untraced(self) -> list[tuple[fx.Node, nn.Module]]:
        """Return the calls of modules whose inner layers are not traced, and these modules."""
        known = (*layer_types.NORMS, NormAct, ChannelsLast, Join)
        pairs = [(call, layer) for call in self.calls if (layer := self.layer(call)) is not None]
        return [
            (call, layer)
            for call, layer in pairs
            if not isinstance(layer, known) and next(layer.children(), None) is not None
        ]

    def shape(self, call: fx.Node) -> tuple[int, ...]:
        """Return the shape of a result, (1, C, H, W) of maps; () if it is no tensor."""
        shape: tuple[int, ...] = call.meta.get("shape", ())
        return shape

    def is_map(self, call: fx.Node) -> bool:
        """Return True if the result is maps that are not pooled yet."""
        shape = self.shape(call)
        return len(shape) == 4 and shape[2:] != POOLED

    def consumers(self, call: fx.Node) -> list[fx.Node]:
        """Return the calls that use the result of `call`, looking through identities."""
        consumers = []
        for user in call.users:
            consumers += self.consumers(user) if self.is_identity(user) else [user]
        return consumers

    def producer(self, call: fx.Node) -> fx.Node:
        """Return the call that computes the first argument, looking through identities."""
        source: Any = call.args[0]
        return self.producer(source) if self.is_identity(source) else source

    def is_identity(self, call: fx.Node) -> bool:
        """Return True if `call` returns its input."""
        return isinstance(self.layer(call), nn.Identity) or self.drop_rate(call) == 0.0

    def drop_rate(self, call: fx.Node) -> float | None:
        """Return the rate of a call of dropout or stochastic depth; None of any other call."""
        if call.target is F.dropout:
            rate: Any = call.args[1] if len(call.args) > 1 else call.kwargs.get("p", 0.5)
            return float(rate)
        return layer_types.drop_rate(self.layer(call))

    def activation(self, call: fx.Node) -> str | None:
        """Return the name of the activation that `call` computes, or None."""
        layer = self.layer(call)
        if layer is not None:
            return layer_types.activation_name(layer)
        if _function_name(call).strip("_") not in _FUNCTIONS or len(call.all_input_nodes) != 1:
            return None
        target: Any = call.target
        function = getattr(Tensor, target) if isinstance(target, str) else target
        return layer_types.match_activation(lambda u: function(u, *call.args[1:], **call.kwargs))

    def unsupported_activation(self, call: fx.Node) -> str:
        """Return the name of an activation that normalizers do not support, or ""."""
        if self.activation(call) is not None:
            return ""
        layer = self.layer(call)
        if layer is None:
            function = _function_name(call).strip("_")
            return function if function in _FUNCTIONS - {layer_types.GATE} else ""
        return type(layer).__name__ if layer_types.is_activation(layer) else ""

    def is_in_place(self, call: fx.Node) -> bool:
        """Return True if an activation overwrites its input."""
        return is_in_place(self.module, call)

    def is_self_gated(self, call: fx.Node) -> bool:
        """Return True if the result is multiplied by a gate of itself, as in x * sigmoid(x)."""
        readers = self.consumers(call)
        gates = [
            each
            for each in readers
            if isinstance(self.layer(each), layer_types.GATES)
            or _function_name(each).strip("_") == layer_types.GATE
        ]
        return any(set(self.consumers(gate)) & set(readers) for gate in gates)

    def is_average(self, call: fx.Node) -> bool:
        """Return True if `call` averages each channel over its positions, or flattens averages."""
        layer, shape = self.layer(call), self.shape(call)
        if len(call.all_input_nodes) != 1 or shape[2:] not in [(), POOLED]:
            return False
        if shape[:2] != self.shape(call.all_input_nodes[0])[:2]:
            return False
        if layer is not None:
            return isinstance(layer, nn.AdaptiveAvgPool2d | nn.Flatten)
        return _function_name(call) in ("mean", "flatten", "adaptive_avg_pool2d")

    def takes_mean(self, call: fx.Node) -> bool:
        """Return True if `call` averages each channel over its positions, be it only one."""
        flattens = isinstance(self.layer(call), nn.Flatten) or _function_name(call) == "flatten"
        return self.is_average(call) and not flattens

    def downstream(self, call: fx.Node) -> set[fx.Node]:
        """Return all calls that depend on the result of `call`."""
        dependent = {call}
        for each in self.calls:  # each after its inputs, so one pass is enough
            if not dependent.isdisjoint(each.all_input_nodes):
                dependent.add(each)
        return dependent - {call}

    def replace(self, call: fx.Node, layer: nn.Module) -> None:
        """Let `call` call `layer`, under the name of the old layer."""
        if call.op != "call_module":
            name = f"{call.name}_"
            self.module.add_submodule(name, layer)
            with self.module.graph.inserting_before(call):
                added = self.module.graph.call_module(name, (call.args[0],))
            added.meta = dict(call.meta)
            call.replace_all_uses_with(added)
            self.module.graph.erase_node(call)
            return
        others = [other for other in self.calls if other.target == call.target and other != call]
        if others:  # a layer that is called in several places: each call gets a layer
            call.target = f"{call.target}_{call.name}"
        self.module.add_submodule(str(call.target), layer)

    def insert_after(self, call: fx.Node, layer: nn.Module, name: str) -> None:
        """Pass the result of `call` through `layer`, named after `call` with the suffix `name`."""
        path = f"{call.target}_{name}"
        self.module.add_submodule(path, layer)
        with self.module.graph.inserting_after(call):
            added = self.module.graph.call_module(path, (call,))
        added.meta = dict(call.meta)
        call.replace_all_uses_with(added, lambda user: user is not added)  # it reads `call` itself

    def pad_before(self, call: fx.Node, conv: nn.Conv2d) -> None:
        """Pad before a convolution that pads dynamically ("same"), outside of it."""
        sizes = (conv.kernel_size, conv.stride, conv.dilation)
        with self.module.graph.inserting_before(call):
            padded = self.module.graph.call_function(timm.layers.pad_same, (call.args[0], *sizes))
        call.args = (padded, *call.args[1:])

    def update_padding(self, call: fx.Node, conv: nn.Conv2d) -> None:
        """Adapt the padding of `pad_before`, if there is one, to the sizes that `conv` has now."""
        padded: Any = call.args[0]
        if padded.target is timm.layers.pad_same:
            padded.args = (padded.args[0], conv.kernel_size, conv.stride, conv.dilation)

    def bypass(self, call: fx.Node) -> None:
        """Remove `call`; its consumers receive its input."""
        call.replace_all_uses_with(call.args[0])  # type: ignore[arg-type]
        self.module.graph.erase_node(call)

    def rebuild(self) -> fx.GraphModule:
        """Return the network with all changes."""
        self.module.delete_all_unused_submodules()  # replaced layers
        self.module.graph.lint()
        self.module.recompile()
        self.module.train(self.module.training)  # new layers, too
        return self.module


def trace_training(network: nn.Module) -> fx.GraphModule:
    """Return the calls of `network`, which shares its layers, in its present mode.

    Raises:
        Impossible: torch.fx cannot trace it.
    """
    try:
        return fx.GraphModule(network, TrainingTracer().trace(network))
    except Exception as error:  # foreign code can raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise Impossible(f"the network cannot be traced: {reason}") from error


def layer(module: fx.GraphModule, call: fx.Node) -> nn.Module | None:
    """Return the module that `call` calls, or None."""
    return module.get_submodule(str(call.target)) if call.op == "call_module" else None


def is_in_place(module: fx.GraphModule, call: fx.Node) -> bool:
    """Return True if `call` overwrites its first argument."""
    called = layer(module, call)
    if called is not None:
        return bool(getattr(called, "inplace", False))
    return _function_name(call).endswith("_") or bool(call.kwargs.get("inplace"))


def depths(module: fx.GraphModule) -> dict[fx.Node, int]:
    """Return, for each call, the largest number of convolutions on a path from the images."""
    depths: dict[fx.Node, int] = {}
    for call in module.graph.nodes:
        before = max((depths[source] for source in call.all_input_nodes), default=0)
        depths[call] = before + isinstance(layer(module, call), nn.Conv2d)
    return depths


def _function_name(call: fx.Node) -> str:
    """Return the name of a called function or method, or ""."""
    if call.op not in ("call_function", "call_method"):
        return ""
    return call.target if isinstance(call.target, str) else getattr(call.target, "__name__", "")


def _require_same_calls(network: nn.Module, calls: fx.Graph, in_evaluation: fx.Graph) -> None:
    """Raise Impossible if a network computes something else in training than in evaluation."""
    pairs = zip_longest(_list_calls(network, calls), _list_calls(network, in_evaluation))
    if others := [(one, other) for one, other in pairs if one != other]:
        place: Any = next(call[1] for call in others[0] if call is not None)
        place = getattr(place, "__name__", place)
        raise Impossible(
            f"the network computes in training what it does not in evaluation, at {place}, and "
            "only one way can be traced; auxiliary outputs, for example, can often be disabled"
        )


def _list_calls(network: nn.Module, calls: fx.Graph) -> list[tuple[object, ...]]:
    """List all calls with their arguments, except of functions that depend on the mode.

    The swap replaces dropout and refuses normalizations. Attributes that nobody uses are left out:
    a cache of evaluation is keyed by a device, for example.
    """
    used = [call for call in calls.nodes if call.users or call.target is not getattr]
    places = {call: f"%{place}" for place, call in enumerate(used)}
    listed: list[tuple[object, ...]] = []
    for call in used:
        if call.target in (F.dropout, *NORM_FUNCTIONS):
            listed.append((call.op, call.target))
        elif call.op == "get_attr" and str(call.target).startswith("_tensor_constant"):
            # Each trace numbers the tensors anew that it computes.
            listed.append((call.op, "a constant", _describe_constant(network, str(call.target))))
        else:
            arguments = fx.map_arg((call.args, call.kwargs), places.__getitem__)
            listed.append((call.op, call.target, str(arguments)))
    return listed


def _describe_constant(network: nn.Module, name: str) -> str:
    value: Tensor = getattr(network, name)
    return f"{value.dtype} {'of the shape' if value.is_meta else value.tolist()} {value.shape}"


class _ShapeRecorder(fx.Interpreter):
    """Runs a traced network on the meta device and stores the shape of each result."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else ()
        return value

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        return value.to("meta") if isinstance(value, Tensor) else value

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(target)
        if isinstance(module, NormAct) or layer_types.is_norm(module):
            # Torch takes long to compute what keeps the shape.
            return torch.empty_like(args[0])
        tensors = [*chain(module.named_parameters(), module.named_buffers())]
        if all(tensor.is_meta for _, tensor in tensors):
            return module(*args, **kwargs)
        # Not module.to("meta"), which would take the network's own parameters away.
        on_meta = {name: tensor.to("meta") for name, tensor in tensors}
        return functional_call(module, on_meta, args, kwargs)
