"""Estimate what a command line would cost, without training anything.

    python -m normbench.cost sweeps=evonorm_9_small
    python -m normbench.cost norm=bn,gn batch=4,8 model=resnet50 data=imagenet rate=2500

The words besides rate= are those of `python -m normbench`, with or without -m. No file of an
official data set is needed. The speed comes from finished rows below runs=DIR of the same network
on the same data, preferably with the same normalizer and batch. Without such rows it is scaled by
multiply-adds from the speed of ResNet-50: rate=N or, without that, one V100's (table 4 of
NF-ResNets). The first lines say which of these it is.

Below the costs of a paper's sweep, a table says for each claim about its results how likely its
seeds confirm it if the paper's numbers are true, the smallest difference that they show, and the
seeds that would confirm it in 80 % of cases. Standard deviations over seeds are those of finished
rows below runs=DIR or else the paper's. Of another grid with finished rows it says the smallest
difference of two accuracies that its seeds show.

Grouped convolutions are slower than their multiply-adds suggest, so these count several times: in
table 5 of that paper, EfficientNet-B0 trains at half the speed of ResNet-50.
"""

import gc
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context

from normbench.config import cli
from normbench.config.cells import Cell, Settings
from normbench.config.compose import compose
from normbench.results import Row, read


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
    cells, settings = _compose(["-m", *words])  # a list of values is a grid without -m, too
    if settings is None:
        return 0
    from normbench.execution.cost_model import estimate
    from normbench.execution.cost_table import print_estimate

    rows = read(settings.runs)
    estimated = estimate(cells, rows, options.rate)
    print_estimate(estimated, options.rate, settings.runs, force=settings.force)
    _print_power(cells, settings, rows)
    return 0


def _print_power(cells: Sequence[Cell], settings: Settings, rows: Sequence[Row]) -> None:
    """Print which claims the seeds of a paper's sweep decide, or the differences that a grid shows.

    Of a grid that is no such sweep nothing, unless finished rows tell its spread.
    """
    from normbench.report.claim_power import find_power, pooled_deviation
    from normbench.report.power_text import grid_line, power_lines

    planned = [Row(**cell.description(settings.sweep), status="ok") for cell in cells]
    if powers := find_power(planned, rows):
        print("\n".join(power_lines(powers, settings.runs)))
    elif deviation := pooled_deviation(planned, rows):
        print(f"\n{grid_line(deviation, len({cell.seed for cell in cells}))}")


def _compose(words: list[str]) -> tuple[list[Cell], Settings | None]:
    """Compose a command line in another process while this one imports torch.

    Either takes several seconds, the former for a large grid.
    """
    if "torch" in sys.modules:
        return compose(words)
    gc.disable()  # an estimate leaves little garbage, and to look for it takes a second
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends both processes
    try:
        with ProcessPoolExecutor(
            1, get_context("fork"), import_module, ("normbench.execution.end_with_parent",)
        ) as pool:
            composed = pool.submit(compose, words)
            import_module("normbench.execution.cost_table")
            import_module("normbench.report.power_text")
            return composed.result()
    except (BrokenProcessPool, OSError):  # it was killed, or cannot be started
        return compose(words)
    finally:
        signal.signal(signal.SIGINT, interrupt)


if __name__ == "__main__":
    cli.run(main)
