"""Intervals over seeds and test images, of runs that have kept their test hits."""

from collections.abc import Sequence
from pathlib import Path

from normbench.errors import count
from normbench.records.hits import TEST_HITS
from normbench.report.statistics import Effect, add_test_images
from normbench.report.table import Entry, Table
from normbench.results import Row, find_test_hits

OVER_SEEDS = "for other seeds on the same test images"
OVER_IMAGES = "for other seeds and other test images"


def widen_over_images(
    effect: Effect,
    parts: Sequence[tuple[float, Entry]],
    root: Path | None,
    confidence: float,
    among: int = 2,
) -> Effect | None:
    """Return `effect`, a weighted sum of entries, with its interval over seeds and test images.

    None if it has no interval, is not about accuracies of runs on the same test images, or some
    runs below `root` have not kept their hits.
    """
    rows = [row for _, entry in parts for row in entry.runs_with_number.values()]
    sets = set(map(_test_set, rows))
    comparable = len(sets) == 1 and all(
        entry.metric.by_image and entry.differences is None for _, entry in parts
    )
    if root is None or effect.low is None or not comparable:
        return None
    samples = []
    for weight, entry in parts:
        hits = [find_test_hits(root, row) for row in entry.runs_with_number.values()]
        samples.append((weight, [each for each in hits if each is not None]))
    images = rows[0].test_images
    if images is None or images < 2 or sum(len(hits) for _, hits in samples) < len(rows):
        return None
    return add_test_images(effect, samples, images, confidence, among)


def same_test_images(first: Row, second: Row) -> bool:
    """Return True if two runs were tested on the same images."""
    return _test_set(first) == _test_set(second)


def _test_set(row: Row) -> tuple[str, str, int | None]:
    """Return what tells test sets apart: data set, folder of one without a name, images."""
    return row.data, str(row.config.get("data", {}).get("root", "")), row.test_images


def explain_missing_hits(table: Table) -> str:
    """Return how many runs of a table have not kept their hits, as a sentence, or ""."""
    rows = [row for row in table.runs if row.status == "ok"]
    if table.root is None or not rows:
        return ""
    lacking = sum(find_test_hits(table.root, row) is None for row in rows)
    if not lacking:
        return ""
    return (
        f"Without an interval over test images, because {lacking} of {count(len(rows), 'run')} "
        f"have no {TEST_HITS}."
    )
