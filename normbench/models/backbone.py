"""Classification networks as backbones of dense tasks: their maps before the classifier.

    network = backbone(model("resnet50", norm="gn", num_classes=1), (3, 224, 224), output_stride=16)
    maps = network(images)   # of 5 stages, at 1/2, 1/4, 1/8, 1/16 and 1/16 of the images' sides

The maps of a stage are the last ones of their size on which all later maps depend, as behind its
last block. Beyond `output_stride` strides become dilations, so that the weights stay those of the
classifier: the strided convolution and all that follow are dilated by the strides removed so far
(Chen et al. 2017, DeepLab; Brock et al. 2021, appendix H.1). With `undilated_first` the strided
convolution itself is dilated by the strides removed before it, as in torchvision and timm.
"""

from collections.abc import Sequence

from torch import Tensor, fx, nn

from normbench.errors import Impossible
from normbench.models.fx_graph import CallGraph
from normbench.models.layer_types import pads_same

#: Begins the names of parameters and buffers that a classifier has, too, in a network with a
#: `backbone`.
OF_CLASSIFIER = "backbone.network."


class Backbone(nn.Module):
    """(N, C, H, W) -> the maps at the end of each stage.

    Args:
        network: (N, C, H, W) -> a tuple of maps.
        reductions: sides of the images over those of the maps.
        channels: of the maps.
    """

    def __init__(
        self, network: nn.Module, reductions: Sequence[int], channels: Sequence[int]
    ) -> None:
        super().__init__()
        self.network = network
        self.reductions, self.channels = tuple(reductions), tuple(channels)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps: tuple[Tensor, ...] = self.network(x)
        return maps


def backbone(
    network: nn.Module,
    image: tuple[int, int, int],
    output_stride: int | None = None,
    *,
    undilated_first: bool = False,
) -> Backbone:
    """Return a classification network without its classifier: it computes the maps of its stages.

    Args:
        network: the network, whose convolutions are changed and whose classifier is left out.
        image: (C, H, W) of an image, large enough that every map is larger than 1x1.
        output_stride: the largest side of the images over that of a map; None: as in `network`.
        undilated_first: dilate the convolution that loses its stride less than those behind it.

    Raises:
        Impossible: the network cannot be traced, takes no mean, or shrinks maps beyond
            `output_stride` by something that is no convolution.
    """
    graph = CallGraph(network, image)
    calls = _calls_before_mean(graph)
    reductions = _dilate(graph, calls, output_stride, undilated_first=undilated_first)
    ends = _stage_ends(graph, calls)
    (output,) = (call for call in graph.calls if call.op == "output")
    output.args = (tuple(ends),)
    graph.module.graph.eliminate_dead_code()
    channels = [graph.shape(end)[1] for end in ends]
    return Backbone(graph.rebuild(), [reductions[end] for end in ends], channels)


def _calls_before_mean(graph: CallGraph) -> list[fx.Node]:
    """Return the calls on whose results the mean over all positions depends, in their order."""
    means = [call for call in graph.calls if graph.takes_mean(call)]
    # Squeeze-excite takes means, too; the classifier's is the last.
    if not means:
        raise Impossible("the network takes no mean over all positions before its classifier")
    if not graph.is_map(means[-1].all_input_nodes[0]):
        raise Impossible("the images are too small: the network's last maps have one position")
    needed = {means[-1].all_input_nodes[0]}
    for call in reversed(graph.calls):
        if call in needed:
            needed.update(call.all_input_nodes)
    return [call for call in graph.calls if call in needed]


