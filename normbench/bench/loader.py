"""Loaders of images."""

from collections.abc import Sequence

from normbench.bench.runs import compare


def bench(words: Sequence[str]) -> None:
    """Images per second that each of loaders= makes ready."""
    compare("loaders", words)
