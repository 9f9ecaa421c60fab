"""Put any normalizer into any network of timm or torchvision.

    norm = normbench.catalog.normalizer("evonorm_s0")
    network = swap(timm.create_model("resnet50"), norm)
    print(coverage(network, norm))

`normbench.catalog.swap` also takes the name of a normalizer.

Each normalization and the activation that follows it in the graph of calls, identities skipped,
become one layer of the normalizer:

    normalization, activation       layer(channels, act)
    normalization alone             layer(channels, None): last in a v1 block, shortcut, MBConv's
                                    projection
    before the final mean           final_layer(channels, act)
    activation alone                activation(channels, act): after the addition of a v1 block

Normalizations of the last axis, as in transformers and ConvNeXt, become layers with channels last
(`normbench.norms.channels_last`), if the first axis is that of the images. An activation of tokens
joins the normalization directly before it; other activations of tokens stay. Batch normalizations
of (N, C), and of tokens that are flattened to (N T, C) as in LeViT, become such layers, too. Inside
modules that torch.fx does not trace, as MobileViT's blocks, only batch normalizations that activate
by themselves are replaced (`normbench.models.untraced`).

Gates (sigmoids) stay, and so do the activations and convolutions of squeeze-excite and of other
attention on pooled maps. All other convolutions but the classifier are converted as the normalizer
needs. With weight standardization a learned scale per channel follows the last convolution of a
residual branch that no normalization follows (v2 ResNets; Labatie et al. 2021, appendix A.1).
Dropout and stochastic depth become those of `normbench.models.dropout`.

Remaining layers keep their weights. A new layer copies gain and shift of the normalization that it
replaces, so zero-initialized gains survive; batch normalization also copies running statistics, and
eps and momentum where its options have their defaults.

The result is a torch.fx.GraphModule with `forward` and the parameters, and no other methods. Load
state dicts of the original before the swap; `num_batches_tracked` is dropped.

The swap raises Impossible where it would change what the network computes or miss a batch
normalization: unsupported activations or ones that overwrite what others read, normalization by a
function, remaining batch normalizations, other kinds of dropout. Other normalizations that stay, of
several axes or of another first axis than the images, are counted by `coverage`.
"""

from collections.abc import Collection
from typing import Any

import timm.layers
import torch
import torchvision
from torch import fx, nn
from torch.nn import functional as F

from normbench.errors import Impossible
from normbench.models.blocks import PLAIN, Schemes, require_residual
from normbench.models.dropout import Dropout, StochasticDepth
from normbench.models.fx_graph import ADDITIONS, NORM_FUNCTIONS, CallGraph, depths
from normbench.models.layer_types import (
    SCALED_STANDARDIZED_CONVS,
    STANDARDIZED_CONVS,
    channel_axis,
    drop_rate,
    is_norm,
)
from normbench.models.untraced import (
    copy_untraced,
    fit_in,
    own_activation,
    replace_untraced,
    require_no_batch_norm,
    require_separable,
    unknown_activation,
)
from normbench.norms.base.layer import NormAct, Normalizer, Role, Scale
from normbench.norms.base.residual import NormalizerFree
from normbench.norms.batch import is_batch_norm
from normbench.norms.channels_last import ChannelsLast

#: Convolutions that differ in their weights alone, or in how they pad.
_CONVS = (nn.Conv2d, timm.layers.Conv2dSame, *STANDARDIZED_CONVS)


def swap(
    network: nn.Module,
    norm: Normalizer,
    *,
    image: tuple[int, int, int] = (3, 224, 224),
    allow_left: bool = False,
    residual: Schemes = PLAIN,
) -> fx.GraphModule:
    """Return `network` with `norm` in it.

    Args:
        network: a network of timm or torchvision, or any that torch.fx can trace. The result shares
            its layers, so do not use it afterwards.
        norm: the normalizer.
        image: (C, H, W) of an image on which the network runs, large enough that maps become 1x1
            only by pooling. The result takes other sizes too.
        allow_left: leave batch normalizations that cannot be replaced.
        residual: residual schemes that the network's blocks can have and, where the normalizer asks
            for one, have already.

    Raises:
        TypeError: `norm` is not a normalizer.
        Impossible: the normalizer needs residual branches that the network does not have; the
            network cannot be traced or has nothing to replace; a layer would be replaced wrongly or
            missed.
    """
    if not isinstance(norm, Normalizer):
        raise TypeError(
            f"norm={norm!r} is no normalizer; normbench.catalog.swap takes names of normalizers, "
            "normbench.catalog.normalizer makes one from its name"
        )
    return swap_calls(CallGraph(network, image), norm, allow_left=allow_left, residual=residual)


