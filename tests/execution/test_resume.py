"""Resume an interrupted run from its last checkpoint to the result of an uninterrupted one."""

import os
import signal
from pathlib import Path

import pytest
import torch

from normbench import results
from normbench.records.history import read_history
from normbench.results import CHECKPOINT
from normbench.training import checkpoint
from normbench.training.checkpoint import Checkpoints
from normbench.training.experiment import Experiment
from normbench.training.trainer import train
from normbench.training.training import Training
from support.cells import (
    BROKEN,
    RESUMABLE,
    SHORT,
    Curve,
    Interrupted,
    cell,
    run_folder,
    train_cell,
)
from support.commands import Command, Rows
from support.processes import is_training, pid_of, run_when
from support.rows import numbers
from support.slow import slow_after, slow_except


@pytest.mark.parametrize(
    "words",
    slow_except(
        [
            ["norm=bn"],
            ["norm=batch_renorm", "recipe.recalibration=3"],
            ["norm=evonorm_s0", "recipe.ema=0.9", "reg=mixup", "recipe.schedule=cosine"],
            ["norm=sn", "recipe.ema=0.99", "trainer.per_forward=8"],
            ["norm=fixup", "precision=bf16-mixed", "model.width=8"],
            [
                "norm=bn",
                "recipe=pn_efficientnet",
                "recipe.epochs=null",
            ],  # RMSProp, average of epochs
            ["norm=gn", "reg=nf_regnet_augs", "reg.policy=rand-m9-n2"],
        ],
        [["norm=evonorm_s0", "recipe.ema=0.9", "reg=mixup", "recipe.schedule=cosine"]],
    ),
    ids=str,
)
def test_a_training_resumes_bit_for_bit(words: list[str], tmp_path: Path) -> None:
    """Stop it in its second epoch, between two records of the curve."""
    base = cell(*words, "recipe.images=3200", "trainer=cpu", "trainer.chunk=1", "logger=none")
    plan = base.trainer.plans(base.workers)[0]
    expected, curve = train_cell(base, plan)

    first = Curve(last_step=18)
    checkpoints = Checkpoints(tmp_path, every=0)
    with pytest.raises(Interrupted):
        train(Training(Experiment(base, plan), first, checkpoints))
    state = checkpoint.load_state(tmp_path / CHECKPOINT)
    assert state["done"] == 17
    torch.manual_seed(1234)  # the state of the global generator must not matter
    resumed, rest = train_cell(base, plan, state=state)
    assert (expected.pop("resumed"), resumed.pop("resumed")) == (0, 1)
    assert resumed == expected
    assert first.records + rest == curve


#: Words of a dense task, for a training of 50 steps.
SCENES = (
    "model.width=4", "data.size=40", "data.scenes=60", "data.test_scenes=10", "global_batch=8",
    "recipe.images=400",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [(), ("task=detect", *SCENES)],
    ids=["classify", "detect"],
)
def test_a_killed_run_resumes_from_its_checkpoint(
    words: tuple[str, ...], command: Command, rows: Rows
) -> None:
    arguments = ("norm=bn", "batch=4", *RESUMABLE, *words)
    assert command(*arguments, "runs=undisturbed").code == 0
    (expected,) = results.read("undisturbed")
    folder = run_folder(*arguments)

    def far() -> bool:
        return is_training(folder) and (folder / CHECKPOINT).exists()

    killer = run_when(far, lambda: os.kill(pid_of(folder), signal.SIGKILL))
    assert command(*arguments).code == 1
    killer.join()
    undisturbed = Path("undisturbed/default") / expected.id
    done = checkpoint.load_state(folder / CHECKPOINT)["done"]
    assert 0 < done < read_history(undisturbed)[-1]["step"]
    assert command(*arguments).code == 0
    (row,) = rows()
    assert numbers(row) == numbers(expected)
    assert row.resumed == 1
    assert list(read_history(folder)) == list(read_history(undisturbed))
    assert not list(folder.glob("*.pt"))


@pytest.mark.slow
def test_without_resume_a_run_begins_anew(command: Command, rows: Rows) -> None:
    arguments = ("norm=bn", "batch=4", *RESUMABLE)
    folder = run_folder(*arguments)
    stopper = run_when(
        lambda: (folder / CHECKPOINT).exists(), lambda: os.kill(os.getpid(), signal.SIGINT)
    )
    assert command(*arguments).code == 130
    stopper.join()
    assert command("resume=false", *arguments).code == 0
    assert rows()[0].resumed == 0


@pytest.mark.slow
def test_a_damaged_checkpoint_is_ignored(command: Command, rows: Rows) -> None:
    arguments = ("norm=bn", "batch=4", *RESUMABLE)
    folder = run_folder(*arguments)
    folder.mkdir(parents=True)
    (folder / CHECKPOINT).write_bytes(b"half of a checkpoint")
    assert command(*arguments).code == 0
    assert rows()[0].resumed == 0
    assert "so the training starts over" in (folder / "log.txt").read_text()


@pytest.mark.parametrize(
    ("every", "written"), slow_after(1, [("0", True), ("3600", False), ("null", False)]), ids=str
)
def test_a_failed_run_leaves_a_checkpoint_if_one_was_due(
    command: Command, every: str, written: bool
) -> None:
    """The normalizer fails in the third step."""
    norm = (*BROKEN, "norm=broken", "trainer.chunk=1")
    assert command(*norm, f"checkpoint.every={every}", *SHORT).code == 1
    folder = run_folder(*norm, *SHORT)
    assert (folder / CHECKPOINT).exists() == written


