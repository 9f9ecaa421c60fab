"""Known layers as formulas, and genotypes of them."""

from normbench.norms.formulas import Graph, Node
from normbench.search.space import INITIAL, INTERMEDIATE, Genotype

#: The layers of the paper's appendix D, in order of their numbers.
APPENDIX = {
    "d1.1": "x/max(std_bwh(x),(x+exp(0))*rms_wh(x))",
    "d1.2": "x/max(std_bwh(x),x+rms_whc(x))",
    "d1.3": "-x*sigmoid(x)/std_bwh(x)",
    "d1.4": "x/max(std_bwh(x),x*rms_wh(x))",
    "d1.5": "x/max(std_bwh(x),rms_whc(x)-x)",
    "d1.6": "x/max(std_bwh(x),v1*x+std_wh(x))",
    "d1.7": "x/max(std_bwh(x),rms_wh(x)-x)",
    "d1.8": "x/max(std_bwh(x),x*rms_wh(x))",
    "d1.9": "x/max(std_bwh(x),x+std_wh(x))",
    "d1.10": "x/max(std_bwh(x),x+std_wh(x))",
    "d2.1": "x*tanh(sigmoid(x))/rms_g(x)",
    "d2.2": "x*sigmoid(x)/rms_g(x)",
    "d2.3": "x*sigmoid(x)/rms_g(x)",
    "d2.4": "x*sigmoid(x)/rms_g(x)",
    "d2.5": "x*sigmoid(x)/std_g(x)",
    "d2.6": "x*sigmoid(v1*x)/std_g(x)",
    "d2.7": "x*sigmoid(x)/std_g(x)",
    "d2.8": "x*sigmoid(x)/rms_g(x)",
    "d2.9": "x*sigmoid(x)/std_g(x)",
    "d2.10": "x/rms_g(x)*sigmoid(max(x,x/rms_g(x)))",
}
BN = "max(v1*((x-mean_bwh(x))/std_bwh(x))+v0,0)"
GN = "max(v1*((x-mean_g(x))/std_g(x))+v0,0)"
FRN = "max(v1*(x/rms_wh(x)),v0)"


def genotype_of(graph: Graph) -> Genotype:
    """Return a genotype of a graph: a known layer is a point of the space.

    Raises:
        ValueError: the graph has more nodes than a genotype.
    """
    nodes: list[Node] = []
    index_of: list[int] = []  # in the genotype, by index in the graph
    for node in graph.nodes:
        if node in INITIAL:
            index_of.append(INITIAL.index(node))
            continue
        nodes.append(Node(node.op, tuple(index_of[each] for each in node.inputs)))
        index_of.append(len(INITIAL) + len(nodes) - 1)
    if len(nodes) > INTERMEDIATE:
        raise ValueError(f"{graph} has {len(nodes)} operations; a genotype has {INTERMEDIATE}")
    # In front: nodes that the output does not reach.
    shift = INTERMEDIATE - len(nodes)
    moved = [
        Node(each.op, tuple(i + shift if i >= len(INITIAL) else i for i in each.inputs))
        for each in nodes
    ]
    return Genotype((*(Node("neg", (0,)) for _ in range(shift)), *moved))
