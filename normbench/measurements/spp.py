"""Signal propagation (Brock, De and Smith 2021, section 3 and appendix F).

At the end of every residual block, over images and positions (n, h, w) of each channel:

    squared_mean     mean over channels of the squared mean of the block's output
    variance         mean over channels of its variance
    branch_variance  mean over channels of the variance of the residual branch, before a factor such
                     as alpha or SkipInit's scalar and before it meets the shortcut

The output of a post-activation block is that of its last activation. A stage ends where the maps of
the next block have another shape. The paper looks at networks at initialization under standard
normal input; trained networks and images work too.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from normbench.errors import Impossible
from normbench.measurements.calls import block_output, branch, is_map, traced
from normbench.measurements.observing import Statistics, observed
from normbench.models.fx_graph import depths
from normbench.norms.base.layer import upcast


@dataclass
class Block:
    """The end of a residual block; `stage` counts from 1."""

    name: str
    stage: int
    squared_mean: float
    variance: float
    branch_variance: float
    ends_stage: bool


def propagation(network: nn.Module, x: Tensor, statistics: Statistics = "batch") -> list[Block]:
    """Every residual block of `network`, in order, for the images `x` (N, C, H, W).

    Raises:
        Impossible: the network has no residual branches, or cannot be traced.
    """
    with observed(network, statistics):
        looking = _Looking(traced(network))
        looking.run(x)
    if not looking.blocks:
        raise Impossible("the network has no residual branch, and signal propagation is of those")
    looking.blocks[-1].ends_stage = True
    return looking.blocks


class _Looking(fx.Interpreter):
    """Runs a network call by call, keeping no map longer than it is needed."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.calls = module
        self.depth = depths(module)
        self.blocks: list[Block] = []
        self.shape: tuple[int, ...] = ()
        self.awaited: dict[fx.Node, tuple[str, float]] = {}

    def run_node(self, n: fx.Node) -> Any:
        place = branch(self.calls, n, self.depth)
        given, _ = self.fetch_args_kwargs_from_env(n)
        if place is not None and _are_maps(*given[:2]):
            name = str(n.target if n.op == "call_module" else n.name)
            self.awaited[block_output(self.calls, n)] = name, _variance(given[place])
        value = super().run_node(n)
        if n in self.awaited:
            self._ended(value, *self.awaited.pop(n))
        return value

    def _ended(self, value: Tensor, name: str, branch_variance: float) -> None:
        stage = self.blocks[-1].stage if self.blocks else 1
        if self.blocks and value.shape != self.shape:
            self.blocks[-1].ends_stage = True
            stage += 1
        self.shape = value.shape
        var, mean = torch.var_mean(upcast(value), dim=(0, 2, 3), correction=0)
        self.blocks.append(
            Block(
                name.removesuffix(".join"), stage, float(mean.square().mean()), float(var.mean()),
                branch_variance, ends_stage=False,
            )
        )  # fmt: skip


def _are_maps(one: Any, other: Any) -> bool:
    """Whether two maps meet, and not a map and a bias."""
    return is_map(one) and is_map(other) and one.shape == other.shape


def _variance(x: Tensor) -> float:
    return float(torch.var(upcast(x), dim=(0, 2, 3), correction=0).mean())
