"""What a command line would cost, said before anybody starts it.

    python -m normbench.cost sweeps=evonorm_9_small
    python -m normbench.cost norm=bn,gn batch=4,8 model=resnet50 data=imagenet rate=2500

    rate=N            images a second with which a device of yours trains ResNet-50 with batch
                      normalization at 224x224 pixels

All other words are those of `python -m normbench`, with -m or without. Nothing is trained, and
of official data sets no file is needed. How fast images pass is told by finished rows below
runs=DIR of the same network on the same data, first by those of the same normalizer and batch;
where there is none, it is scaled by multiply-adds from rate=N, or else from NF-ResNets' table 4.
Those of grouped convolutions, which are slower, count several times: by that paper's table 5
EfficientNet-B0 trains at half the rate of ResNet-50, and at half of rate=N.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import fill

from normbench.config import cli
from normbench.config.compose import compose
from normbench.errors import BadInput, counted
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
    "An image of training counts as three forward passes. Evaluations are in it, a pass for each "
    "validation image after every epoch and for each test image at the end; starts, checkpoints "
    "and waiting for images are not. Hours are those of one run after another."
)
FROM_RESNET50 = (
    "Scaled by multiply-adds from ResNet-50 with batch normalization at 224x224 pixels, {}. Few "
    "images in a forward pass are slower, and so are several normalizers."
)
TABLE = "5.24 steps of 64 images a second on one V100 of 16 GB (NF-ResNets, table 4)"
GROUPED = (
    f"Convolutions in groups of w channels count {WIDTH}/w times, as EfficientNet-B0 takes 2.61 "
    "steps of 64 images a second on a V100 (NF-ResNets, table 5), half as many as ResNet-50."
)
SMALL = "Networks as small as these do not reach such rates: train some of the runs and ask again."


def main(arguments: Sequence[str]) -> int:
    """Print the estimate; 0, or 2 for words that cannot be used."""
    if {"-h", "--help"} & {*arguments} or not arguments:
        print(__doc__)
        return 0
    try:
        own = [word for word in arguments if word.startswith("rate=")]
        rate = counted("rate", own[-1].partition("=")[2], 900) if own else None
        words = [word for word in arguments if word not in (*own, "-m", "--multirun")]
        cells, settings = compose(["-m", *words])
        if settings is None:
            return 0
        found = estimate(cells, read(settings.runs), rate)
    except BadInput as error:
        print(f"normbench.cost: {error}", file=sys.stderr)
        return 2
    print("\n".join(_table(found)))
    print(f"\n{found.spent}")
    left = found.computations - found.finished
    if found.finished and not settings.force:
        rest = f": {found.left.spent}" if left else ""
        print(f"{found.finished} finished below runs={settings.runs}, {left} left{rest}")
    print("\n".join(["", *(fill(note, 100) for note in _notes(found, rate))]))
    return 0


def _table(found: Estimate) -> Iterator[str]:
    """A line for each normalizer in an architecture, and their sum."""
    lacking = f", {found.impossible} of them cannot work" if found.impossible else ""
    cells, trained = _so_many(found.cells, "cell"), _so_many(found.computations, "computation")
    yield f"{cells}{lacking}; {trained}\n"
    groups: dict[tuple[str, str], list[Computation]] = {}
    for each in found.trained:
        groups.setdefault((each.title, each.rate.source), []).append(each)
    width = max(len(what) for what, _ in groups)
    head = ("runs", "images", "multiply-adds", "hours", "images/s")
    yield _line("", head, width)
    for (what, source), group in groups.items():
        speeds = sorted(each.rate.images for each in group)
        span = " to ".join(dict.fromkeys(f"{speed:,.0f}" for speed in (speeds[0], speeds[-1])))
        sums = _sums(replace(found, trained=tuple(group)))
        yield _line(what, (*sums, f"{span} {source}"), width)
    yield _line("all", (*_sums(found), ""), width)


def _so_many(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def _sums(part: Estimate) -> tuple[str, ...]:
    hours = sum(part.hours.values())
    told = f"<{SHORTEST}" if hours < SHORTEST else round_number(hours)
    if len(part.hours) > 1:  # those of a GPU and of a CPU have no sum
        told = ""
    return str(part.computations), f"{part.images:,}", f"{part.work:.2g}", told


def _line(what: str, values: tuple[str, ...], width: int) -> str:
    runs, images, work, hours, speed = values
    return f"{what:<{width}} {runs:>5} {images:>15} {work:>13} {hours:>8}  {speed}".rstrip()


def _notes(found: Estimate, rate: float | None) -> Iterator[str]:
    """How it was reckoned, and what is not in it."""
    yield COUNTED
    if scaled := [each for each in found.trained if each.rate.source == SCALED]:
        yield FROM_RESNET50.format(TABLE if rate is None else f"{rate} images a second")
        if any(each.dense > each.macs for each in scaled):
            yield GROUPED
        if min(each.dense for each in scaled) < RESNET50 / 10:
            yield SMALL


if __name__ == "__main__":
    cli.run(main)
