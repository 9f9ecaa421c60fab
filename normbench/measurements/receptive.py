"""Receptive fields: how many pixels of the image, along a side, a position of a map depends on.

Computed along the calls of the network, the largest of all ways from the image: a window of k
positions over a map of field r, whose positions are j pixels apart, sees r + (k - 1) * j. A field
may be larger than the image, as 427 pixels at the end of ResNet-50. Means over all positions, and
gates that follow from them, as in squeeze-excite, are left out: with them every field would be the
image.
"""

import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from normbench.measurements.calls import is_map, traced
from normbench.measurements.observing import observed
from normbench.models.fx_graph import layer

_POOLS = (nn.MaxPool2d, nn.AvgPool2d)
_POOL_FUNCTIONS = (F.max_pool2d, F.avg_pool2d, torch.max_pool2d)


Pair = tuple[int, int]  # along height and width


class Field(NamedTuple):
    """Pixels that a position sees, and those between it and its neighbour, along both sides."""

    size: Pair
    jump: Pair


def receptive_fields(network: nn.Module, image: tuple[int, int, int]) -> dict[str, int]:
    """Of the input of every module that is called, by its name, for images (C, H, W).

    Raises:
        Impossible: the network cannot be traced.
    """
    known = next(network.parameters())
    with observed(network, "running"):
        walking = _Walking(traced(network))
        walking.run(known.new_zeros(1, *image))
    return walking.inputs


class _Walking(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.calls = module
        self.fields: dict[fx.Node, Field] = {}
        self.inputs: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        given = [self.fields[each] for each in n.all_input_nodes if each in self.fields]
        if n.op == "call_module" and given:
            self.inputs[str(n.target)] = max(max(field.size) for field in given)
        before = self.fetch_args_kwargs_from_env(n)[0]
        value = super().run_node(n)
        if n.op == "placeholder":
            self.fields[n] = Field((1, 1), (1, 1))
        elif given and is_map(value) and not _is_pooled(before, value):
            self.fields[n] = self._behind(n, _largest(given))
        return value

    def _behind(self, n: fx.Node, seen: Field) -> Field:
        module = layer(self.calls, n)
        size, stride, dilation = (1, 1), (1, 1), (1, 1)
        if isinstance(module, nn.Conv2d):
            size, stride = _both(module.kernel_size), _both(module.stride)
            dilation = _both(module.dilation)
        elif isinstance(module, _POOLS):
            size, stride = _both(module.kernel_size), _both(module.stride)
        elif n.target in _POOL_FUNCTIONS:
            told = dict(zip(("kernel_size", "stride"), n.args[1:3], strict=False)) | n.kwargs
            size = _both(told["kernel_size"])
            stride = _both(told.get("stride") or size)
        elif n.target is operator.getitem:  # every second pixel, as x[:, :, ::2, ::2]
            index: Any = n.args[1]
            steps = index[2:] if isinstance(index, tuple) else ()
            if len(steps) == 2 and all(isinstance(each, slice) for each in steps):
                stride = (steps[0].step or 1, steps[1].step or 1)
        (r, s), (j, k) = seen
        return Field(
            (r + (size[0] - 1) * dilation[0] * j, s + (size[1] - 1) * dilation[1] * k),
            (j * stride[0], k * stride[1]),
        )


def _largest(fields: list[Field]) -> Field:
    """Along each side by itself."""
    sizes, jumps = (
        (max(pair[0] for pair in pairs), max(pair[1] for pair in pairs))
        for pairs in ([field.size for field in fields], [field.jump for field in fields])
    )
    return Field(sizes, jumps)


def _both(value: Any) -> Pair:
    return value if isinstance(value, tuple) else (value, value)


def _is_pooled(given: tuple[Any, ...], value: Tensor) -> bool:
    """Whether a map became a number per channel."""
    maps = [each for each in given if is_map(each)]
    whole = math.prod(value.shape[2:]) == 1
    return whole and any(math.prod(each.shape[2:]) > 4 for each in maps)
