"""The space of layers: random genotypes, mutations, and fingerprints of equal layers."""

from random import Random

import pytest
import torch

from normbench.catalog import normalizer
from normbench.norms import formulas
from normbench.norms.evonorm_expressions import REPEATS
from normbench.norms.formulas import Node
from normbench.search.candidates import Rejected
from normbench.search.cost import BN, count_reads
from normbench.search.fingerprint import fingerprint
from normbench.search.space import BASELINES, INITIAL, INTERMEDIATE, Genotype, Space
from support.formulas import APPENDIX, FRN, genotype_of

B_SERIES = Space(batch_statistics=True)
S_SERIES = Space(batch_statistics=False)


@pytest.mark.parametrize("space", [B_SERIES, S_SERIES], ids=["b", "s"])
def test_random_genotypes_and_mutations_have_ten_nodes_after_their_inputs(space: Space) -> None:
    random = Random(0)
    seen = set()
    for _ in range(300):
        genotype = space.random_genotype(random)
        for each in (genotype, space.mutate(genotype, random)):
            assert len(each.nodes) == INTERMEDIATE
            for place, node in enumerate(each.nodes):
                assert all(0 <= i < len(INITIAL) + place for i in node.inputs)
                assert len(node.inputs) == (2 if node.op in formulas.BINARY else 1)
            seen |= {node.op for node in each.nodes}
            assert Genotype.from_json(each.to_json()) == each
    assert seen == set(space.operations)
    batch = {op for op in seen if op.endswith("_bwh")}
    assert len(batch) == (3 if space is B_SERIES else 0)


def test_a_mutation_draws_one_node_anew() -> None:
    random, mutations = Random(0), 0
    for _ in range(200):
        genotype = B_SERIES.random_genotype(random)
        mutated = B_SERIES.mutate(genotype, random)
        changed = [a != b for a, b in zip(genotype.nodes, mutated.nodes, strict=True)]
        assert sum(changed) <= 1
        mutations += sum(changed)
    assert mutations > 190  # a node may be drawn as it was


def test_only_nodes_that_the_output_reaches_count() -> None:
    nodes = (*(Node("exp", (0,)) for _ in range(8)), Node("neg", (0,)), Node("sigmoid", (12,)))
    assert str(Genotype(nodes).graph) == "sigmoid(-x)"


@pytest.mark.parametrize("formula", [*BASELINES.values(), *APPENDIX.values(), FRN])
def test_a_known_layer_is_the_graph_of_a_genotype(formula: str) -> None:
    genotype = genotype_of(formulas.parse(formula))
    assert len(genotype.nodes) == INTERMEDIATE
    assert str(formulas.parse(str(genotype.graph))) == str(genotype.graph)
    assert fingerprint(str(genotype.graph)) == fingerprint(formula)


def test_a_graph_of_too_many_operations_is_no_genotype() -> None:
    with pytest.raises(ValueError, match="11 operations; a genotype has 10"):
        genotype_of(formulas.parse("exp(" * 11 + "x" + ")" * 11))


# Fingerprints


def test_fingerprints_find_the_duplicates_of_the_appendix() -> None:
    first: dict[str, str] = {}
    found = {}
    for name, formula in APPENDIX.items():
        if (mark := fingerprint(formula)) in first:
            found[name] = first[mark]
        first.setdefault(mark, name)
    assert found == REPEATS


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x*sigmoid(x)/std_g(x)", "sigmoid(x)*(x/std_g(x))"),
        ("x-x+std_wh(x)", "std_wh(-x)"),
        ("max(x,0)", "(x+abs(x))/(exp(0)+exp(0))"),
        ("rms_wh(x-mean_wh(x))", "std_wh(x)"),
        ("x+v0-v0", "x"),
        ("tanh(x)", "-tanh(-x)"),
        ("std_bwh(x+v1)", "std_bwh(x)"),
    ],
)
def test_algebraically_equal_layers_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


def test_different_layers_have_different_fingerprints() -> None:
    layers = ["x", "-x", "x+v0", "x*v1", "x/std_g(x)", "x/std_whc(x)", "x/std_wh(x)", "x/rms_wh(x)"]
    layers += ["x/std_bwh(x)", "max(x,0)", "max(x,v0)", "x*sigmoid(x)", "x*sigmoid(v1*x)"]
    layers += ["max(x,-exp(exp(0)+exp(0)))"]  # x above -7.4
    assert len({*map(fingerprint, layers)}) == len(layers)


@pytest.mark.parametrize("formula", ["x-x+v1", "x*0", "std_wh(mean_wh(x))"])
def test_a_layer_without_its_input_is_constant(formula: str) -> None:
    with pytest.raises(Rejected) as rejection:
        fingerprint(formula)
    assert rejection.value.verdict == "constant"


@pytest.mark.parametrize("formula", ["x/0", "exp(exp(exp(square(x))))", "x/v0", "x*sigmoid(0/v0)"])
def test_a_layer_that_overflows_or_divides_by_zero_is_not_finite(formula: str) -> None:
    with pytest.raises(Rejected) as rejection:
        fingerprint(formula)
    assert rejection.value.verdict == "nonfinite"


def test_random_layers_are_verdicts_and_no_errors() -> None:
    random, verdicts = Random(0), set[str]()
    for _ in range(500):
        graph = B_SERIES.random_genotype(random).graph
        if not graph.depends_on_input:  # such ones are not proposed
            continue
        formula = str(graph)
        try:
            fingerprint(formula)
        except Rejected as rejection:
            verdicts.add(rejection.verdict)
            continue
        verdicts.add("fingerprint")
        layer = normalizer("graph", formula=formula).layer(4)
        x = torch.randn(4, 4, 3, 3, requires_grad=True)
        layer(x).sum().backward()
        assert layer.eval()(x).shape == x.shape
    assert verdicts == {"fingerprint", "constant", "nonfinite"}


def test_passes_over_maps_are_counted() -> None:
    # mean, minus, plus, std, divided by, times v1, plus v0, maximum; -mean is narrow.
    assert count_reads(formulas.parse(BN)) == 7
    assert count_reads(formulas.parse("x+std_wh(x)*std_wh(v1)")) == 2
    assert count_reads(formulas.parse("x")) == 0