def swap_calls(
    graph: CallGraph, norm: Normalizer, *, allow_left: bool = False, residual: Schemes = PLAIN
) -> fx.GraphModule:
    """Return the network of a trace with `norm` in it, as `swap` does; it changes the trace."""
    _refuse_functions(graph)
    copy_untraced(graph)
    if not _is_normalizer_free(graph, norm):
        require_residual(norm, residual)
        _replace_norms(graph, norm, allow_left=allow_left)
        _replace_activations(graph, norm)
        _standardize(graph, norm)
    for call in graph.calls:
        if call.target is F.dropout:
            graph.replace(call, Dropout(graph.drop_rate(call) or 0.0))
    swapped = graph.rebuild()
    _replace_drops(swapped)  # behind the graph: it also reaches inside leaves
    _declare_roles(swapped, graph.undecayed)
    if not allow_left:
        require_no_batch_norm(swapped)
    return swapped


def _declare_roles(network: nn.Module, undecayed: Collection[str]) -> None:
    """Give the parameters of other modules a role, for weight decay."""
    for path, layer in network.named_modules():
        if not hasattr(layer, "roles"):  # layers of normbench declare theirs
            prefix = f"{path}." if path else ""
            roles = {
                name: "bias" if prefix + name in undecayed else _role(layer, name, parameter)
                for name, parameter in layer.named_parameters(recurse=False)
            }
            layer.roles = roles


def _role(layer: nn.Module, name: str, parameter: nn.Parameter) -> Role:
    """Return the role of a parameter.

    In unknown modules, one with several axes is a weight; one with a single axis is a bias if it is
    called so, else a gain, like layer scale. Embeddings that the network exempts from weight decay
    are biases, too.
    """
    if is_norm(layer) or is_batch_norm(layer):
        return "shift" if name == "bias" else "gain"
    if name == "bias":
        return "bias"
    weighs = name == "weight" and isinstance(layer, nn.Conv2d | nn.Linear)
    return "weight" if weighs or sum(size > 1 for size in parameter.shape) > 1 else "gain"


def _is_normalizer_free(graph: CallGraph, norm: Normalizer) -> bool:
    """Return True if the network is already normalizer-free, as the normalizer needs it."""
    scaled = any(isinstance(m, SCALED_STANDARDIZED_CONVS) for m in graph.module.modules())
    if not scaled or type(norm.residual) is not NormalizerFree or any(graph.normalizations()):
        return False
    if norm != type(norm)():  # an option that is not at its default
        raise Impossible(
            "the network is normalizer-free by itself, so options of the normalizer do not reach "
            "it; those of the network are model.arguments"
        )
    return True


def _refuse_functions(graph: CallGraph) -> None:
    for call in graph.calls:
        if call.target in NORM_FUNCTIONS:
            raise Impossible(f"{call.name} normalizes by a function, and layers alone are replaced")


def _replace_norms(graph: CallGraph, norm: Normalizer, *, allow_left: bool) -> None:
    """Replace normalizations of maps and tokens, each with the activation that follows it."""
    layers = replace_untraced(graph, norm, allow_left=allow_left)
    others: set[nn.Module] = set()
    for call, old in graph.normalizations():
        of_tokens = _bypass_flattening(graph, call, old)
        shape = graph.shape(call.all_input_nodes[0])
        axis = -1 if of_tokens else channel_axis(old, shape)
        if axis is None:
            others.add(old)
            continue
        require_separable(old, str(call.target))
        act = _take_activation(graph, call, old)
        is_averaged = _is_averaged(graph, call, axis)
        if old not in layers:  # a layer that is called in several places stays one
            similar = norm.inherit_options(old)
            make = similar.final_layer if is_averaged and axis == 1 else similar.layer
            layers[old] = make(shape[axis], act)
            fit_in(graph.module, layers[old])
            layers[old].inherit_parameters(old)
        if act is None and is_averaged:
            _require_different_means(norm, shape[axis])
        if layers[old].act != act:
            raise Impossible(f"{call.target} is called with an activation behind it and without")
        graph.replace(call, layers[old] if axis == 1 else ChannelsLast(layers[old]))
    if both := others & layers.keys():
        kind = type(both.pop()).__name__
        raise Impossible(
            f"a {kind} is called with inputs of two kinds, of which one cannot be swapped"
        )
    if not layers:
        raise Impossible(
            "the network has no normalization of maps (N, C, H, W) or tokens (N, T, C) that could "
            "be replaced"
        )
    _require_effect(norm, list(layers.values()))


