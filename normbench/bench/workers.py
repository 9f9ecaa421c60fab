"""Plans of workers on devices."""

from collections.abc import Sequence

from normbench.bench.runs import compare


def bench(words: Sequence[str]) -> None:
    """Images per second of the training under each of plans=."""
    compare("plans", words)
