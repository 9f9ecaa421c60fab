"""Fold what is constant in evaluation into convolutions and linear layers, for inference.

    from normbench.models.fold import fold
    deployed = fold(network, image=(3, 224, 224))

The result computes what the network computes in evaluation, up to rounding:

1. Standardized weights become those of a plain convolution. The proxy of proxy normalization, which
   sees no image, becomes a gain and a shift behind the activation.
2. A layer that begins with a map of constants per channel (batch normalization in all its variants,
   gain and shift without normalization) loses it to a convolution before it, if nothing else reads
   the convolution. Its activation stays.
3. A layer that ends with gain and shift (EvoNorm, proxy normalization, nf's activations) loses them
   to the convolutions and linear layers behind it, if only such layers read it, directly or after
   an average over positions. Zero padding adds zeros behind the shift, so before a padded
   convolution the gain alone moves, and shift / gain stays.

All else stays: statistics of images, gain and shift before an activation that no such convolution
precedes, the learned vector of EvoNorm-B0 and its two deviations. Its running deviation could go
into the convolution before it, since the layer is scale-invariant, but the eps of the image's
variance would then be a number per channel: as many constants and no operation less.
"""

import copy

import timm.layers
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from normbench.errors import Impossible
from normbench.models.fx_graph import CallGraph
from normbench.norms.base.activations import IDENTITY
from normbench.norms.base.layer import Activation, Affine, Constants, GainAndShift, NormAct
from normbench.norms.base.same_padding import SameConv2d
from normbench.norms.base.standardized_conv import StandardizedConv2d

Readers = list[tuple[fx.Node, nn.Conv2d | nn.Linear]]

#: Convolutions that use weight and bias as they are.
_CONVS = (nn.Conv2d, SameConv2d, timm.layers.Conv2dSame)


@torch.no_grad()
def fold(network: nn.Module, image: tuple[int, int, int]) -> fx.GraphModule:
    """Return a network for inference, in evaluation mode, that shares nothing with `network`.

    Args:
        network: any that torch.fx can trace in evaluation.
        image: (C, H, W) of an image on which it runs, large enough that maps become 1x1 only by
            pooling. The result takes other sizes too.

    Raises:
        Impossible: the network cannot be copied or traced.
    """
    try:
        copied = copy.deepcopy(network).eval()
    except Exception as error:  # foreign code can raise anything
        raise Impossible(f"the network cannot be copied: {error}".partition("\n")[0]) from error
    graph = CallGraph(copied, image, evaluation=True)
    _compute_constants(graph)
    _fold_fronts(graph)
    _fold_backs(graph)
    return graph.rebuild()


def _compute_constants(graph: CallGraph) -> None:
    """Compute what layers compute anew in every forward pass although no image enters it."""
    for call in graph.calls:
        layer = graph.layer(call)
        if isinstance(layer, StandardizedConv2d):
            graph.replace(call, _plain_conv(layer))
        elif isinstance(layer, NormAct):
            first, *others = layer.inference_layers()
            if others:
                graph.replace(call, first)
            for number, other in reversed([*enumerate(others)]):
                graph.insert_after(call, other, f"after{number or ''}")


def _plain_conv(conv: StandardizedConv2d) -> nn.Conv2d:
    """Return a convolution whose weights are the standardized ones of `conv`."""
    plain = nn.Conv2d(
        conv.in_channels, conv.out_channels, conv.kernel_size,  # type: ignore[arg-type]
        conv.stride, conv.padding, conv.dilation, conv.groups,  # type: ignore[arg-type]
        bias=False, padding_mode=conv.padding_mode, device="meta",
    )  # fmt: skip
    plain.weight = nn.Parameter(conv.standardized().to(conv.weight.dtype))
    plain.bias = conv.bias
    return SameConv2d(plain) if conv.same else plain


def _fold_fronts(graph: CallGraph) -> None:
    for call in graph.calls:
        layer = graph.layer(call)
        split = layer.split_front() if isinstance(layer, NormAct) else None
        if split is None:
            continue
        source = graph.producer(call)
        conv = graph.layer(source)
        if type(conv) not in _CONVS or graph.consumers(source) != [call]:
            continue
        constants, rest = split
        graph.replace(source, _fuse(conv, constants))  # type: ignore[arg-type]
        _replace_or_bypass(graph, call, rest)


