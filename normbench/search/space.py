"""The search space: genotypes of ten nodes, drawn at random and mutated.

A genotype is a computation graph of the four initial nodes x, 0, v0 and v1 and of intermediate
nodes, each with a primitive and its inputs among the nodes before it. The last node is the output;
nodes that it does not reach do not count. Numbers from the main paper, unverified here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from normbench.norms import formulas
from normbench.norms.formulas import Graph, Node

INITIAL = tuple(map(Node, formulas.LEAVES))
INTERMEDIATE = 10  # nodes of a genotype
#: Layers with which a search is compared, as formulas.
BASELINES = {
    "bn": "max(v1*((x-mean_bwh(x))/std_bwh(x))+v0,0)",
    "gn": "max(v1*((x-mean_g(x))/std_g(x))+v0,0)",
    "evonorm_b0": "x/max(std_bwh(x),v1*x+std_wh(x))",
    "evonorm_s0": "x*sigmoid(v1*x)/std_g(x)",
}


@dataclass(frozen=True)
class Genotype:
    """Intermediate nodes; input i of a node is initial node i, or intermediate node i - 4."""

    nodes: tuple[Node, ...]

    @property
    def graph(self) -> Graph:
        """The graph that the last node reaches."""
        nodes = [*INITIAL, *self.nodes]
        return formulas.reachable(nodes, len(nodes) - 1)

    def to_json(self) -> list[list[Any]]:
        """Return the nodes as lists: operation, then inputs."""
        return [[node.op, *node.inputs] for node in self.nodes]

    @classmethod
    def from_json(cls, lists: Sequence[Sequence[Any]]) -> "Genotype":
        """Return the genotype of `to_json`."""
        return cls(tuple(Node(op, tuple(inputs)) for op, *inputs in lists))


@dataclass(frozen=True)
class Space:
    """The operations of a search.

    Args:
        batch_statistics: with those over the images of a worker, as EvoNorm's B series; without,
            all layers are batch-independent, as its S series.
    """

    batch_statistics: bool

    @property
    def operations(self) -> tuple[str, ...]:
        aggregations = (
            each
            for each in formulas.AGGREGATIONS
            if self.batch_statistics or not each.endswith("_bwh")
        )
        return (*formulas.UNARY, *formulas.BINARY, *aggregations)

    def random_genotype(self, random: Random) -> Genotype:
        """Draw a genotype, node by node."""
        indices = range(len(INITIAL), len(INITIAL) + INTERMEDIATE)
        return Genotype(tuple(self._random_node(index, random) for index in indices))

    def mutate(self, genotype: Genotype, random: Random) -> Genotype:
        """Draw operation and inputs of a random node anew."""
        place = random.randrange(len(genotype.nodes))
        nodes = list(genotype.nodes)
        nodes[place] = self._random_node(len(INITIAL) + place, random)
        return replace(genotype, nodes=tuple(nodes))

    def _random_node(self, index: int, random: Random) -> Node:
        op = random.choice(self.operations)
        inputs = 2 if op in formulas.BINARY else 1
        return Node(op, tuple(random.randrange(index) for _ in range(inputs)))
