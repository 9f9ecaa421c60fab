"""The learning rates of the small sweeps follow from their pilot by the rule in its file."""

from collections import defaultdict
from functools import cache
from statistics import fmean

import pytest

from normbench import results
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.config.files import ROOT, SWEEPS, names
from normbench.report import build
from normbench.report.metrics import METRICS
from normbench.report.pivot import tables
from normbench.results import Row

PILOTS = ROOT / "reports" / "studies" / "pilots"
#: These measure speed, and need not learn.
UNTUNED = {"nf_4_small", "nf_5_small"}
SMALL = [name for name in names(SWEEPS) if name.endswith("_small") and name not in UNTUNED]
#: What has a learning rate of its own, as a key.
Training = tuple[object, ...]
#: A longer training has the rate of the shorter one.
AS = {"evonorm_resnet_180": "evonorm_resnet_90", "nf_resnet_15": "nf_resnet"}


def validated(row: Row) -> float | None:
    """Return the main metric on the held-out images, of an error its negative; None: diverged."""
    if row.metric == "test_top1":
        return row.val_top1
    value = row.metrics.get(row.metric.replace("test_", "val_"))
    return None if value is None else value * (1 if METRICS[row.metric].better == "higher" else -1)


def rate_of_an_image(cell: Cell) -> float:
    return float(cell.recipe.options["lr"] / cell.recipe.options["lr_batch"])


def training(cell: Cell, norm: str | None = None) -> Training:
    """Return what is tuned: a recipe, in dense tasks by task, clipping, normalizer and start."""
    recipe, task = AS.get(cell.recipe.name, cell.recipe.name), cell.task.name
    if task == "classify":
        return (recipe,)
    clip = cell.recipe.options["norm_clip"]
    return (task, recipe, clip, norm or cell.norm.name, cell.start is not None)


@cache
def scores() -> dict[Training, dict[float, float]]:
    """Return the mean score of each learning rate that the pilots try for a training."""
    rows = {row.id: row for row in results.read(PILOTS)}
    tried: dict[Training, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for pilot in ("small_pilot", "dense_pilot", "finetune_pilot"):
        for cell in compose(["-m", f"sweeps={pilot}"])[0]:
            if cell.start and "recipe.images" in cell.start.differs:
                continue  # a better classifier, which the small sweeps do not begin with
            score = validated(rows[cell.id])
            if score is not None:
                tried[training(cell)][rate_of_an_image(cell)].append(score)
    return {
        key: {rate: fmean(of_seeds) for rate, of_seeds in rates.items()}
        for key, rates in tried.items()
    }


def tuned(key: Training) -> float:
    """Return the lowest rate for one image of a step that is about as good as the best."""
    rates = scores()[key]
    tolerance = 0.02 if key[0] == "depth" else 0.5
    chosen = min(rate for rate in rates if rates[rate] >= max(rates.values()) - tolerance)
    assert min(rates) < chosen, f"{key}: lower rates may be as good"
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_sweep_has_the_rates_of_the_pilot(name: str) -> None:
    cells, _ = compose(["-m", f"sweeps={name}", "seed=0"])
    for cell in cells:
        recipe, options = cell.recipe.name, cell.recipe.options
        if recipe == "sn_rmsprop":  # not tuned, as the sweep says
            continue
        rate = tuned(training(cell))
        if recipe == "nf_resnet_15":
            # The paper's rates, times the factor by which BN's rate is above that of its table 1.
            factor = rate / (0.1 / 256)
            of_paper = {128: 0.4 / 8, 8: 0.025, 4: 0.01}
            rates = {images: options["rates"][images] for images in of_paper}
            assert rates == pytest.approx({key: of_paper[key] * factor for key in of_paper})
        else:
            half = 0.5 if cell.norm.name in ("fixup", "skipinit") else 1.0
            assert rate_of_an_image(cell) == pytest.approx(half * rate)


@pytest.mark.slow
def test_no_recipe_of_classification_is_best_at_the_lowest_rate_of_its_pilot() -> None:
    for key in scores():
        if len(key) == 1:
            tuned(key)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["segment", "detect", "depth"])
def test_the_recipe_of_a_task_is_a_compromise_of_two_normalizers(task: str) -> None:
    """The rate at which the worse off of BN and GN loses least against its own best rate."""
    ((cell,), _) = compose([f"task={task}"])
    rates_of = [scores()[training(cell, norm)] for norm in ("bn", "gn")]

    def loss(rate: float) -> float:
        return max(max(rates.values()) - rates[rate] for rates in rates_of if rate in rates)

    chosen = min({*rates_of[0], *rates_of[1]}, key=loss)
    assert all(chosen in rates and min(rates) < chosen for rates in rates_of)
    assert rate_of_an_image(cell) == pytest.approx(chosen)


@pytest.mark.parametrize(
    ("table", "sweep"), [("small_rates", "small_pilot"), ("map_rates", "map_pilot")]
)
def test_all_runs_of_a_pilot_are_in_its_table(table: str, sweep: str) -> None:
    rows = [row for row in results.read(PILOTS) if row.sweep == sweep]
    made = tables(build.specs([table]), rows)
    shown = {row.id for each in made for entry in each.entries for row in entry.runs}
    # How much depends on the level of regularization is said elsewhere.
    assert {row.reg for row in rows if row.id not in shown} <= {"extra"}
