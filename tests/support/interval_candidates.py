"""Methods between which the report's statistics were chosen, compared by simulation.

    PYTHONPATH=tests python -m support.interval_candidates    # prints both tables; two minutes

docs/statistics.md quotes these numbers. Normal noise; all repetitions at once, as arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtr, stdtrit
from scipy.stats import studentized_range

Array = NDArray[np.float64]
#: From means and variances (repetition, arm) and the number of seeds: the difference from the best
#: of the repetition at which an arm is significantly worse.
Method = Callable[[Array, Array, int], Array]
REPETITIONS = 20_000


# The recommendation


def pooled(means: Array, variances: Array, seeds: int) -> Array:
    """Tukey's honest significant difference: one variance for all arms."""
    arms = means.shape[1]
    error: Array = np.sqrt(variances.mean(1, keepdims=True) / seeds)
    return _range(arms, np.full_like(means, arms * (seeds - 1))) * error


def games_howell(means: Array, variances: Array, seeds: int, step: float = 0.0) -> Array:
    """Welch's error and degrees of freedom, and the quantile of the widest of all pairs.

    It is the maximum of |t| over all pairs with Satterthwaite's degrees of freedom, as correlated
    as with equal variances.
    """
    error, freedom = _welch(means, variances, seeds)
    if step:
        freedom = np.floor(freedom / step) * step
    return _range(means.shape[1], freedom) * error / 2**0.5


def games_howell_rounded(means: Array, variances: Array, seeds: int) -> Array:
    """The same, with degrees of freedom rounded down to a half: the method of the report."""
    return games_howell(means, variances, seeds, 0.5)


def holm_with_best(means: Array, variances: Array, seeds: int) -> Array:
    """Welch's t of each arm with the best, and the first step of Holm's correction."""
    error, freedom = _welch(means, variances, seeds)
    return np.asarray(stdtrit(freedom, 1 - 0.025 / (means.shape[1] - 1)) * error)


def bonferroni_all_pairs(means: Array, variances: Array, seeds: int) -> Array:
    """Welch's t with Bonferroni's correction for all pairs."""
    error, freedom = _welch(means, variances, seeds)
    pairs = means.shape[1] * (means.shape[1] - 1) / 2
    return np.asarray(stdtrit(freedom, 1 - 0.025 / pairs) * error)


def pooled_but_unstable(means: Array, variances: Array, seeds: int) -> Array:
    """One variance for all arms, but one of their own for those that an F test separates (5 %)."""
    repetitions, arms = means.shape
    order = np.argsort(-variances, axis=1)
    ranked = np.take_along_axis(variances, order, axis=1)
    separate = np.zeros(repetitions, int)
    active = np.ones(repetitions, bool)
    for k in range(arms - 2):
        others = arms - k - 1
        ratio = ranked[:, k] / ranked[:, k + 1 :].mean(1)
        active &= fdtrc(seeds - 1, others * (seeds - 1), ratio) * (others + 1) < 0.05
        separate += active
    unstable = np.argsort(order, axis=1) < separate[:, None]
    common = np.where(unstable, 0, variances).sum(1) / (arms - separate)
    squares = np.where(unstable, variances, common[:, None]) / seeds
    freedoms = np.where(unstable, 1, (arms - separate)[:, None]) * (seeds - 1.0)
    best = means.argmax(1)[:, None]
    square, freedom = (np.take_along_axis(each, best, axis=1) for each in (squares, freedoms))
    both = (squares + square) ** 2 / (squares**2 / freedoms + square**2 / freedom)
    shared = ~unstable & ~np.take_along_axis(unstable, best, axis=1)
    return _range(arms, np.where(shared, freedoms, both)) * np.sqrt((squares + square) / 2)


def _welch(means: Array, variances: Array, seeds: int) -> tuple[Array, Array]:
    """Return standard error and degrees of freedom of each arm's difference to the best."""
    best = np.take_along_axis(variances, means.argmax(1)[:, None], axis=1)
    freedom = (best + variances) ** 2 * (seeds - 1) / (best**2 + variances**2)
    return np.sqrt((best + variances) / seeds), freedom


def _range(arms: int, freedom: Array) -> Array:
    """Return quantiles of the studentized range, interpolated between exact ones."""
    inverse, logarithms = _exact_quantiles(arms)
    quantiles: Array = np.exp(np.interp(1 / freedom, inverse, logarithms))
    return quantiles


@cache
def _exact_quantiles(arms: int) -> tuple[Array, Array]:
    freedoms = [1000, 120, 60, 30, 20, 15, 12, 10, 8, 7, 6, 5, 4.5, 4, 3.5, 3, 2.5, 2, 1.5, 1]
    quantiles = [studentized_range.ppf(0.95, arms, freedom) for freedom in freedoms]
    return 1 / np.array(freedoms), np.log(quantiles)


METHODS: Sequence[Method] = (
    pooled, games_howell, games_howell_rounded, holm_with_best, bonferroni_all_pairs,
    pooled_but_unstable,
)  # fmt: skip


