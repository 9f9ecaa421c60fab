"""Estimate what a command line would cost, without training anything.

    python -m normbench.cost sweeps=evonorm_9_small
    python -m normbench.cost norm=bn,gn batch=4,8 model=resnet50 data=imagenet rate=2500

The words besides rate= are those of `python -m normbench`, with or without -m. No file of an
official data set is needed. The speed comes from finished rows below runs=DIR of the same network
on the same data, preferably with the same normalizer and batch. Without such rows it is scaled by
multiply-adds from the speed of ResNet-50: rate=N or, without that, table 4 of NF-ResNets.

Grouped convolutions are slower than their multiply-adds suggest, so these count several times: in
table 5 of that paper, EfficientNet-B0 trains at half the speed of ResNet-50.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import fill

from normbench.config import cli
from normbench.config.compose import compose
from normbench.execution.cost_model import (
    RESNET50,
    SCALED,
    SHORTEST,
    WIDTH,
    Computation,
    Estimate,
    estimate,
    round_number,
)
from normbench.results import read

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


@dataclass(frozen=True)
class CostOptions:
    """Options of the command line."""

    rate: int | None = cli.option(
        None, "images per second at which your device trains ResNet-50 with batch normalization at "
        "224x224 pixels",
    )  # fmt: skip


@cli.command("normbench.cost", lambda: f"{__doc__}\n{cli.describe(CostOptions)}", needs_words=True)
def main(arguments: Sequence[str]) -> int:
    """Print the estimate."""
    options, others = cli.parse_options(arguments, CostOptions, pass_on=True)
    words = [word for word in others if word not in ("-m", "--multirun")]
    cells, settings = compose(["-m", *words])  # a list of values is a grid without -m, too
    if settings is None:
        return 0
    rate = options.rate
    estimated = estimate(cells, read(settings.runs), rate)
    print("\n".join(_table(estimated)))
    print(f"\n{estimated.spent}")
    left = estimated.left
    finished = estimated.computations - left.computations
    if finished and not settings.force:
        rest = f": {left.spent}" if left.trained else ""
        print(f"{finished} finished below runs={settings.runs}, {left.computations} left{rest}")
    print("\n".join(["", *(fill(note, 100) for note in _notes(estimated, rate))]))
    return 0


def _table(estimated: Estimate) -> Iterator[str]:
    """Yield a line for each pair of normalizer and architecture, and their sum."""
    refused = f", {estimated.impossible} of them cannot work" if estimated.impossible else ""
    computations = _count_of(estimated.computations, "computation")
    yield f"{_count_of(estimated.cells, 'cell')}{refused}; {computations}\n"
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


if __name__ == "__main__":
    cli.run(main)