def _stage_ends(graph: CallGraph, calls: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the last call of each size of maps on which all later maps depend."""
    places = {call: place for place, call in enumerate(calls)}
    furthest = -1  # place of the last reader of an earlier map
    cuts: list[fx.Node] = []
    for place, call in enumerate(calls):
        if not graph.is_map(call) or call.op == "placeholder":
            continue
        if furthest <= place:
            cuts.append(call)
        furthest = max([furthest, *(places[user] for user in call.users if user in places)])
    ends = []
    for place, call in enumerate(cuts):
        following = cuts[place + 1 :]
        smaller = [each for each in following if graph.shape(each)[2:] != graph.shape(call)[2:]]
        if not following or (smaller and smaller[0] is following[0]):
            ends.append(_leave_block(cuts[: place + 1], _shrinking(graph, calls, call)))
    return ends


def _shrinking(graph: CallGraph, calls: Sequence[fx.Node], end: fx.Node) -> str:
    """Return the module of the first call behind `end` whose maps are smaller, or ""."""
    for call in calls[calls.index(end) + 1 :]:
        if graph.is_map(call) and graph.shape(call)[2:] != graph.shape(end)[2:]:
            return str(call.target) if call.op == "call_module" else ""
    return ""


def _leave_block(cuts: Sequence[fx.Node], shrinking: str) -> fx.Node:
    """Return the last of `cuts` that is not inside of the block of the call `shrinking`.

    An inverted residual block with a stride expands the maps before it shrinks them.
    """
    parts = shrinking.split(".")
    numbers = [place for place, part in enumerate(parts[:-1]) if part.isdigit()]
    block = ".".join(parts[: numbers[-1] + 1]) + "." if numbers else None
    for call in reversed(cuts):
        if block is None or not str(call.target).startswith(block):
            return call
    return cuts[-1]


def _dilate(
    graph: CallGraph,
    calls: Sequence[fx.Node],
    output_stride: int | None,
    *,
    undilated_first: bool,
) -> dict[fx.Node, int]:
    """Replace strides beyond `output_stride` by dilations.

    Returns:
        For each call the side of the images over that of its maps.

    Raises:
        Impossible: the strides are not those of convolutions that keep the size without them.
    """
    reductions: dict[fx.Node, int] = {}
    factors: dict[fx.Node, int] = {}  # product of the strides that were removed before a result
    dilations: dict[fx.Node, int] = {}
    for call in calls:
        sources = [each for each in call.all_input_nodes if graph.is_map(each)]
        source = max(sources, key=lambda each: reductions[each], default=None)
        reductions[call] = 1 if source is None else reductions[source]
        factors[call] = factor = max((factors[each] for each in sources), default=1)
        if source is None or not graph.is_map(call):
            continue
        conv = graph.layer(call)
        if isinstance(conv, nn.Conv2d):
            stride = conv.stride[0]
        else:
            stride = round(graph.shape(source)[2] / graph.shape(call)[2])
        if output_stride is None or stride == 1 or reductions[source] * stride <= output_stride:
            reductions[call] *= stride
            if isinstance(conv, nn.Conv2d) and factor > 1:
                dilations[call] = factor
        elif isinstance(conv, nn.Conv2d) and _keeps_size(conv):
            factors[call] = factor * stride
            dilations[call] = factor if undilated_first else factor * stride
        else:
            raise Impossible(
                f"output_stride={output_stride}: {call.target} shrinks maps beyond it, and only "
                "convolutions with an odd kernel and as much padding can be dilated"
            )
    for call, dilation in dilations.items():
        conv = graph.layer(call)
        assert isinstance(conv, nn.Conv2d)
        _set_dilation(graph, call, conv, dilation)
    return reductions


def _keeps_size(conv: nn.Conv2d) -> bool:
    """Return True if a convolution keeps the size of its maps with the stride 1."""
    if pads_same(conv) or isinstance(conv.padding, str) or conv.kernel_size == (1, 1):
        return True
    # Where the swap pads before a convolution, this itself has no padding.
    return conv.kernel_size[0] % 2 == 1 and conv.padding[0] in (0, conv.kernel_size[0] // 2)


def _set_dilation(graph: CallGraph, call: fx.Node, conv: nn.Conv2d, dilation: int) -> None:
    """Give a convolution the stride 1 and a dilation, and padding that keeps the size."""
    conv.stride = (1, 1)
    if max(conv.kernel_size) > 1:
        conv.dilation = (dilation * conv.dilation[0], dilation * conv.dilation[1])
    if pads_same(conv):
        return  # it follows the dilation
    graph.update_padding(call, conv)
    if not isinstance(conv.padding, str) and any(conv.padding):
        conv.padding = tuple(each * dilation for each in conv.padding)