def worse_rates(
    deviations: Sequence[float], below: Sequence[float], seeds: int, seed: int = 0
) -> Mapping[str, tuple[float, float]]:
    """Return for each method how often any arm, and how often the last one, is called worse (%)."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(REPETITIONS, len(deviations), seeds))
    values = values * np.array(deviations)[:, None] - np.array(below)[:, None]
    means, variances = values.mean(2), values.var(2, ddof=1)
    lower = means.max(1, keepdims=True) - means
    rates = {}
    for method in METHODS:
        worse = (lower > method(means, variances, seeds)) & (lower > 0)
        rates[method.__name__] = (100 * worse.any(1).mean(), 100 * worse[:, -1].mean())
    return rates


def print_recommendations() -> None:
    """Print family errors where all arms are equal, and power where the last one is worse."""
    effects = {3: 3.6, 5: 2.1, 10: 1.4}
    header = ["arms", "n", "spreads", *(method.__name__ for method in METHODS)]
    print("family error / power\n\n| " + " | ".join(header) + " |\n" + "|:--" * len(header) + "|")
    for arms in (5, 10):  # of 2, all methods but the pooled one are Welch's
        spreads = {"equal": [1.0] * arms, "one 20 times": [20.0] + [1.0] * (arms - 1)}
        spreads["half 3 times"] = [3.0] * (arms // 2) + [1.0] * (arms - arms // 2)
        for seeds, effect in effects.items():
            for name, deviations in spreads.items():
                errors = worse_rates(deviations, [0] * arms, seeds)
                # The varying arms are far below, so that they contribute noise alone.
                far = [0.0 if each == 1 else 1000.0 for each in deviations]
                power = worse_rates(deviations, [*far[:-1], effect], seeds)
                cells = [
                    f"{errors[m.__name__][0]:.1f} / {power[m.__name__][1]:.0f}" for m in METHODS
                ]
                print(f"| {arms} | {seeds} | {name} | {' | '.join(cells)} |", flush=True)


# Looks at a growing number of seeds


def p_values(ratio: float, difference: float, most: int) -> Array:
    """Return Welch's p of a difference (repetition, look) at 2, 3, ... `most` seeds."""
    rng = np.random.default_rng(0)
    counts = np.arange(1, most + 1)
    moments: list[tuple[Any, Any]] = []
    for deviation, mean in ((1.0, difference), (ratio, 0.0)):
        values = rng.normal(mean, deviation, size=(REPETITIONS, most))
        means = values.cumsum(1) / counts
        squares = (values**2).cumsum(1) - counts * means**2
        moments.append((means[:, 1:], squares[:, 1:] / (counts[1:] - 1)))
    (first, a), (second, b) = moments
    seeds = counts[1:]
    freedom = (a + b) ** 2 * (seeds - 1) / (a**2 + b**2)
    return np.asarray(2 * stdtr(freedom, -np.abs(first - second) / np.sqrt((a + b) / seeds)))


def spending_rules(most: int) -> Mapping[str, Array]:
    """Return levels at 2, 3, ... `most` seeds."""
    rules = {"5 % at every look": np.full(most - 1, 0.05)}
    rules["1.25 % at every look"] = np.full(most - 1, 0.0125)
    rules["5 % shared as 1/(n (n-1))"] = np.array([0.05 / n / (n - 1) for n in range(2, most + 1)])
    papers = np.full(most - 1, 0.001)
    papers[[1, 3, 8]] = 0.03, 0.02, 0.015
    rules["3, 2, 1.5 % at 3, 5, 10; else 0.1 %"] = papers
    for others in (0.005, 0.001):
        for planned in (3, 5, 10):
            levels = np.full(most - 1, others)
            levels[planned - 2] = 0.05
            rules[f"5 % at {planned}; else {100 * others:g} %"] = levels
    return rules


def print_looks(most: int = 30) -> None:
    """Print errors of both sides after looks at every n, and power of a single look."""
    equal, unequal = p_values(1, 0, most), p_values(20, 0, most)
    effects = {3: 3.6, 5: 2.1, 10: 1.4}
    powers = {n: p_values(1, effect, n)[:, -1] for n, effect in effects.items()}
    print("\n| rule | to 10 | to 30 | to 10, 20:1 | to 30, 20:1 | power at 3 | at 5 | at 10 |")
    print("|:--" * 8 + "|")
    for name, levels in spending_rules(most).items():
        cells = [
            100 * (p[:, : to - 1] < levels[: to - 1]).any(1).mean()
            for p in (equal, unequal)
            for to in (10, most)
        ]
        power = [100 * (p < levels[n - 2]).mean() for n, p in powers.items()]
        numbers = [*(f"{each:.1f}" for each in cells), *(f"{each:.0f}" for each in power)]
        print(f"| {name} | {' | '.join(numbers)} |")


if __name__ == "__main__":
    print_recommendations()
    print_looks()
