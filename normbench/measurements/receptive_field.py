"""Receptive fields: the pixels of the image, along a side, that a position of a map depends on.

Computed along the calls of the network (Araujo, Norris and Sim 2019): a window of k positions over
a map with field r, whose positions are j pixels apart, has the field r + (k - 1) * j; of several
paths from the image the largest counts. A field may be larger than the image, as 427 pixels at the
end of ResNet-50. Means over all positions and the gates computed from them, as in squeeze-excite,
are left out: with them every field would be the whole image.
"""

import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from normbench.measurements.forward_pass import is_map, trace
from normbench.models.fx_graph import layer
from normbench.norms.measuring import measuring

_POOLS = (nn.MaxPool2d, nn.AvgPool2d)
_POOL_FUNCTIONS = (F.max_pool2d, F.avg_pool2d, torch.max_pool2d)

HeightWidth = tuple[int, int]


class ReceptiveField(NamedTuple):
    """Size of a position's receptive field, and the distance of neighbouring positions, in pixels.

    Both along height and width.
    """

    size: HeightWidth
    jump: HeightWidth


def receptive_fields(network: nn.Module, image: tuple[int, int, int]) -> dict[str, int]:
    """Return the receptive field of the input of every called module for images (C, H, W).

    The keys are names of modules in the order of the calls, the values pixels along the longer
    side.

    Raises:
        Impossible: the network cannot be traced.
    """
    like = next(network.parameters())
    with measuring(network, "running"):
        interpreter = _FieldInterpreter(trace(network))
        # A forward pass, whatever its values: pooling is noticed by the shapes of its maps.
        interpreter.run(like.new_zeros(1, *image))
    return interpreter.inputs


class _FieldInterpreter(fx.Interpreter):
    """Run a network call by call and follow the receptive field."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.calls = module
        self.fields: dict[fx.Node, ReceptiveField] = {}
        self.inputs: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        fields = [self.fields[each] for each in n.all_input_nodes if each in self.fields]
        if n.op == "call_module" and fields:
            self.inputs[str(n.target)] = max(max(field.size) for field in fields)
        arguments = self.fetch_args_kwargs_from_env(n)[0]
        value = super().run_node(n)
        if n.op == "placeholder":
            self.fields[n] = ReceptiveField((1, 1), (1, 1))
        elif fields and is_map(value) and not _is_pooled(arguments, value):
            self.fields[n] = self._after(n, _largest(fields))
        return value

    def _after(self, n: fx.Node, field: ReceptiveField) -> ReceptiveField:
        """Return the field after the call `n` of a map with `field`."""
        module = layer(self.calls, n)
        size, stride, dilation = (1, 1), (1, 1), (1, 1)
        if isinstance(module, nn.Conv2d):
            size, stride = _pair(module.kernel_size), _pair(module.stride)
            dilation = _pair(module.dilation)
        elif isinstance(module, _POOLS):
            size, stride = _pair(module.kernel_size), _pair(module.stride)
        elif n.target in _POOL_FUNCTIONS:
            options = dict(zip(("kernel_size", "stride"), n.args[1:3], strict=False)) | n.kwargs
            size = _pair(options["kernel_size"])
            stride = _pair(options.get("stride") or size)
        elif n.target is operator.getitem:  # every second pixel, as x[:, :, ::2, ::2]
            index: Any = n.args[1]
            steps = index[2:] if isinstance(index, tuple) else ()
            if len(steps) == 2 and all(isinstance(each, slice) for each in steps):
                stride = (steps[0].step or 1, steps[1].step or 1)
        (r, s), (j, k) = field
        return ReceptiveField(
            (r + (size[0] - 1) * dilation[0] * j, s + (size[1] - 1) * dilation[1] * k),
            (j * stride[0], k * stride[1]),
        )


def _largest(fields: list[ReceptiveField]) -> ReceptiveField:
    """Return the maximum along each side."""
    sizes, jumps = (
        (max(pair[0] for pair in pairs), max(pair[1] for pair in pairs))
        for pairs in zip(*fields, strict=True)
    )
    return ReceptiveField(sizes, jumps)


def _pair(value: Any) -> HeightWidth:
    return value if isinstance(value, tuple) else (value, value)


def _is_pooled(arguments: tuple[Any, ...], value: Tensor) -> bool:
    """Return True if a call reduced a map to one number per channel."""
    maps = [each for each in arguments if is_map(each)]
    single = math.prod(value.shape[2:]) == 1
    return single and any(math.prod(each.shape[2:]) > 4 for each in maps)
