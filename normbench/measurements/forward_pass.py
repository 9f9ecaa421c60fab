"""Forward passes for measurements: trace the calls of a network, and find its branches."""

from typing import Any, TypeGuard

from torch import Tensor, fx, nn

from normbench.errors import Impossible, one_line
from normbench.models.fx_graph import ADDITIONS, Tracer, layer
from normbench.models.layer_types import is_activation
from normbench.norms.base.layer import Activation, NormAct
from normbench.norms.base.residual import Join
from normbench.norms.frn import ThresholdedLinear


class _Tracer(Tracer):
    """Keep residual joins and activations of normbench as single calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        single = isinstance(m, Join | Activation | ThresholdedLinear)
        return single or super().is_leaf_module(m, module_qualified_name)


def trace(network: nn.Module) -> fx.GraphModule:
    """Return the graph of the calls of `network` in its current mode; it shares the parameters.

    Raises:
        Impossible: the control flow of the network depends on the values in its maps.
    """
    try:
        return fx.GraphModule(network, _Tracer().trace(network))
    except Exception as error:  # any code of a foreign network may fail, in any way
        raise Impossible(f"the network cannot be traced: {one_line(error)}") from error


def branch_argument(module: fx.GraphModule, call: fx.Node, depth: dict[fx.Node, int]) -> int | None:
    """Return the index of the argument of `call` that is a residual branch.

    None if `call` adds no branch to a shortcut. Of the two arguments of an addition the branch is
    the one with more convolutions before it.
    """
    if isinstance(layer(module, call), Join):
        return 1
    if call.target not in ADDITIONS or len(call.args) != 2:
        return None
    first, second = (depth[a] if isinstance(a, fx.Node) else None for a in call.args)
    if first is None or second is None or first == second:
        return None
    return int(second > first)


def block_output(module: fx.GraphModule, join: fx.Node) -> fx.Node:
    """Return the last call of a block: the join, or a post-activation block's last activation."""
    (reader, *others) = join.users
    next_layer = layer(module, reader)
    if others or next_layer is None:
        return join
    activates = isinstance(next_layer, Activation | ThresholdedLinear) or is_activation(next_layer)
    # An activation that only a normalization reads is the start of the next block.
    readers = [layer(module, user) for user in reader.users]
    starts_block = len(readers) == 1 and isinstance(readers[0], NormAct)
    return reader if activates and not starts_block else join


def is_map(value: Any) -> TypeGuard[Tensor]:
    """Return True if `value` is a tensor (N, C, H, W)."""
    return isinstance(value, Tensor) and value.dim() == 4
