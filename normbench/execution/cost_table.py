"""The text that `normbench.cost` prints."""

from collections.abc import Iterator
from dataclasses import replace
from textwrap import fill

from normbench.execution.cost_model import (
    RESNET50,
    SCALED,
    SHORTEST,
    WIDTH,
    Computation,
    Estimate,
    round_number,
)

COUNTED = (
    "A training image counts as three forward passes. Evaluations are included: one pass for each "
    "validation image after every epoch and for each test image at the end. Startup, checkpoints "
    "and waiting for images are not. Hours are the sum over runs, one after the other."
)
FROM_RESNET50 = (
    "Scaled by multiply-adds from ResNet-50 with batch normalization at 224x224 pixels, {}. Small "
    "batches are slower, and so are several normalizers."
)
TABLE = "5.24 steps of 64 images a second on one V100 of 16 GB (NF-ResNets, table 4)"
GROUPED = (
    f"Convolutions in groups of w channels count {WIDTH}/w times, as EfficientNet-B0 takes 2.61 "
    "steps of 64 images a second on a V100 (NF-ResNets, table 5), half as many as ResNet-50."
)
SMALL = "Networks this small do not reach such rates: train a few of the runs, then estimate again."


def print_estimate(estimated: Estimate, rate: int | None, runs: str, *, force: bool) -> None:
    """Print a table of what is trained, and how it was estimated.

    Args:
        estimated: the costs.
        rate: training images a second of ResNet-50, if the user gave one.
        runs: folder of the finished runs.
        force: they are trained again.
    """
    for basis in _bases(estimated, rate, runs):
        print(fill(basis, 100, break_on_hyphens=False, break_long_words=False))
    print("\n".join(["", *_table(estimated)]))
    print(f"\n{estimated.spent}")
    left = estimated.left
    finished = estimated.computations - left.computations
    if finished and not force:
        rest = f": {left.spent}" if left.trained else ""
        print(f"{finished} finished below runs={runs}, {left.computations} left{rest}")
    print("\n".join(["", *(fill(note, 100) for note in _notes(estimated, rate))]))


def _bases(estimated: Estimate, rate: int | None, runs: str) -> Iterator[str]:
    """Yield whose hours these are, and how to get those of another device."""
    sources = [each.rate.source for each in estimated.trained]
    scaled = sources.count(SCALED)
    if measured := len(sources) - scaled:
        of = "" if not scaled else f" of {_count_of(measured, 'computation')}"
        yield f"Hours{of} as measured in finished runs below runs={runs}."
    if not scaled:
        return
    of = "" if not measured else f" of {_count_of(scaled, 'computation')}"
    own = (
        f"A few of these runs, trained below runs={runs}, replace this estimate by their own speed."
    )
    if rate is None:
        yield (
            f"Hours{of} on one V100, which need not be your device: no finished run below "
            f"runs={runs} tells the speed of such networks. rate=N, the images per second at "
            f"which your device trains ResNet-50, gives its hours. {own}"
        )
    else:
        yield f"Hours{of} on a device that trains ResNet-50 at rate={rate} images per second. {own}"


def _table(estimated: Estimate) -> Iterator[str]:
    """Yield a line for each pair of normalizer and architecture, and their sum."""
    refused = f", {estimated.impossible} of them cannot work" if estimated.impossible else ""
    computations = _count_of(estimated.computations, "computation")
    cells = f"{_count_of(estimated.cells, 'cell')}, {_seeds_of(estimated)}"
    yield f"{cells}{refused}; {computations}\n"
    groups: dict[tuple[str, str], list[Computation]] = {}
    for each in estimated.trained:
        groups.setdefault((each.title, each.rate.source), []).append(each)
    width = max(len(what) for what, _ in groups)
    head = ("runs", "images", "multiply-adds", "hours", "images/s")
    yield _line("", head, width)
    for (what, source), group in groups.items():
        speeds = sorted(each.rate.images for each in group)
        span = " to ".join(dict.fromkeys(f"{speed:,.0f}" for speed in (speeds[0], speeds[-1])))
        sums = _sums(replace(estimated, trained=tuple(group)))
        yield _line(what, (*sums, f"{span} {source}"), width)
    yield _line("all", (*_sums(estimated), ""), width)


def _count_of(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def _seeds_of(estimated: Estimate) -> str:
    fewest, most = estimated.seeds
    return _count_of(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def _sums(part: Estimate) -> tuple[str, ...]:
    hours = sum(part.hours.values())
    hours_text = f"<{SHORTEST}" if hours < SHORTEST else round_number(hours)
    if len(part.hours) > 1:  # those of a GPU and of a CPU have no sum
        hours_text = ""
    return str(part.computations), f"{part.images:,}", f"{part.work:.2g}", hours_text


def _line(what: str, values: tuple[str, ...], width: int) -> str:
    runs, images, work, hours, speed = values
    return f"{what:<{width}} {runs:>5} {images:>15} {work:>13} {hours:>8}  {speed}".rstrip()


def _notes(estimated: Estimate, rate: float | None) -> Iterator[str]:
    """Yield how the estimate was made and what it leaves out."""
    yield COUNTED
    if scaled := [each for each in estimated.trained if each.rate.source == SCALED]:
        yield FROM_RESNET50.format(TABLE if rate is None else f"{rate} images a second")
        if any(each.dense > each.macs for each in scaled):
            yield GROUPED
        if min(each.dense for each in scaled) < RESNET50 / 10:
            yield SMALL
