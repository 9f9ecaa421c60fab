"""Means over seeds and how sure they are."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1); of a single value there is no deviation."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float], confidence: float = 0.95
) -> tuple[float, float, float, int] | None:
    """`first` minus `second` over the seeds of both: mean, ends of its interval, number of pairs.

    Student's t interval of the paired differences; None with fewer than two pairs.
    """
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    count = len(differences)
    if count < 2:
        return None
    from scipy.special import stdtrit  # 0.2 s that a table without pairs need not pay

    half = float(stdtrit(count - 1, (1 + confidence) / 2)) * stdev(differences) / count**0.5
    mean = fmean(differences)
    return mean, mean - half, mean + half, count
