"""Weight of an image in its own statistics, chosen on held-out images: recipe.example_weight."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from normbench.execution.cost_model import estimate
from normbench.records.probes import Record, read_records
from normbench.results import read_row
from normbench.training.datamodule import DataModule
from normbench.training.example_weight import (
    ALPHAS,
    AlphaCurve,
    AlphaPoint,
    Metric,
    best_alphas,
    statistics_steps,
)
from normbench.training.experiment import Experiment
from normbench.training.metrics import Evaluation
from normbench.training.trainer import train
from normbench.training.training import Training
from support.cells import SHORT, Curve, cell, run_folder
from support.commands import Command

USUAL = {"bn": 0.0, "gn": 1.0}
WORDS = ("model.stem_stride=1", "batch=16", "precision=64-true", *SHORT)


class Probed(Curve):
    """The records of a training's probes."""

    def __init__(self) -> None:
        super().__init__()
        self.probed: list[Record] = []

    def on_probe(self, kind: str, records: Sequence[Record], epoch: int) -> None:
        assert kind == "example_weight"
        self.probed += records


def trained(*words: str) -> tuple[dict[str, Any], list[Record]]:
    listener = Probed()
    return train(Training(Experiment(cell(*WORDS, *words)), listener)), listener.probed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "metric"), [(norm, metric) for norm in USUAL for metric in ("top1", "loss")]
)
def test_the_row_has_the_accuracy_of_the_alpha_that_is_best_on_held_out_images(
    norm: str, metric: Metric
) -> None:
    plain, _ = trained(f"norm={norm}")
    weighed, records = trained(f"norm={norm}", f"recipe.example_weight={metric}")
    assert weighed["train_loss"] == plain["train_loss"]
    assert "example_weighing" not in plain
    gains = weighed["example_weighing"]
    assert gains["usual"] == USUAL[norm]
    assert gains["alpha"] == gains[f"alpha_{metric}"]
    curve = {record["alpha"]: record for record in records if record["split"] == "val"}
    assert tuple(curve) == ALPHAS
    chosen = curve[gains["alpha"]]
    sign = -1 if metric == "loss" else 1
    assert sign * chosen[metric] == max(sign * record[metric] for record in curve.values())
    assert weighed["val_top1"] == pytest.approx(chosen["top1"])
    # Without a weight it is the run without the option.
    usual = curve[gains["usual"]]
    assert usual["top1"] == pytest.approx(plain["val_top1"])
    tested = {record["alpha"]: record for record in records if record["split"] == "test"}
    assert tested[gains["usual"]]["loss"] == pytest.approx(plain["test_loss"])
    assert tested[gains["alpha"]]["loss"] == pytest.approx(weighed["test_loss"])
    assert gains["test_top1"] == pytest.approx(weighed["test_top1"] - plain["test_top1"])
    reduction = 100 * (1 - curve[gains["alpha_loss"]]["loss"] / usual["loss"])
    assert gains["val_loss"] == pytest.approx(reduction)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["norm=gn", "recipe.example_weight=loss"],
        ["norm=bn", "recipe.example_weight=loss", "recipe.recalibration=3"],
        ["norm=bn", "recipe.recalibration=3"],
    ],
)
def test_as_many_images_are_seen_as_the_estimate_of_the_cost_has(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"statistics": 0, "evaluated": 0}
    read, update = DataModule.batches_after_training, Evaluation.update

    def count_read(self: DataModule, steps: int, *, joined: bool = False) -> Iterator[Tensor]:
        for images in read(self, steps, joined=joined):
            counts["statistics"] += len(images)
            yield images

    def count_update(self: Evaluation, logits: Tensor, labels: Tensor) -> None:
        counts["evaluated"] += len(labels)
        update(self, logits, labels)

    monkeypatch.setattr(DataModule, "batches_after_training", count_read)
    monkeypatch.setattr(Evaluation, "update", count_update)
    trained(*words)
    (run,) = estimate([cell(*WORDS, *words)]).trained
    assert counts == {"statistics": run.statistics, "evaluated": run.evaluated}


