"""Seeds as one network: what each of them finds is what it finds alone, within rounding."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from normbench.catalog import normalizers
from normbench.config.cells import Cell
from normbench.records.history import CurveRecord, read_history
from normbench.results import CHECKPOINT, Row, read
from normbench.training import checkpoint
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.experiment import Experiment
from normbench.training.seed_stacking import explain_unstackable_cell, train_stacked
from normbench.training.stacked_networks import explain_unstackable_network
from normbench.training.trainer import train
from normbench.training.training import Training
from support.cells import BROKEN, Curve, Interrupted, arguments_for, cell
from support.commands import Command
from support.slow import slow_except

WORDS = (
    "batch=16", "global_batch=64", "recipe.images=192", "precision=64-true",
    "trainer.log_every=1", "logger=none", "trainer=cpu",
)  # fmt: skip
CLOSE: dict[str, Any] = {"rel": 1e-9, "abs": 1e-12}  # of fp64 after three steps
SEEDS = (0, 1)


def seeds(*words: str) -> list[Cell]:
    base = cell(*WORDS, *words)
    return [replace(base, seed=seed) for seed in SEEDS]


def alone(own: Cell, state: State | None = None) -> tuple[dict[str, Any], list[CurveRecord]]:
    curve = Curve()
    return train(Training(Experiment(own), curve, state=state)), curve.records


def side_by_side(
    cells: Sequence[Cell],
    checkpoints: Sequence[Checkpoints | None] = (None, None),
    states: Sequence[State | None] = (None, None),
) -> list[tuple[dict[str, Any], list[CurveRecord]]]:
    curves = [Curve() for _ in cells]
    columns = zip(map(Experiment, cells), curves, checkpoints, states, strict=True)
    fields = train_stacked([Training(*column) for column in columns])
    return list(zip(fields, [curve.records for curve in curves], strict=True))


def assert_same(
    found: tuple[dict[str, Any], list[CurveRecord]],
    expected: tuple[dict[str, Any], list[CurveRecord]],
) -> None:
    (fields, curve), (fields_alone, curve_alone) = found, expected
    assert [record.keys() for record in curve] == [record.keys() for record in curve_alone]
    for record, one in zip(curve, curve_alone, strict=True):
        # What evaluations find is of fp32, and the first record is a probe's.
        known = record.keys() & {"step", "epoch", "lr", "train_loss", "train_top1"}
        assert {name: record[name] for name in known} == pytest.approx(
            {name: one[name] for name in known}, **CLOSE
        )
    assert fields["status"] == fields_alone["status"]
    assert fields.get("test_loss") == pytest.approx(fields_alone.get("test_loss"), rel=1e-5)
    assert fields.get("test_top1") == pytest.approx(fields_alone.get("test_top1"))
    clocks = {"seconds", "images_per_second", "peak_memory", "stacked_seeds"}
    assert fields.keys() - clocks == fields_alone.keys() - clocks


SLOW = pytest.mark.slow
ONE_BY_ONE = {"batch_renorm": "running statistics that training reads"}


@pytest.mark.parametrize(
    "norm", slow_except(sorted({*normalizers()} - ONE_BY_ONE.keys()), ["bn", "sn"])
)
def test_every_normalizer_is_trained_as_alone(norm: str) -> None:
    cells = seeds(*arguments_for(norm))
    _, second = side_by_side(cells)
    assert_same(second, alone(cells[1]))
    assert second[0]["stacked_seeds"] == 2


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["recipe.ema=0.9"], id="average of weights"),
        pytest.param(
            ["recipe.ema=0.9", "recipe.ema_unit=epoch"],
            id="average of epochs",
            marks=SLOW,
        ),
        pytest.param(["recipe.recalibration=2"], id="batch average", marks=SLOW),
        pytest.param(["recipe.example_weight=loss"], id="images with a weight", marks=SLOW),
        pytest.param(["recipe.example_weight=top1", "norm=gn"], id="group statistics", marks=SLOW),
        pytest.param(["recipe.gain_target=1", "recipe.decayed=[weight,gain]"], id="gains to 1"),
        pytest.param(["recipe=evonorm_mobilenet", "recipe.epochs=null"], id="RMSProp", marks=SLOW),
        pytest.param(["reg=mixup"], id="mixup", marks=SLOW),
        pytest.param(["data.val=0"], id="nothing held out", marks=SLOW),
        pytest.param(["batch=64", "trainer.chunk=1"], id="one worker"),
        pytest.param(["model=timm", "model.name=resnet10t"], id="a library's network", marks=SLOW),
        pytest.param(["probe=power", "probe.images=16"], id="looked at", marks=SLOW),
    ],
)
def test_whatever_the_training_is(words: list[str]) -> None:
    cells = seeds("norm=bn", *words)
    for own, found in zip(cells, side_by_side(cells), strict=True):
        assert_same(found, alone(own))


def checkpoints(folder: Path) -> Checkpoints:
    folder.mkdir()
    return Checkpoints(folder, 0.0, final=True)


def halves(tmp_path: Path, cells: Sequence[Cell]) -> list[State]:
    """The states of trainings after 2 of 3 steps, which were taken together."""
    folders = [tmp_path / str(own.seed) for own in cells]

    trainings = [
        Training(Experiment(own), Curve(last_step=3), checkpoints(folder))
        for own, folder in zip(cells, folders, strict=True)
    ]
    with pytest.raises(Interrupted):
        train_stacked(trainings)
    states = [checkpoint.load_state(folder / CHECKPOINT) for folder in folders]
    assert [state["done"] for state in states] == [2, 2]
    return states


@pytest.mark.slow
def test_interrupted_ones_go_on_together_and_alone(tmp_path: Path) -> None:
    cells = seeds("norm=bn", "trainer.chunk=1")
    states = halves(tmp_path, cells)
    again = side_by_side(cells, states=[dict(state) for state in states])
    for own, state, (fields, curve) in zip(cells, states, again, strict=True):
        for other, rest in (alone(own), alone(own, state)):
            assert fields["test_loss"] == pytest.approx(other["test_loss"], rel=1e-5)
            assert curve[-1]["train_loss"] == pytest.approx(rest[-1]["train_loss"], **CLOSE)
        assert fields["resumed"] == 1


def test_a_checkpoint_has_one_network_and_not_all(tmp_path: Path) -> None:
    (cells, sizes) = seeds("norm=bn", "checkpoint=keep"), []
    side_by_side(cells, checkpoints=[checkpoints(tmp_path / str(own.seed)) for own in cells])
    for own in cells:
        sizes.append((tmp_path / str(own.seed) / CHECKPOINT).stat().st_size)
    train(Training(Experiment(cells[0]), checkpoints=checkpoints(tmp_path / "alone")))
    assert max(sizes) < 1.1 * (tmp_path / "alone" / CHECKPOINT).stat().st_size


def test_one_that_diverges_is_told_and_leaves_the_others_alone(tmp_path: Path) -> None:
    cells = seeds("norm=bn", "trainer.chunk=1")
    states = halves(tmp_path, cells)
    for weights in states[0]["model"].values():
        weights.fill_(float("nan"))
    (lost, _), (kept, curve) = side_by_side(cells, states=states)
    assert (lost["status"], lost["reason"]) == ("diverged", "the loss of step 3 of 3 was nan")
    expected, rest = alone(cells[1])
    assert kept["status"] == expected["status"]
    assert kept["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)
    assert curve[-1]["train_loss"] == pytest.approx(rest[-1]["train_loss"], **CLOSE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ""),
        (["trainer.devices=2"], "trainer.devices=2"),
        (["trainer.per_forward=1"], "4 forward passes a step"),
        (["precision=16-mixed"], "precision=16-mixed"),
        (["recipe.ratio_clip=1"], "recipe.ratio_clip=1, a norm of the gradients of one run"),
        (["recipe.norm_clip=1"], "recipe.norm_clip=1, a norm of the gradients of one run"),
        (["recipe.value_clip=1"], ""),
        (["recipe=adamw"], "recipe.optimizer=adamw, as several of timm's use norms of layers"),
        (["trainer.channels_last=true"], "trainer.channels_last=true"),
        (["trainer.impl=compile"], "trainer.impl=compile"),
    ],
)
def test_what_is_trained_one_by_one_says_why(words: list[str], says: str) -> None:
    assert explain_unstackable_cell(cell(*WORDS, *words)) == says


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["norm=gn"], ""),
        (["norm=gn", "reg=extra", "model=resnet20_v2"], "paths that are dropped"),
        (["norm=bn", "model=timm", "model.name=resnet10t"], ""),
        *((["norm=" + norm], reason) for norm, reason in ONE_BY_ONE.items()),
    ],
)
def test_networks_are_tried_out_before(words: list[str], says: str) -> None:
    info = Experiment(cell(*WORDS, *words)).info
    reason = explain_unstackable_network(info.network, 64, info.train_shape)
    assert reason.startswith(says) if says else not reason


@pytest.mark.slow
def test_a_sweep_of_seeds_together(command: Command, rows: Callable[[], list[Row]]) -> None:
    grid = ("-m", "norm=bn,gn", "seed=0,1", "batch=16", "recipe.images=512", "trainer=cpu")
    end = command(*grid, "stack_seeds=true", "recipe.lr=0.01", "jobs=2")
    assert end.code == 0, end.err
    assert "2 seeds stacked in 2 networks" in end.out
    assert [(row.norm, row.seed, row.stacked_seeds) for row in rows()] == [
        ("bn", 0, 2), ("bn", 1, 2), ("gn", 0, 2), ("gn", 1, 2),
    ]  # fmt: skip
    folders = [Path("runs/default", row.id) for row in rows()]
    assert all(len(list(read_history(folder))) for folder in folders)
    assert all(len(list(folder.glob("wandb/offline-run-*"))) == 1 for folder in folders)
    logs = [(folder / "log.txt").read_text() for folder in folders]
    assert sum("\nstacked with" in text for text in logs) == 2
    for row, text in zip(rows(), logs, strict=True):
        assert text.count(f"  {row.status}  {row.outcome}  ") == 1
    assert "4 finished before, 0 to do" in command(*grid, "recipe.lr=0.01").out
    hardware = "trainer.channels_last=true"
    end = command(*grid, "stack_seeds=true", "recipe.lr=0.01", "runs=one", hardware)
    assert f"seeds not stacked: {hardware}" in end.out
    assert {row.stacked_seeds for row in read("one")} == {1}


@pytest.mark.slow
def test_seeds_that_do_not_fit_together_are_trained_one_by_one(
    command: Command, rows: Callable[[], list[Row]]
) -> None:
    end = command(
        "-m", *BROKEN, "norm=greedy_stacked", "seed=0,1", "batch=16", "jobs=1",
        "recipe.images=512", "trainer=cpu", "logger=none", "stack_seeds=true",
    )  # fmt: skip
    assert end.code == 0, end.err
    assert "stacked with other seeds; trying alone" in end.out
    assert [row.stacked_seeds for row in rows()] == [1, 1]


@pytest.mark.slow
def test_seeds_that_were_not_as_far_go_on_with_those_that_were(
    command: Command, rows: Callable[[], list[Row]]
) -> None:
    words = (
        "norm=gn", "batch=16", "recipe.images=1024", "recipe.lr=0.01", "trainer=cpu",
        "logger=none", "trainer.chunk=1", "checkpoint.every=0", "checkpoint=keep",
    )  # fmt: skip
    assert command("-m", *words, "seed=0", "runs=whole").code == 0
    state = checkpoint.load_state(next(Path("whole").glob("*/*/checkpoint.pt")))
    own = Path("runs/default") / cell(*words, "seed=0").id
    own.mkdir(parents=True)
    torch.save(state, own / "checkpoint.pt")  # as if it had been killed before its row
    end = command("-m", *words, "seed=0,1,2", "stack_seeds=true", "jobs=1")
    assert end.code == 0, end.err
    assert [(row.seed, row.stacked_seeds, row.resumed) for row in rows()] == [
        (0, 1, 1), (1, 2, 0), (2, 2, 0),
    ]  # fmt: skip
    assert rows()[0].test_loss == read("whole")[0].test_loss


def test_cores_that_have_nothing_to_do_get_seeds(
    command: Command, rows: Callable[[], list[Row]]
) -> None:
    words = ("norm=gn", "batch=16", "recipe.images=512", "recipe.lr=0.01", "logger=none")
    end = command("-m", *words, "seed=0,1,2", "stack_seeds=true", "jobs=2", "trainer=cpu")
    assert end.code == 0, end.err
    assert sorted(row.stacked_seeds for row in rows()) == [1, 2, 2]


def test_clusters_and_torchrun_train_a_run_each(command: Command) -> None:
    end = command("-m", "seed=0,1", "stack_seeds=true", "hydra/launcher=submitit_local")
    assert end.code == 2
    assert "stack_seeds=true trains several seeds in one process of this machine" in end.err
