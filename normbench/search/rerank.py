"""Train the best layers of a search and baselines with other seeds, and compare test accuracies.

The best of many noisy scores is biased upwards. These trainings have other seeds than the search,
and report accuracies on the test images.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from normbench import results
from normbench.config import cli
from normbench.config.cells import Cell
from normbench.execution.conclusion import stop_by_signals, train
from normbench.execution.progress import print_line
from normbench.execution.sweep import Interrupted
from normbench.report.statistics import summary, welch_contrast
from normbench.results import Row
from normbench.search.candidates import best
from normbench.search.request import compose_trainings
from normbench.search.results import read_search

SEEDS = "seed=range(100,105)"


@dataclass(frozen=True)
class RerankOptions:
    """Train the best layers and baselines. WORDS change the trainings of the search, as
    data=fashion_mnist model=resnet20_v2."""

    top: int = cli.option(3, "layers of the search")
    baselines: tuple[str, ...] = cli.option(
        ("bn", "gn", "evonorm_b0", "evonorm_s0"), "normalizers to compare them with"
    )
    runs: Path = cli.option(Path("runs"), "folder of the search")


def rerank(name: str, words: Sequence[str]) -> int:
    """Train, print the comparison, and return the exit code.

    Raises:
        BadInput: there is no such search, or the words cannot be used.
    """
    options, typed = cli.parse_options(words, RerankOptions, owner="rerank", pass_on=True)
    search = read_search(options.runs / name)
    formulas = [candidate.formula for candidate in best(search.candidates, options.top)]
    trainings = _replace_words(search.began.words, [SEEDS])
    trainings = [*_replace_words(trainings, typed), f"runs={options.runs}"]
    quoted = ",".join(f'"{formula}"' for formula in formulas)
    layers, settings = compose_trainings(trainings, ["norm=graph", f"norm.formula={quoted}"])
    of_all = [word for word in trainings if not word.startswith("norm.")]
    baselines, _ = compose_trainings(of_all, [f"norm={','.join(options.baselines)}"])
    cells, settings = [*layers, *baselines], replace(settings, sweep=f"{name}_rerank")
    try:
        with stop_by_signals():
            code = train(cells, settings, list)
    except Interrupted as stop:
        return 128 + stop.number
    print_comparison(cells, results.read(options.runs))
    return code


def _replace_words(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return `words` with `others` in the place of those of the same keys and their options."""
    keys = {word.partition("=")[0] for word in others}
    rest = (
        word
        for word in words
        if not {word.partition("=")[0], word.partition("=")[0].partition(".")[0]} & keys
    )
    return [*rest, *others]


def print_comparison(cells: Sequence[Cell], rows: Sequence[Row]) -> None:
    """Print test accuracies of layers, and their differences to baselines, by training."""
    by_id = {row.id: row for row in rows}
    table: dict[str, dict[str, list[float]]] = {}  # test accuracies by training and layer
    held_out: dict[str, list[float]] = {}  # accuracies by layer, over all trainings
    without: Counter[str] = Counter()  # trainings that failed, by layer
    for cell in cells:
        values = table.setdefault(_training(cell), {}).setdefault(_layer(cell), [])
        of_layer = held_out.setdefault(_layer(cell), [])
        row = by_id.get(cell.id)
        # A network that diverged may still have an accuracy, that of chance.
        if row is None or row.status != "ok" or row.test_top1 is None:
            without[_layer(cell)] += 1
            continue
        values.append(row.test_top1)
        if row.val_top1 is not None:
            of_layer.append(row.val_top1)
    baselines = {_layer(cell) for cell in cells if cell.norm.name != "graph"}
    ranked = sorted(
        (layer for layer, accuracies in held_out.items() if accuracies and not without[layer]),
        key=lambda layer: -fmean(held_out[layer]),
    )
    if ranked:
        print_line("")
        print_line("held-out accuracy in percent, mean of all trainings; layers are ranked by it")
    for place, layer in enumerate(ranked, 1):
        print_line(f"{place:>3}  {layer:<40} {fmean(held_out[layer]):.1f}")
    total = Counter(map(_layer, cells))
    for layer, failed in without.items():
        print_line(f"  -  {layer:<40} {failed} of {total[layer]} trainings without a result")
    print_line("")
    print_line("test accuracy in percent, mean ± standard deviation (number of seeds);")
    print_line("differences to baselines with 95 % intervals for other seeds (Welch), each alone")
    for training, by_layer in table.items():
        print_line("")
        print_line(training)
        for layer in sorted(by_layer, key=[*ranked, *by_layer].index):
            values = by_layer[layer]
            print_line(f"  {layer:<40} {_mean(values)}")
            if layer in baselines:
                continue
            for baseline in sorted(baselines & by_layer.keys()):
                others = by_layer[baseline]
                if len(values) > 1 and len(others) > 1:
                    effect = welch_contrast([(1, values), (-1, others)])
                    print_line(f"      to {baseline:<12} {effect.text(1)}")


def _layer(cell: Cell) -> str:
    """Return the formula or name of a cell's normalizer, and options of it that its title has."""
    options = [
        word
        for word in cell.title.split()
        if word.startswith("norm.") and not word.startswith("norm.formula=")
    ]
    return " ".join([str(cell.norm.options.get("formula", cell.norm.name)), *options])


def _training(cell: Cell) -> str:
    """Return the words of a cell's title without its normalizer and seed."""
    _, *words = cell.title.split()
    return " ".join(word for word in words if not word.startswith(("seed=", "norm.")))


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "no result"
    mean, deviation = summary(values)
    spread = "" if deviation is None else f" ± {deviation:.1f}"
    return f"{mean:.1f}{spread} ({len(values)})"
