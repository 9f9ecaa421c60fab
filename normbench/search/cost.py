"""The cost of a formula: reads of feature maps, counted, or time relative to BN-ReLU, measured."""

import statistics
import time

import torch
from torch import Tensor, nn

from normbench.norms import formulas
from normbench.norms.graph import GraphNorm
from normbench.search.space import BASELINES

BN = BASELINES["bn"]
_SHAPE = (32, 32, 16, 16)  # N C H W
_ROUNDS = 9


def cost_of(formula: str, kind: str, device: str) -> float | None:
    """Return the cost of a formula by the option `cost` of a search."""
    if kind == "none":
        return None
    if kind == "reads":
        return float(count_reads(formulas.parse(formula)))
    return relative_time(formula, device)


def count_reads(graph: formulas.Graph) -> int:
    """Return how many operations of a graph read a whole feature map (N, C, H, W)."""
    wide: list[bool] = []  # by node: its values are a whole map
    reads = 0
    for node in graph.nodes:
        reads_map = any(wide[each] for each in node.inputs)
        reads += reads_map
        wide.append(node.op == "x" or (reads_map and not node.scope))
    return reads


def relative_time(formula: str, device: str) -> float:
    """Return the time of forward and backward pass in training, relative to BN-ReLU.

    Both are measured in turn; the ratio is that of the medians.
    """
    layers = [GraphNorm(formula=each).layer(_SHAPE[1]).to(device) for each in (formula, BN)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_SHAPE, generator=generator).to(device).requires_grad_()
    rounds = [[_time(layer, x) for layer in layers] for _ in range(_ROUNDS)]
    of_formula, of_bn = ([times[place] for times in rounds] for place in range(2))
    return statistics.median(of_formula) / statistics.median(of_bn)


def _time(layer: nn.Module, x: Tensor) -> float:
    started = time.perf_counter()
    layer(x).sum().backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started
