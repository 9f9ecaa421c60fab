"""Any network of timm or torchvision with any normalizer in the place of its own.

    network = swap(timm.create_model("resnet50"), normalizer("evonorm_s0"))
    print(coverage(network))

Each normalization and the activation that follows it, found in the graph of calls and through
whatever does nothing, become one layer of the normalizer:

    normalization, activation       layer(channels, act)
    normalization alone             layer(channels, None): last in a v1 block, shortcut, MBConv's
                                    projection
    before the final mean           last(channels, act)
    activation alone                activation(channels, act): after the addition of a v1 block

Gates (sigmoids) stay, and so does what works on pooled maps without a normalization of its own:
the activations and convolutions of squeeze-excite. Every other convolution becomes what the
normalizer asks for. With weight standardization one learned scale per channel follows the last
convolution of a residual branch that has no normalization behind it (v2 ResNets; Labatie et al.
2021, appendix A.1). Dropout and stochastic depth become those of `normbench.models.dropping`.

The weights of all that stays are kept. A new layer takes gain and shift from the normalization in
its place, which is how zero-initialized gains survive, and batch normalization takes the running
statistics too, and eps and momentum where its own options are the usual ones.
"""

import timm.layers
from torch import fx, nn

from normbench.errors import Impossible
from normbench.models.blocks import PLAIN, require_residual
from normbench.models.dropping import Dropout, StochasticDepth
from normbench.models.graph import (
    Graph,
    activation_of,
    is_batch_norm,
    is_row_drop,
    normalizes_channels,
)
from normbench.norms.layer import NormAct, Normalizer, Scale
from normbench.norms.residual import NormalizerFree

#: Convolutions that differ in their weights alone, or in how they pad.
_CONVS = (
    nn.Conv2d,
    timm.layers.Conv2dSame,
    timm.layers.StdConv2d,
    timm.layers.StdConv2dSame,
    timm.layers.ScaledStdConv2d,
    timm.layers.ScaledStdConv2dSame,
)


def swap(
    network: nn.Module,
    norm: Normalizer,
    *,
    image: tuple[int, int, int] = (3, 224, 224),
    allow_left: bool = False,
) -> fx.GraphModule:
    """`network` with `norm` in it; parameters that stay are shared with it.

    Args:
        network: of timm or torchvision, or whatever torch.fx can trace.
        norm: the normalizer.
        image: (C, H, W) that the network is made for.
        allow_left: leave batch normalizations where they cannot be replaced.

    Raises:
        Impossible: the normalizer asks for residual branches that the network does not have; an
            activation is none that normalizers know; a filter cannot be standardized; the network
            cannot be traced, or has nothing to replace.
        ValueError: a batch normalization would be left.
    """
    graph = Graph(network, image)
    if not _is_as_asked(graph, norm):
        require_residual(norm, PLAIN)
        _replace_norms(graph, norm)
        _replace_activations(graph, norm)
        _standardize(graph, norm)
    _replace_drops(graph)
    swapped = graph.rebuilt()
    if not allow_left:
        _require_no_batch_norm(swapped)
    return swapped


def _require_no_batch_norm(network: nn.Module) -> None:
    found = [(name, type(layer)) for name, layer in network.named_modules() if is_batch_norm(layer)]
    if found:
        name, kind = found[0]
        raise ValueError(
            f"allow_left=false: {len(found)} batch normalizations do not work on maps (N, C, H, W) "
            f"and would be left ({kind.__name__} {name}); allow_left=true leaves them"
        )


def _is_as_asked(graph: Graph, norm: Normalizer) -> bool:
    """Whether the network is normalizer-free in just the way that the normalizer asks for."""
    scaled = any(isinstance(graph.layer(call), timm.layers.ScaledStdConv2d) for call in graph.calls)
    return scaled and type(norm.residual) is NormalizerFree and not any(graph.normalizations())


def _replace_norms(graph: Graph, norm: Normalizer) -> None:
    layers: dict[tuple[nn.Module, str | None], NormAct] = {}
    for call, old in graph.normalizations():
        given = graph.shape(call.all_input_nodes[0])
        if not normalizes_channels(old, given):
            continue
        _require_separable(old, call)
        fused = getattr(old, "act", None)
        following = None if _acts(fused) else _following(graph, call)
        act = _known(call, fused) if _acts(fused) else _activation(graph, following)
        if following is not None:
            graph.bypass(following)
        if (old, act) not in layers:  # a layer that is called in several places stays one
            last = _is_last(graph, call)
            layers[old, act] = _made(norm, old, given[1], act, last=last)
        graph.put(call, layers[old, act])
    if not layers:
        raise Impossible(
            "the network has no normalization of maps (N, C, H, W) that could be replaced"
        )