@pytest.mark.parametrize(
    ("options", "names"),
    slow_after(1, [
        ([], []),
        (["checkpoint.every=0"], []),
        (["checkpoint.keep=true"], ["checkpoint.pt"]),
        (["checkpoint.epochs=[2]"], ["epoch-2.pt"]),
        (
            ["checkpoint.epochs=[1,2]", "checkpoint.keep=true"],
            ["checkpoint.pt", "epoch-1.pt", "epoch-2.pt"],
        ),
    ]),
    ids=str,
)  # fmt: skip
def test_a_finished_run_keeps_the_checkpoints_of_the_command_line(
    command: Command, options: list[str], names: list[str]
) -> None:
    arguments = ("norm=gn", *SHORT)  # two epochs
    assert command(*arguments, *options).code == 0
    assert sorted(path.name for path in run_folder(*arguments).glob("*.pt")) == names


@pytest.mark.slow
def test_a_run_can_begin_with_a_kept_checkpoint(command: Command, rows: Rows) -> None:
    """Here: train switchable normalization with hard ratios from a soft one."""
    # At the usual rate some processors' rounding makes the hard ratios diverge.
    base = ("norm=sn", *SHORT, "recipe.images=3840", "recipe.lr=0.05")
    end = command(*base, "checkpoint=keep", "checkpoint.epochs=[1,2]")
    assert end.code == 0, end.err
    folder = run_folder(*base)
    assert sorted(path.name for path in folder.glob("*.pt")) == [
        "checkpoint.pt", "epoch-1.pt", "epoch-2.pt",
    ]  # fmt: skip
    run = rows()[0].id
    hard = command(*base, "norm.hard=true", f"init_from={run}@2")
    assert hard.code == 0, hard.err
    (row,) = [row for row in rows() if row.id != run]
    assert (row.status, row.resumed) == ("ok", 0)
    assert row.config["init_from"] == f"{run}@2"
    curve = list(read_history(Path("runs/default") / row.id))
    assert curve[0]["step"] == 30  # it resumed after the 20 steps of two epochs
    refused = command(*base, f"init_from={run}@3")
    assert refused.code == 2
    assert f"no {run}/epoch-3.pt below runs=runs, there is checkpoint.pt, epoch-1.pt" in refused.err
    assert "norm.hard=true" in command(*base, "norm.hard=true", "seed=7").err
    described = command(*base, "norm.hard=true", "init_from=norm.hard:false@2")
    assert described.code == 0
    assert "1 cell, 1 finished before" in described.out
    refused = command(*base, "norm.hard=true", "seed=7", "init_from=norm.hard:false@2")
    assert refused.code == 2
    assert "(the run is sn batch=8 seed=7 recipe.images=3840 recipe.lr=0.05)" in refused.err


@pytest.mark.slow
def test_a_run_can_begin_with_the_ratios_of_another(command: Command, rows: Rows) -> None:
    """Hard ratios from scratch: all other parameters start as without them."""
    base = ("norm=sn", *SHORT, "recipe.ema=0.5")
    assert command(*base, "checkpoint.epochs=[2]").code == 0
    soft = rows()[0].id
    hard = ("norm.hard=true", "init_from=norm.hard:false@2", "init_only=[ratio]")
    end = command(*base, *hard, "checkpoint=keep", "checkpoint.epochs=[1]")
    assert end.code == 0, end.err
    (row,) = [row for row in rows() if row.id != soft]
    assert (row.config["init_from"], row.config["init_only"]) == (f"{soft}@2", ["ratio"])
    assert next(iter(read_history(Path("runs/default") / row.id)))["step"] <= 10  # from step 0
    learned = checkpoint.load_state(Path("runs/default") / soft / "epoch-2.pt")
    first = checkpoint.load_state(Path("runs/default") / row.id / "epoch-1.pt")
    last = checkpoint.load_state(Path("runs/default") / row.id / CHECKPOINT)
    logits = [name for name in learned["model"] if name.endswith("logits")]
    assert len(logits) > 10
    for name in logits:
        assert torch.equal(last["model"][name], learned["model"][name])
    averages = [key for key in last["average"] if key.endswith("logits")]
    assert len(averages) == len(logits)  # the average has the same ratios, from its first step on
    for key, name in zip(averages, logits, strict=True):
        torch.testing.assert_close(last["average"][key], learned["model"][name])
    assert first["done"] == 10
    bn = command("norm=bn", *base[1:], "init_from=norm:sn@2", "init_only=[ratio]")
    assert bn.code == 2
    assert "has no parameter of that role; it has bias, gain, shift, weight" in bn.err
    gains = command(*base, "norm.hard=true", "init_from=norm.hard:false@2", "init_only=[gain]")
    assert "norm.hard=true: which member counts follows from the ratios" in gains.err
    other = "init_from=model:resnet8_cifar@2"
    deep = command(*base, "model=resnet20", other, "init_only=[ratio]")
    assert deep.code == 2
    assert "model=resnet20" in deep.err
    assert "init_from: the checkpoint is of another network, without" in deep.err
    assert "(the run is sn batch=8 seed=0 " in deep.err
    assert [row.norm for row in rows()] == ["sn", "sn"]
    path = Path("runs/default") / soft / "epoch-2.pt"
    torch.save({"weight": torch.zeros(1)}, path)
    foreign = command(*base, *hard, "seed=1", f"init_from={soft}@2")
    assert foreign.code == 2
    assert "init_from: the checkpoint is of no run: it has no valid model" in foreign.err
    path.write_bytes(b"no checkpoint")
    damaged = command(*base, *hard, "seed=1", f"init_from={soft}@2")
    assert damaged.code == 1
    assert "epoch-2.pt is no checkpoint" in damaged.out