def _bypass_flattening(graph: CallGraph, call: fx.Node, old: nn.Module) -> bool:
    """Remove the flattening around a batch normalization of tokens; return True if there was one.

    LeViT's are bn(x.flatten(0, 1)).reshape_as(x) with tokens (N, T, C).
    """
    if not isinstance(old, nn.BatchNorm1d) or len(call.users) != 1:
        return False
    flatten: Any = call.args[0]
    reshape = next(iter(call.users))
    if (
        (flatten.target, *flatten.args[1:]) != ("flatten", 0, 1)
        or (reshape.target, *reshape.args) != ("reshape_as", call, flatten.args[0])
        or len(flatten.users) != 1
        or len(shape := graph.shape(reshape)) != 3
        or shape[0] != 1  # another first axis than the images, as of windows
    ):
        return False
    call.meta = dict(reshape.meta)
    graph.bypass(flatten)
    graph.bypass(reshape)
    return True


def _require_effect(norm: Normalizer, layers: list[NormAct]) -> None:
    """Raise Impossible if the normalizer needs activations and the network offers none."""
    with_activation = type(norm.layer(layers[0].channels))
    if all(layer.act is None and type(layer) is not with_activation for layer in layers):
        raise Impossible(
            "no normalization of the network has an activation behind it, and without one this "
            "normalizer normalizes nothing or is another one; norm=ln2d, rms, gn and bn need none"
        )


def _is_averaged(graph: CallGraph, call: fx.Node, axis: int) -> bool:
    """Return True if the mean over all positions follows."""
    readers = graph.consumers(call)
    if axis == 1:
        return _is_last(graph, call)
    return len(readers) == 1 and readers[0].target == "mean" and len(graph.shape(call)) > 2