@pytest.mark.slow
def test_a_weight_changes_what_is_tested() -> None:
    words = ("norm=bn", "batch=64", "model=resnet14", "data=digits", "recipe.images=6400")
    plain, _ = trained(*words)
    weighed, _ = trained(*words, "recipe.example_weight=loss")
    assert weighed["example_weighing"]["alpha"] > 0
    assert weighed["test_loss"] != plain["test_loss"]


POINTS = [
    AlphaPoint("val", 0.0, 80.0, 95.0, 0.5),
    AlphaPoint("val", 0.1, 82.0, 95.0, 0.6),
    AlphaPoint("val", 0.2, 82.0, 95.0, 0.4),
    AlphaPoint("val", 1.0, 10.0, 50.0, math.nan),
]


@pytest.mark.parametrize(
    ("usual", "best"),
    [
        (0.0, {"top1": 0.1, "top5": 0.0, "loss": 0.2}),
        (1.0, {"top1": 0.2, "top5": 0.2, "loss": 0.2}),
    ],
)
def test_of_equally_good_weights_the_nearest_to_the_usual_is_taken(
    usual: float, best: dict[str, float]
) -> None:
    assert best_alphas(POINTS, usual) == best


def test_gains_are_points_of_accuracy_and_percent_of_the_loss() -> None:
    tested = {0.0: AlphaPoint("test", 0.0, 70.0, 90.0, 1.0)}
    curve = AlphaCurve(POINTS, 0.0, best_alphas(POINTS, 0.0), tested)
    curve = curve.with_test(AlphaPoint("test", 0.1, 71.5, 89.0, math.inf))
    assert curve.row_field("top1") == pytest.approx(
        {
            "alpha": 0.1, "usual": 0.0, "alpha_top1": 0.1, "alpha_top5": 0.0, "alpha_loss": 0.2,
            "val_top1": 2.0, "val_top5": 0.0, "val_loss": 20.0, "test_top1": 1.5, "test_top5": -1.0,
        }
    )  # fmt: skip
    assert [record["best"] for record in curve.records()] == [
        "top5", "top1", "loss", "", "top5", "top1",
    ]  # fmt: skip


@pytest.mark.parametrize(("global_batch", "steps"), [(128, 50), (2, 3200), (100, 64), (6401, 1)])
def test_statistics_are_of_whole_global_batches(global_batch: int, steps: int) -> None:
    assert statistics_steps(global_batch) == steps


@pytest.mark.slow
def test_the_curve_lies_in_the_folder_of_the_run(command: Command) -> None:
    words = ("recipe.example_weight=top1", "norm=bn", "batch=16", *SHORT)
    assert command(*words).code == 0
    folder = run_folder(*words)
    row = read_row(folder / "row.json")
    records = read_records(folder / "probes/example_weight.csv")
    (chosen,) = [
        each
        for each in records
        if each["split"] == "test" and each["alpha"] == row.example_weighing["alpha"]
    ]
    assert chosen["top1"] == pytest.approx(row.test_top1)
    assert {record["epoch"] for record in records} == {2}
    assert [*Path("runs/reports").glob("batch_size/*-example_weight.png")]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ["norm=bn", "data.val=0"],
            2,
            "recipe.example_weight=top1: data.val=0 holds out no images to choose the weight on, "
            "and it must not be chosen on the test images; data.val=0.1 works",
        ),
        (
            ["norm=nf", "model=resnet14_v2"],
            2,
            "recipe.example_weight=top1: norm=nf has no layer with running means in which an image "
            "could count; bn, bgn or gn works",
        ),
        (["norm=evonorm_b0"], 2, "norm=evonorm_b0 has no layer with running means"),
        (["recipe.example_weight=top3"], 2, "it must be 'top1', 'top5' or 'loss'"),
    ],
)
def test_what_cannot_work_is_refused_before_training(
    words: list[str], code: int, says: str, command: Command
) -> None:
    refused = command("recipe.example_weight=top1", *SHORT, *words)
    assert refused.code == code
    assert says in refused.err + refused.out
