"""Options of the search command. Imports no torch, so that --help is quick."""

from dataclasses import dataclass
from math import inf
from typing import Literal

from normbench.config.cli import option


def _number(text: str, most: float = inf) -> float:
    """Return a finite number from 0 to `most`; NaN is none."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most or value == inf:
        raise ValueError(f"use a number from 0 to {most:g}" if most < inf else "use 0 or more")
    return value


def _percent(text: str) -> float:
    return _number(text, 100.0)


def _share(text: str) -> float:
    return _number(text, 1.0)


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError("use one whole number, 0 or larger; a search has one seed")
    return int(text)


@dataclass(frozen=True)
class EvaluationOptions:
    """Reject layers early."""

    min_accuracy: float = option(
        20.0, "reject layers whose validation accuracy after min_accuracy_steps is lower; 0 "
        "disables the check", "PERCENT", parse=_percent,
    )  # fmt: skip
    min_accuracy_steps: int = option(100, "optimizer steps before that check")
    max_gradient: float = option(
        1e8, "reject layers whose gradient norm exceeds this during gradient ascent on it; 0 "
        "disables the check", "NORM", parse=_number,
    )  # fmt: skip
    ascent_steps: int = option(100, "steps of that gradient ascent")


@dataclass(frozen=True)
class SearchOptions(EvaluationOptions):
    """Search for layers. The same command continues a search that was stopped."""

    candidates: int = option(200, "candidates to evaluate; raise it to continue a finished search")
    strategy: Literal["evolution", "random"] = option(
        "evolution", "random: random search, the paper's baseline"
    )
    search_seed: int = option(
        0, "seed of random layers and mutations; that of the trainings is seed=N", "N", parse=_seed
    )
    batch_statistics: bool = option(
        True, "search statistics over a worker's images, too, as EvoNorm's B series; false is its "
        "S series",
    )  # fmt: skip
    population: int = option(2500, "most recent candidates among which parents are chosen")
    tournament_share: float = option(
        0.05, "share of the valid ones among them in a tournament", "SHARE", parse=_share
    )
    random_probability: float = option(
        0.5, "probability of a random layer in the place of an offspring", "SHARE", parse=_share
    )
    mutations: int = option(2, "mutations of an offspring")
    cost: Literal["none", "reads", "time"] = option(
        "none", "a further objective, less is better: reads of a whole feature map, or the "
        "measured time of a layer relative to BN-ReLU, which no search repeats exactly",
    )  # fmt: skip
    in_flight: int = option(
        8, "most candidates in work at a time. Candidate k is proposed from those before "
        "k - in_flight + 1, so that the candidates do not depend on the number of workers",
    )  # fmt: skip