def _require_different_means(norm: Normalizer, channels: int) -> None:
    """Raise Impossible if a layer gives each image the same mean over positions."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.randn(4, channels, 5, 5) + torch.randn(4, channels, 1, 1)
        means = norm.layer(channels, None).eval()(images).mean((2, 3))
    if torch.allclose(means, means[:1].expand_as(means), atol=1e-4):
        raise Impossible(
            "the mean over all positions follows the last normalization, and behind this "
            "normalizer it is the same for every image"
        )


def _take_activation(graph: CallGraph, call: fx.Node, old: nn.Module) -> str | None:
    """Return the name of the activation in or behind a normalization, and remove one behind it."""
    if (name := own_activation(old, str(call.target))) is not None:
        return name
    if graph.is_self_gated(call):
        raise unknown_activation(f"x * sigmoid(x) after {call.target}")
    readers = graph.consumers(call)
    if len(readers) != 1:
        return None
    if kind := graph.unsupported_activation(readers[0]):
        raise unknown_activation(f"{kind} after {call.target}")
    name = graph.activation(readers[0])
    if name is not None:
        _require_sole_reader(graph, readers[0])
        graph.bypass(readers[0])
    return name


def _require_sole_reader(graph: CallGraph, activation: fx.Node) -> None:
    """Raise Impossible if an activation in place overwrites what other calls read."""
    if graph.is_in_place(activation) and len(graph.consumers(graph.producer(activation))) > 1:
        raise Impossible(f"the activation {activation.name} overwrites what others read, too")


def _is_last(graph: CallGraph, call: fx.Node) -> bool:
    """Return True if `call` feeds only the final mean, directly or through a concatenation."""
    readers = graph.consumers(call)
    if not graph.is_map(call) or len(readers) != 1:
        return False
    if readers[0].target is torch.cat:  # branches that end together, as in Inception
        return _is_last(graph, readers[0])
    channels = graph.shape(call)[1]
    return graph.shape(readers[0]) in [(1, channels), (1, channels, 1, 1)]


def _replace_activations(graph: CallGraph, norm: Normalizer) -> None:
    """Replace activations without a preceding normalization, except those on pooled maps."""
    for call in graph.calls:
        act = graph.activation(call)
        # After a linear layer channels are last, which a layer of the normalizer cannot take.
        if (
            act
            and graph.is_map(call)
            and not isinstance(graph.layer(graph.producer(call)), nn.Linear)
        ):
            _require_sole_reader(graph, call)
            activation = norm.activation(graph.shape(call)[1], act)
            graph.replace(call, fit_in(graph.module, activation))


def _standardize(graph: CallGraph, norm: Normalizer) -> None:
    """Standardize convolutions as the normalizer needs, and scale ends of branches."""
    if norm.conv is None:
        return
    if norm.conv.kind == "ws":  # nf scales its branches itself
        for call in _ends_of_branches(graph):
            graph.insert_after(call, fit_in(graph.module, Scale(graph.shape(call)[1])), "scale")
    for call in graph.calls:
        conv = graph.layer(call)
        if isinstance(conv, nn.Conv2d) and _on_maps(graph, call):
            if type(conv) not in _CONVS:  # a subclass may use its weights in another way
                kind = f"{type(conv).__name__} at {call.target}"
                raise Impossible(f"{kind} is no convolution whose weights can be standardized")
            standardized = norm.conv.apply(conv)
            if standardized is conv:  # depthwise, which some normalizers leave as they are
                continue
            if isinstance(conv, timm.layers.Conv2dSame) or getattr(conv, "same_pad", False):
                graph.pad_before(call, conv)
            graph.replace(call, standardized)


def _on_maps(graph: CallGraph, call: fx.Node) -> bool:
    """Return True for a convolution that is neither of squeeze-excite nor the classifier.

    A convolution of pooled maps is part of squeeze-excite if maps follow it, and the classifier if
    no layer with weights follows it.
    """
    if graph.is_map(call.all_input_nodes[0]):
        return True
    behind = graph.downstream(call)
    weighs = any(isinstance(graph.layer(each), nn.Linear | nn.Conv2d) for each in behind)
    return weighs and not any(graph.is_map(each) for each in behind)


def _ends_of_branches(graph: CallGraph) -> list[fx.Node]:
    """Return convolutions that are added to their shortcut without a normalization between."""
    depth = depths(graph.module)
    ends = []
    for call in graph.calls:
        if call.target not in ADDITIONS or len(call.all_input_nodes) != 2:
            continue
        # The branch is the longer path; the shortcut has at most one convolution.
        shortcut, end = sorted(call.all_input_nodes, key=depth.__getitem__)
        if depth[shortcut] == depth[end]:  # which of both is the branch is unknown
            continue
        while graph.drop_rate(end) is not None or graph.is_identity(end):
            end = end.all_input_nodes[0]
        if isinstance(graph.layer(end), nn.Conv2d):
            ends.append(end)
    return ends


def _replace_drops(network: nn.Module) -> None:
    """Replace dropout and stochastic depth, also inside modules that are not traced."""
    for path, layer in list(network.named_modules()):
        rate = drop_rate(layer)
        if not rate:  # another layer, or one that drops nothing
            continue
        if isinstance(layer, nn.Dropout):
            drop: nn.Module = Dropout(rate)
        elif isinstance(layer, timm.layers.DropPath):
            drop = StochasticDepth(rate, rescale=layer.scale_by_keep)
        elif isinstance(layer, torchvision.ops.StochasticDepth) and layer.mode == "row":
            drop = StochasticDepth(rate, rescale=True)  # as torchvision always does
        else:
            kind = type(layer).__name__
            raise Impossible(f"{kind} at {path} drops what is not drawn image by image")
        network.set_submodule(path, drop.train(layer.training))
