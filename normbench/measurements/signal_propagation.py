"""Signal propagation (Brock, De and Smith 2021, section 3 and appendix F).

Of the output of every residual block, with moments over images and positions (n, h, w) of each
channel:

    squared_mean     mean over channels of the squared mean of the block's output
    variance         mean over channels of its variance
    branch_variance  mean over channels of the variance of the residual branch, before a factor such
                     as alpha or SkipInit's scalar and before the addition to the shortcut

The output of a post-activation block is that of its last activation. A stage ends where the maps of
the next block have another shape. The paper plots networks at initialization with standard normal
input; trained networks and images of a data set work as well.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, fx, nn

from normbench.errors import Impossible
from normbench.measurements.forward_pass import (
    block_output,
    branch_argument,
    is_map,
    trace,
)
from normbench.models.fx_graph import depths
from normbench.norms.base.tensors import upcast
from normbench.norms.measuring import StatisticsSource, measuring
from normbench.records.probes import Record, group_by, network_label

CURVE = ("spp_squared_mean", "spp_variance", "spp_branch_variance")
HEAD = ("network", "stage", "blocks", "squared mean", "variance", "residual variance, mean")


@dataclass
class BlockSignal:
    """Signal at the end of a residual block; `stage` counts from 1."""

    name: str
    stage: int
    squared_mean: float
    variance: float
    branch_variance: float
    ends_stage: bool


def propagation(
    network: nn.Module, x: Tensor, statistics: StatisticsSource = "batch"
) -> list[BlockSignal]:
    """Return the signal at every residual block of `network`, in order, for images (N, C, H, W).

    Raises:
        Impossible: the network has no residual branches, or cannot be traced.
    """
    with measuring(network, statistics):
        interpreter = _SignalInterpreter(trace(network))
        interpreter.run(x)
    if not interpreter.blocks:
        raise Impossible("the network has no residual branch, so it has no signal propagation plot")
    interpreter.blocks[-1].ends_stage = True
    return interpreter.blocks


def measure(
    network: nn.Module, images: Tensor, statistics: StatisticsSource = "batch"
) -> list[Record]:
    """Return a record for each residual block."""
    blocks = propagation(network, images, statistics)
    return [{"block": number, **asdict(block)} for number, block in enumerate(blocks, 1)]


def curve_means(records: Sequence[Record]) -> dict[str, float]:
    """Return the means over blocks, by the names in `CURVE`."""
    return {name: fmean(block[name.removeprefix("spp_")] for block in records) for name in CURVE}


def table(records: Sequence[Record]) -> list[list[object]]:
    """Return a row for each stage: squared mean and variance of its first and last block."""
    rows: list[list[object]] = []
    for network, blocks in group_by(records, "network", "epoch").items():
        for stage, of_stage in group_by(blocks, "stage").items():
            ends = [of_stage[0], of_stage[-1]]
            variances = " to ".join(f"{block['variance']:.3g}" for block in ends)
            means = " to ".join(f"{block['squared_mean']:.3g}" for block in ends)
            branch = fmean(block["branch_variance"] for block in of_stage)
            rows.append(
                [network_label(network), stage, len(of_stage), means, variances, f"{branch:.3g}"]
            )
    return rows


class _SignalInterpreter(fx.Interpreter):
    """Run a network call by call and measure its blocks; free each map after its last use."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.calls = module
        self.depth = depths(module)
        self.blocks: list[BlockSignal] = []
        self.shape: tuple[int, ...] = ()
        #: Name and branch variance of each block whose output is not computed yet.
        self.pending: dict[fx.Node, tuple[str, float]] = {}

    def run_node(self, n: fx.Node) -> Any:
        branch = branch_argument(self.calls, n, self.depth)
        arguments, _ = self.fetch_args_kwargs_from_env(n)
        if branch is not None and _are_maps_of_one_shape(*arguments[:2]):
            name = str(n.target if n.op == "call_module" else n.name)
            var = torch.var(upcast(arguments[branch]), dim=(0, 2, 3), correction=0)
            self.pending[block_output(self.calls, n)] = name, float(var.mean())
        value = super().run_node(n)
        if n in self.pending:
            self._add_block(value, *self.pending.pop(n))
        return value

    def _add_block(self, output: Tensor, name: str, branch_variance: float) -> None:
        stage = self.blocks[-1].stage if self.blocks else 1
        if self.blocks and output.shape != self.shape:
            self.blocks[-1].ends_stage = True
            stage += 1
        self.shape = output.shape
        var, mean = torch.var_mean(upcast(output), dim=(0, 2, 3), correction=0)
        self.blocks.append(
            BlockSignal(
                # The name of the block, not of its addition.
                name.removesuffix(".join"), stage, float(mean.square().mean()), float(var.mean()),
                branch_variance, ends_stage=False,
            )
        )  # fmt: skip


def _are_maps_of_one_shape(first: Any, second: Any) -> bool:
    # Otherwise the addition is that of a bias to a map.
    return is_map(first) and is_map(second) and first.shape == second.shape
