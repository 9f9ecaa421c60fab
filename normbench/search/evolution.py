"""The next candidate: tournaments among the most recent layers, as in the paper's appendix C.

A random 5 % of the active population makes a tournament; its winner is a random member of the
Pareto front, and is mutated twice. With probability 0.5 a completely random layer takes the place
of the offspring. The active population are the valid ones among the most recent 2,500 genotypes:
rejected ones have no scores. Genotypes whose output does not depend on the input, two thirds of the
random ones, are drawn again.
"""

from collections.abc import Sequence
from random import Random

from normbench.search.candidates import Candidate
from normbench.search.options import SearchOptions
from normbench.search.space import Genotype, Space


def propose(
    number: int, history: Sequence[Candidate], options: SearchOptions
) -> tuple[Genotype, int | None]:
    """Return the genotype of candidate `number`, and the number of its parent if it has one.

    The same history proposes the same.

    Args:
        number: of the candidate.
        history: the candidates up to number - options.in_flight.
        options: of the search.
    """
    random = Random(f"{options.search_seed} {number}")
    space = Space(options.batch_statistics)
    population = [each for each in history[-options.population :] if each.valid]
    explores = options.strategy == "random" or random.random() < options.random_probability
    size = max(1, round(options.tournament_share * len(population)))
    while True:
        if explores or not population:
            genotype, parent = space.random_genotype(random), None
        else:
            winner = random.choice(pareto_front(random.sample(population, size)))
            genotype, parent = winner.to_genotype(), winner.number
            for _ in range(options.mutations):
                genotype = space.mutate(genotype, random)
        if genotype.graph.depends_on_input:
            return genotype, parent


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the valid candidates that no other one dominates."""
    valid = [each for each in candidates if each.valid]
    return [each for each in valid if not any(dominates(other, each) for other in valid)]


def dominates(one: Candidate, other: Candidate) -> bool:
    """Return True if `one` is at least as good as `other` in every objective and better in one."""
    pairs = list(zip(objectives(one), objectives(other), strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def objectives(candidate: Candidate) -> tuple[float, ...]:
    """Return accuracies and, if there is one, the negative cost: more is better."""
    cost = () if candidate.cost is None else (-candidate.cost,)
    return (*candidate.scores, *cost)
