"""The calls of a network, in which residual joins, convolutions and layers stay whole."""

from typing import Any

from torch import Tensor, fx, nn

from normbench.errors import Impossible
from normbench.models.fx_graph import ADDITIONS, Tracer, layer
from normbench.models.layer_types import is_activation
from normbench.norms.base.layer import Activation, NormAct
from normbench.norms.base.residual import Join
from normbench.norms.frn import ThresholdedLinear


class _Tracer(Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = isinstance(m, Join | Activation | ThresholdedLinear)
        return own or super().is_leaf_module(m, module_qualified_name)


def traced(network: nn.Module) -> fx.GraphModule:
    """The calls of `network` in the mode that it is in; parameters are shared.

    Raises:
        Impossible: what the network computes depends on the values in its maps.
    """
    try:
        return fx.GraphModule(network, _Tracer().trace(network))
    except Exception as error:  # code of other people's can fail in any way
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise Impossible(f"the network cannot be traced: {reason}") from error


def branch(module: fx.GraphModule, call: fx.Node, depth: dict[fx.Node, int]) -> int | None:
    """Of a call that joins a branch with its shortcut: which argument the branch is.

    Of an addition it is the one behind more convolutions.
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
    """What a block returns: the join, or in a post-activation block the activation behind it."""
    (reader, *others) = join.users
    behind = layer(module, reader)
    if others or behind is None:
        return join
    activation = isinstance(behind, Activation | ThresholdedLinear) or is_activation(behind)
    # An activation whose only reader normalizes is the beginning of another block.
    begins = len(reader.users) == 1 and isinstance(layer(module, next(iter(reader.users))), NormAct)
    return reader if activation and not begins else join


def is_map(value: Any) -> bool:
    """Whether it is (N, C, H, W)."""
    return isinstance(value, Tensor) and value.dim() == 4
