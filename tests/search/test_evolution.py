"""Proposals: tournaments, Pareto fronts, and what they follow from."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from normbench.norms.formulas import parse
from normbench.search.candidates import Candidate, best
from normbench.search.evolution import dominates, pareto_front, propose
from normbench.search.options import SearchOptions
from normbench.search.space import Space
from support.formulas import genotype_of

OPTIONS = SearchOptions()


def candidate(number: int, *scores: float, **fields: Any) -> Candidate:
    """Return a candidate with a genotype of its own, which no mutation deprives of x easily."""
    random, space = Random(number), Space(batch_statistics=True)
    genotype = genotype_of(parse("max(x*sigmoid(v1*x),x*tanh(x))/std_g(x+v0)"))
    genotype = space.mutate(genotype, random)
    while not genotype.graph.depends_on_input:
        genotype = space.mutate(genotype, random)
    defaults: dict[str, Any] = {
        "formula": str(genotype.graph), "genotype": genotype.to_json(),
        "verdict": "trained" if scores else "low_accuracy", "fingerprint": f"{number}",
    }  # fmt: skip
    return Candidate(number=number, scores=list(scores), **{**defaults, **fields})


def test_the_pareto_front_are_those_that_none_dominates() -> None:
    layers = [candidate(0, 90, 80), candidate(1, 80, 90), candidate(2, 80, 80), candidate(3)]
    assert [each.number for each in pareto_front(layers)] == [0, 1]
    assert dominates(layers[0], layers[2])
    assert not dominates(layers[0], layers[0])


def test_a_lower_cost_is_better() -> None:
    cheap, dear = candidate(0, 90, cost=2.0), candidate(1, 91, cost=3.0)
    slow = candidate(2, 90, cost=3.0)
    assert pareto_front([cheap, dear, slow]) == [cheap, dear]


def test_the_same_history_proposes_the_same() -> None:
    history = [candidate(number, 80 + number) for number in range(20)]
    proposals = [propose(30, history, OPTIONS) for _ in range(3)]
    assert proposals[0] == proposals[1] == proposals[2]
    assert propose(31, history, OPTIONS) != proposals[0]
    assert propose(30, history, replace(OPTIONS, search_seed=1)) != proposals[0]


@pytest.mark.parametrize(
    ("options", "share"),
    [(OPTIONS, 0.5), (replace(OPTIONS, random_probability=0.0), 1.0),
     (replace(OPTIONS, random_probability=1.0), 0.0), (replace(OPTIONS, strategy="random"), 0.0)],
)  # fmt: skip
def test_so_many_proposals_are_offspring(options: SearchOptions, share: float) -> None:
    history = [candidate(number, 80 + number) for number in range(20)]
    parents = [propose(number, history, options)[1] for number in range(400)]
    assert sum(parent is not None for parent in parents) / 400 == pytest.approx(share, abs=0.06)


def test_a_tournament_of_all_is_won_by_members_of_the_front() -> None:
    history = [candidate(0, 90, 80), candidate(1, 80, 90), candidate(2, 80, 80), candidate(3)]
    options = replace(OPTIONS, random_probability=0.0, tournament_share=1.0)
    winners = Counter(propose(number, history, options)[1] for number in range(200))
    assert winners.keys() == {0, 1}
    assert min(winners.values()) > 70


def test_parents_are_among_the_most_recent() -> None:
    history = [candidate(number, 100 - number) for number in range(20)]
    options = replace(OPTIONS, random_probability=0.0, tournament_share=1.0, population=5)
    assert {propose(number, history, options)[1] for number in range(50)} == {15}


def test_offspring_differ_from_their_parent_in_at_most_two_nodes() -> None:
    history = [candidate(0, 90.0)]
    options = replace(OPTIONS, random_probability=0.0)
    changes = set()
    for number in range(100):
        genotype, parent = propose(number, history, options)
        assert parent == 0
        pairs = zip(genotype.nodes, history[0].to_genotype().nodes, strict=True)
        changes.add(sum(one != other for one, other in pairs))
        assert genotype.graph.depends_on_input
    assert changes <= {0, 1, 2}
    assert {1, 2} <= changes


def test_the_best_have_the_highest_means_each_layer_once() -> None:
    layers = [
        candidate(0, 90, 80), candidate(1, 91, 91, fingerprint="a"),
        candidate(2, 91, 91, fingerprint="a", verdict="duplicate"),
        candidate(3, verdict="constant"), candidate(4),
    ]  # fmt: skip
    assert [each.number for each in best(layers, 10)] == [1, 0]
    assert [each.number for each in best(layers, 1)] == [1]
    cheaper = candidate(5, 91, 91, fingerprint="a", verdict="duplicate", cost=2.0)
    assert best([candidate(1, 91, 91, fingerprint="a", cost=3.0), cheaper], 10) == [cheaper]