def _fuse(conv: nn.Conv2d, constants: Constants) -> nn.Conv2d:
    """Return `conv` with a batch normalization by constants behind it."""
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(conv.weight, conv.bias, *constants)
    return fused


def _fold_backs(graph: CallGraph) -> None:
    for call in graph.calls:
        layer = graph.layer(call)
        split = _split_back(layer) if isinstance(layer, NormAct) else None
        if split is None:
            continue
        rest, (gain, shift) = split
        readers = _list_readers(graph, call)
        if readers is None:
            continue
        if shift is not None and any(_pads_zeros(reader) for _, reader in readers):
            if gain is None or not (gain.is_meta or bool(gain.all())):
                continue  # no gain to move, or a gain of 0, where shift / gain does not exist
            remaining, shift = Affine(len(gain), None, gain=False), shift / gain
            remaining.bias = nn.Parameter(shift)
            rest, shift = nn.Sequential(rest, remaining), None
        for reader_call, reader in readers:
            graph.replace(reader_call, _absorb(reader, gain, shift))
        _replace_or_bypass(graph, call, rest)


def _split_back(layer: NormAct) -> tuple[nn.Module, GainAndShift] | None:
    """Return a layer without its last gain and shift, and these, or None."""
    front = layer.split_front()
    if front is None or layer.act not in (None, IDENTITY):
        return layer.split_back()
    (mean, var, eps, weight, bias), rest = front  # nothing follows, so they are also the last
    gain = torch.rsqrt(var + eps) * (1 if weight is None else weight)
    return rest, (gain, -mean * gain + (0 if bias is None else bias))


def _list_readers(graph: CallGraph, call: fx.Node) -> Readers | None:
    """Return the layers with weights that read the channels of `call`; None if others do, too."""
    readers: Readers = []
    for reader in graph.consumers(call):
        layer = graph.layer(reader)
        # On maps a linear layer reads the last axis, which are no channels.
        averaged = len(graph.shape(reader.all_input_nodes[0])) == 2
        if type(layer) in _CONVS or (type(layer) is nn.Linear and averaged):
            readers.append((reader, layer))  # type: ignore[arg-type]
        elif graph.is_average(reader) and (behind := _list_readers(graph, reader)):
            readers += behind
        else:
            return None
    return readers


def _pads_zeros(layer: nn.Conv2d | nn.Linear) -> bool:
    """Return True if zeros enter beside the inputs, however they are computed."""
    if isinstance(layer, nn.Linear):
        return False
    pads = layer.padding not in (0, (0, 0), "valid") or type(layer) is not nn.Conv2d
    return pads and layer.padding_mode == "zeros"


def _absorb(
    layer: nn.Conv2d | nn.Linear, gain: Tensor | None, shift: Tensor | None
) -> nn.Conv2d | nn.Linear:
    """Return `layer` for inputs without gain and shift (C,), which it applies itself."""
    absorbed = copy.deepcopy(layer)
    weight = layer.weight  # (O, C / groups, ...)
    if shift is not None:
        added = (weight * _by_filter(layer, shift)).flatten(1).sum(1)
        absorbed.bias = nn.Parameter(added if layer.bias is None else layer.bias + added)
    if gain is not None:
        absorbed.weight = nn.Parameter(weight * _by_filter(layer, gain))
    return absorbed


def _by_filter(layer: nn.Conv2d | nn.Linear, values: Tensor) -> Tensor:
    """Repeat values (C,) of the inputs for the filters that read them: (O, C / groups, 1, 1)."""
    weight, groups = layer.weight, getattr(layer, "groups", 1)
    rows = values.to(weight).view(groups, -1).repeat_interleave(len(weight) // groups, dim=0)
    return rows.view(*rows.shape, *(1 for _ in weight.shape[2:]))


def _replace_or_bypass(graph: CallGraph, call: fx.Node, layer: nn.Module) -> None:
    """Let `call` call `layer`; remove the call if that is the identity."""
    if isinstance(layer, Activation) and layer.act in (None, IDENTITY):
        graph.bypass(call)
    else:
        graph.replace(call, layer)
