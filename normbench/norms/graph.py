"""Layers from formulas, as those that EvoNorm's search finds (Liu et al. 2020).

    y = weight * f(x) + bias

with a formula f of `normbench.norms.formulas`. x is an input, v0 and v1 are learned vectors. A
moment of a set S of values is

    mean_S(a)   mean over S
    rms_S(a)    root of the mean square over S, plus eps
    std_S(a)    root of the biased variance over S, plus eps

S is a channel over the images of a worker (bwh), or of one image a channel (wh), all channels (whc)
or a group of channels (g). sqrt(a) is a / sqrt(|a| + eps) and log(a) is sign(a) * log(|a| + eps):
their gradients stay finite at 0, which the paper does not mention.

Evaluation: running means, mean squares and variances replace those of the sets bwh; statistics of
an image remain.

Placement: one layer replaces normalization and activation. Without activation, as before a residual
addition, it is `weight * x + bias` and does not normalize, as for EvoNorm.

Points of this space are, among others (norm.formula=...):

    BN-ReLU       max(v1*((x-mean_bwh(x))/std_bwh(x))+v0,0)
    GN-ReLU       max(v1*((x-mean_g(x))/std_g(x))+v0,0)
    FRN           max(v1*(x/rms_wh(x)),v0)            bias is beta, v0 is tau - beta
    EvoNorm-B0    x/max(std_bwh(x),v1*x+std_wh(x))
    EvoNorm-S0    x*sigmoid(v1*x)/std_g(x)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from normbench.norms import formulas
from normbench.norms.base import reference_ops
from normbench.norms.base.layer import Affine, GainAndShift, Grouped, NormAct, Role
from normbench.norms.base.moments import expand_groups, expand_sets, split_sets
from normbench.norms.base.options import largest_divisor, share
from normbench.norms.base.running import RunningStatistics
from normbench.norms.base.tensors import per_channel, upcast
from normbench.norms.workers import PerWorker

_AXES = {"wh": (2, 3), "whc": (1, 2, 3), "g": (2, 3, 4)}


@dataclass(frozen=True)
class GraphNorm(Grouped):
    """A layer computed by a formula, whatever activation it replaces.

    Args:
        formula: without spaces, in the language of docs/guide/search.md.
        groups: number of groups G of the sets g; a layer uses the largest divisor of its channels
            up to it.
        momentum: weight of a step's statistics in the running ones.
        eps: added to variances, mean squares, and absolute values in sqrt and log.
    """

    formula: str = "x*sigmoid(v1*x)/std_g(x)"
    momentum: float = share(0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            graph = self.graph
        except ValueError as error:
            raise ValueError(f"formula={self.formula}: {error}") from None
        if not graph.depends_on_input:
            raise ValueError(f"formula={self.formula}: it does not depend on x")

    @property
    def graph(self) -> formulas.Graph:
        """The computation graph of the formula."""
        return formulas.parse(self.formula)

    @property
    def batch_independent(self) -> bool:
        return not self.graph.uses_batch

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        if act is None:  # before a residual addition, as for EvoNorm
            return Affine(channels, None)
        return (GraphLayer if self.batch_independent else BatchGraphLayer)(channels, act, self)


class GraphLayer(NormAct):
    """The layer of a formula whose statistics are those of one image.

    It has no `normalize`: normalization and activation are one.
    """

    batch_independent = True
    roles: ClassVar[dict[str, Role]] = {**NormAct.roles, "v0": "shift", "v1": "gain"}
    shown: ClassVar[tuple[str, ...]] = ("formula", "groups")
    v0: nn.Parameter | None  # None: the formula has no v0
    v1: nn.Parameter | None

    def __init__(self, channels: int, act: str, options: GraphNorm) -> None:
        super().__init__(channels, act)
        self.formula, self.eps = options.formula, options.eps
        self.graph = options.graph
        self.groups = largest_divisor(channels, options.groups)
        operations = {node.op for node in self.graph.nodes}
        for name, start in (("v0", torch.zeros(channels)), ("v1", torch.ones(channels))):
            self.register_parameter(name, nn.Parameter(start) if name in operations else None)

    def norm_act(self, x: Tensor) -> Tensor:
        x = upcast(x)
        leaves = {"x": x, "0": x.new_zeros(1, 1, 1, 1)}
        leaves |= {name: per_channel(p)[None] for name, p in self._vectors().items()}
        return self.affine(compute(self.graph, leaves, self.moment, self.eps).expand_as(x))

    def moment(self, index: int, node: formulas.Node, a: Tensor) -> Tensor:
        """Return the moment that is node `index`, of the values `a`, to broadcast over them."""
        del index
        if node.scope != "g":
            return _finish(node, _aggregate(node, a, _AXES[node.scope]), self.eps)
        groups = a.expand(-1, self.channels, -1, -1).unflatten(1, (self.groups, -1))
        moments = _aggregate(node, groups, _AXES["g"]).flatten(1)  # (N, G)
        return _finish(node, per_channel(expand_groups(moments, self.channels)), self.eps)

    def _vectors(self) -> dict[str, Tensor]:
        return {name: p for name, p in (("v0", self.v0), ("v1", self.v1)) if p is not None}

    def split_back(self) -> tuple[nn.Module, GainAndShift]:
        return self.split_affine()

    def reference(self, x: Tensor) -> Tensor:
        x = x.double()
        leaves = {"x": x, "0": torch.zeros_like(x)}
        for name, vector in self._vectors().items():
            leaves[name] = per_channel(vector.double()).expand_as(x)
        return self.affine(compute(self.graph, leaves, self.reference_moment, self.eps))

    def reference_moment(self, index: int, node: formulas.Node, a: Tensor) -> Tensor:
        """Compute `moment` in double precision, of values (N, C, H, W)."""
        del index
        statistic = _REFERENCES[node.moment]
        if node.scope == "g":
            value = reference_ops.by_group(
                a, self.groups, lambda part: statistic(part, reference_ops.IMAGE)
            )
        else:
            axes = reference_ops.POSITIONS if node.scope == "wh" else reference_ops.IMAGE
            value = statistic(a, axes)
        return _finish(node, value, self.eps).expand_as(a)


class BatchGraphLayer(PerWorker, RunningStatistics, GraphLayer):
    """The layer of a formula with statistics over the images of a worker.

    Node i, if it is a moment over bwh, has a running mean, mean square or variance (C,):
    `running_mean_i`, `running_square_i` or `running_var_i`.
    """

    batch_independent = False
    of_input = False

    def __init__(self, channels: int, act: str, options: GraphNorm) -> None:
        super().__init__(channels, act, options)
        self.momentum = options.momentum
        for index, node in enumerate(self.graph.nodes):
            if node.scope == "bwh":
                fill = 0.0 if node.moment == "mean" else 1.0
                self.register_buffer(_running(index, node), torch.full((channels,), fill))

    def moment(self, index: int, node: formulas.Node, a: Tensor) -> Tensor:
        if node.scope != "bwh":
            return super().moment(index, node, a)
        if not self.training:
            running = self.get_buffer(_running(index, node)).to(a.dtype)
            return _finish(node, per_channel(running[None]), self.eps)
        images = len(a) if len(a) > 1 else self.workers  # of values that no image changes
        sets = split_sets(a.expand(images, self.channels, -1, -1), self.workers)
        value = _aggregate(node, sets, (0, 3, 4))[0, ..., 0, 0]  # (W, C)
        self.track(**{_running(index, node).removeprefix("running_"): value})
        if images != len(a):
            value = value[:1]
        return _finish(node, per_channel(expand_sets(value, len(a))), self.eps)

    def reference_moment(self, index: int, node: formulas.Node, a: Tensor) -> Tensor:
        if node.scope != "bwh":
            return super().reference_moment(index, node, a)
        if self.training:
            statistic = _REFERENCES[node.moment]
            value = reference_ops.by_set(
                a, self.workers, lambda part: statistic(part, reference_ops.BATCH)
            )
        else:
            value = self.get_buffer(_running(index, node)).double()
            value = per_channel(value[None])
        return _finish(node, value, self.eps).expand_as(a)


def _running(index: int, node: formulas.Node) -> str:
    """Return the name of the running statistic of a node."""
    statistic = {"mean": "mean", "rms": "square", "std": "var"}[node.moment]
    return f"running_{statistic}_{index}"


def compute(
    graph: formulas.Graph,
    leaves: Mapping[str, Tensor],
    moment: Callable[[int, formulas.Node, Tensor], Tensor],
    eps: float,
) -> Tensor:
    """Return the output of a graph.

    Args:
        graph: to compute.
        leaves: values of x, 0, v0 and v1, which broadcast.
        moment: computes an aggregation: index of the node, the node, its input -> its output.
        eps: of sqrt and log.
    """
    values: list[Tensor] = []
    for index, node in enumerate(graph.nodes):
        inputs = [values[each] for each in node.inputs]
        if node.scope:
            values.append(moment(index, node, inputs[0]))
        elif node.inputs:
            values.append(_apply_elementwise(node.op, inputs, eps))
        else:
            values.append(leaves[node.op])
    return values[-1]


def _apply_elementwise(op: str, inputs: Sequence[Tensor], eps: float) -> Tensor:
    """Apply an elementwise operation."""
    if op == "sqrt":
        return inputs[0] / torch.sqrt(inputs[0].abs() + eps)
    if op == "log":
        return inputs[0].sign() * torch.log(inputs[0].abs() + eps)
    function: Callable[..., Tensor] = getattr(torch, "maximum" if op == "max" else op)
    return function(*inputs)


def _aggregate(node: formulas.Node, a: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the mean, mean square or variance over `axes`, whose sizes become 1."""
    if node.moment == "mean":
        return a.mean(axes, keepdim=True)
    if node.moment == "rms":
        return a.square().mean(axes, keepdim=True)
    return a.var(axes, correction=0, keepdim=True)


def _finish(node: formulas.Node, value: Tensor, eps: float) -> Tensor:
    """Return a mean as it is, and the root of another moment plus eps."""
    return value if node.moment == "mean" else torch.sqrt(value + eps)


_REFERENCES: dict[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    "mean": reference_ops.mean,
    "rms": lambda a, axes: reference_ops.mean(a**2, axes),
    "std": reference_ops.variance,
}