def _require_separable(old: nn.Module, call: fx.Node) -> None:
    kind = f"{type(old).__name__} at {call.target}"
    if getattr(old, "apply_act", False):
        raise Impossible(f"{kind} is normalization and activation in one")
    if not isinstance(getattr(old, "drop", None), nn.Identity | None):
        raise Impossible(f"{kind} drops values between normalization and activation")


def _acts(fused: nn.Module | None) -> bool:
    """Whether a layer that fuses normalization and activation has the latter."""
    return fused is not None and not isinstance(fused, nn.Identity)


def _known(call: fx.Node, fused: nn.Module | None) -> str:
    act = activation_of(fused)
    if act is None:
        raise Impossible(_unknown(f"{type(fused).__name__} of {call.target}"))
    return act


def _following(graph: Graph, call: fx.Node) -> fx.Node | None:
    """The activation that takes all that `call` returns."""
    readers = graph.readers(call)
    if len(readers) != 1:
        return None
    if kind := graph.unknown_activation(readers[0]):
        raise Impossible(_unknown(f"{kind} after {call.target}"))
    return readers[0] if graph.activation(readers[0]) else None


def _unknown(activation: str) -> str:
    return f"the activation {activation} is none that normalizers know; choose another network"


def _activation(graph: Graph, following: fx.Node | None) -> str | None:
    return None if following is None else graph.activation(following)


def _is_last(graph: Graph, call: fx.Node) -> bool:
    """Whether all of what `call` returns goes into the final mean over positions."""
    channels = graph.shape(call)[1]
    readers = graph.readers(call)
    pooled = [(1, channels), (1, channels, 1, 1)]
    return graph.is_map(call) and len(readers) == 1 and graph.shape(readers[0]) in pooled


def _made(
    norm: Normalizer, old: nn.Module, channels: int, act: str | None, *, last: bool
) -> NormAct:
    norm = norm.in_place_of(old)
    layer = norm.last(channels, act) if last else norm.layer(channels, act)
    layer.adopt(old)
    return layer


def _replace_activations(graph: Graph, norm: Normalizer) -> None:
    """Those that no normalization precedes; on pooled maps they are squeeze-excite's."""
    for call in graph.calls:
        act = graph.activation(call)
        # After a linear layer channels are last, and a layer of the normalizer has no place there.
        if (
            act
            and graph.is_map(call)
            and not isinstance(graph.layer(graph.source(call)), nn.Linear)
        ):
            graph.put(call, norm.activation(graph.shape(call)[1], act))


def _standardize(graph: Graph, norm: Normalizer) -> None:
    if norm.conv is None:
        return
    if norm.conv.kind == "ws":
        for call in _ends_of_branches(graph):
            channels = graph.shape(call)[1]
            graph.insert_after(call, Scale(channels), "scale")
    for call in graph.calls:
        conv = graph.layer(call)
        if isinstance(conv, nn.Conv2d) and _on_maps(graph, call):
            if type(conv) not in _CONVS:
                kind = f"{type(conv).__name__} at {call.target}"
                raise Impossible(f"{kind} is no convolution whose weights can be standardized")
            if isinstance(conv, timm.layers.Conv2dSame) or getattr(conv, "same_pad", False):
                graph.pad(call, conv)
            graph.put(call, norm.conv.convert(conv))


def _on_maps(graph: Graph, call: fx.Node) -> bool:
    """Whether a convolution is neither squeeze-excite's nor the classifier."""
    return graph.is_map(call.all_input_nodes[0])


def _ends_of_branches(graph: Graph) -> list[fx.Node]:
    """Convolutions that are added to their shortcut with no normalization in between."""
    depths = graph.depths()
    found = []
    for call in graph.calls:
        if not graph.is_addition(call) or len(call.all_input_nodes) != 2:
            continue
        # The branch is the longer way; the shortcut has one convolution at most.
        end = max(call.all_input_nodes, key=depths.__getitem__)
        while graph.drop_rate(end) is not None or graph.does_nothing(end):
            end = end.all_input_nodes[0]
        if isinstance(graph.layer(end), nn.Conv2d):
            found.append(end)
    return found


def _replace_drops(graph: Graph) -> None:
    for call in graph.calls:
        layer = graph.layer(call)
        rate = graph.drop_rate(call)
        if rate and isinstance(layer, timm.layers.DropPath):
            graph.put(call, StochasticDepth(rate, rescale=layer.scale_by_keep))
        elif rate and is_row_drop(layer):
            graph.put(call, StochasticDepth(rate, rescale=True))
        elif rate:
            graph.put(call, Dropout(rate))
