"""Signals to a command and to its runs: a checkpoint at once, and the same command resumes."""

import errno
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from normbench import results, run_files, status
from normbench.config.compose import compose
from normbench.execution import sweep, worker
from normbench.execution.conclusion import stop_by_signals
from normbench.execution.sweep import make_job
from normbench.execution.worker_process import stop_signals
from normbench.records.history import read_history
from normbench.results import CHECKPOINT
from normbench.training import checkpoint
from normbench.training.checkpoint import Checkpoints
from normbench.training.experiment import Experiment
from normbench.training.lightning_module import TrainingModule
from normbench.training.seed_stacking import train_stacked
from normbench.training.stop_signals import SAME_REQUEST, Stopped, StopSignals
from normbench.training.trainer import train
from normbench.training.training import Training
from support.cells import BROKEN, RESUMABLE, Curve, Interrupted, cell, run_folder, train_cell
from support.commands import Command, Rows
from support.processes import is_training, pid_of, rank_of, run_when
from support.rows import numbers
from support.slow import slow_after

#: A training of some seconds whose only checkpoints are those of interruptions.
STOPPABLE = (*RESUMABLE[:-1], "checkpoint.every=3600", "recipe.images=25600")


class StopLater(StopSignals):
    """The signal comes when the training looks for it the `looks`th time, as after each step."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    @property
    def received(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


class StopAtTheEnd(Curve, StopSignals):
    """The signal comes during the last step."""

    def __init__(self) -> None:
        Curve.__init__(self)
        StopSignals.__init__(self)

    def on_progress(self, done: int, steps: int, loss: float) -> None:
        if done == steps:
            self.first[signal.SIGINT] = 0.0


@pytest.mark.parametrize(
    "words",
    slow_after(
        2,
        [
            ["norm=batch_renorm", "recipe.recalibration=3"],
            ["norm=evonorm_s0", "recipe.ema=0.9", "reg=mixup", "recipe.schedule=cosine"],
            ["norm=bn", "trainer.chunk=1"],
            ["norm=gn", "recipe.example_weight=loss"],
        ],
    ),
    ids=str,
)
@pytest.mark.parametrize("looks", slow_after(1, [16, 3, None]))
def test_a_stopped_training_resumes_bit_for_bit(
    words: list[str], looks: int | None, tmp_path: Path
) -> None:
    """In its first and second epoch, and at its end."""
    base = cell(*words, "recipe.images=3200", "trainer=cpu", "logger=none")
    plan = base.trainer.plans(base.workers)[0]
    expected, curve = train_cell(base, plan)

    at_the_end = StopAtTheEnd()
    first, stop = (Curve(), StopLater(looks)) if looks else (at_the_end, at_the_end)
    checkpoints = Checkpoints(tmp_path, every=None)
    with pytest.raises(Stopped):
        train(Training(Experiment(base, plan), first, checkpoints, None, stop))
    state = checkpoint.load_state(tmp_path / CHECKPOINT)
    assert 0 < state["done"] == checkpoints.done
    torch.manual_seed(1234)
    resumed, rest = train_cell(base, plan, state=state)
    assert (expected.pop("resumed"), resumed.pop("resumed")) == (0, 1)
    assert resumed == expected
    assert first.records + rest == curve


class Handlers(Curve):
    """The handlers of SIGTERM after each chunk and record."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: list[object] = []

    def on_progress(self, done: int, steps: int, loss: float) -> None:
        self.handlers.append(signal.getsignal(signal.SIGTERM))


@pytest.mark.parametrize("words", [[], ["data.val=0"]], ids=str)
def test_sigterm_is_ours_from_the_first_step(words: list[str]) -> None:
    """Lightning's handler would broadcast between ranks while a step does so, too."""
    trained = cell("norm=gn", "recipe.images=3200", "trainer=cpu", "logger=none", *words)
    plan = trained.trainer.plans(trained.workers)[0]
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    stop, listener = StopSignals(), Handlers()
    try:
        stop.listen()
        train(Training(Experiment(trained, plan), listener, None, None, stop))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert set(listener.handlers) == {stop._receive}


def test_a_training_that_is_stopped_in_its_test_loses_no_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last checkpoint is a minute old."""
    trained = cell("norm=gn", "recipe.images=3200", "trainer=cpu", "logger=none")
    expected, _ = train_cell(trained)
    checkpoints = Checkpoints(tmp_path, every=3600)
    checkpoints.saved -= 60
    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "on_test_start", interrupt, raising=False)
        with pytest.raises(Interrupted):
            train_cell(trained, checkpoints=checkpoints)
    state = checkpoint.load_state(tmp_path / CHECKPOINT)
    resumed, curve = train_cell(trained, state=state)
    assert not curve  # no step is left
    assert resumed == expected | {"resumed": 1}


def interrupt(_module: TrainingModule) -> None:
    raise Interrupted


def test_a_different_signal_is_no_repetition() -> None:
    """Slurm sends SIGUSR1 and later SIGTERM, while a command waits for checkpoints."""
    numbers = (signal.SIGUSR1, signal.SIGTERM)
    with stop_by_signals():
        with pytest.raises(sweep.Interrupted):
            signal.raise_signal(numbers[0])
        time.sleep(SAME_REQUEST + 0.1)
        signal.raise_signal(numbers[1])
        with pytest.raises(sweep.Interrupted):
            signal.raise_signal(numbers[0])


def test_a_stop_that_cannot_be_saved_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full when the run writes its last checkpoint."""
    words = ("norm=gn", "recipe.images=3200", "trainer=cpu", "logger=none", f"runs={tmp_path}")
    (trained,), settings = compose(list(words))
    assert settings is not None
    job = make_job(trained, settings)
    job.folder.mkdir(parents=True)
    job.log.touch()
    monkeypatch.setitem(stop_signals.first, signal.SIGTERM, 0.0)
    with (
        pytest.raises(KeyboardInterrupt),
        ExitStack() as wandb_runs,
        worker._recorded(job, 0, lambda _: None, wandb_runs),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    state = run_files.read_state(job.folder)
    assert (state["phase"], state["error"]) == ("interrupted", "No space left on device")
    assert "No space left on device" in capsys.readouterr().out


@pytest.mark.parametrize("looks", slow_after(1, [3, 16]))
def test_stacked_seeds_stop_at_the_same_step(looks: int, tmp_path: Path) -> None:
    cells = [
        cell("norm=gn", f"seed={seed}", "recipe.images=3200", "trainer=cpu", "logger=none")
        for seed in (0, 1)
    ]
    plan = cells[0].trainer.plans(cells[0].workers)[0]

    def trainings(stop: StopSignals, *, resume: bool) -> Sequence[Training]:
        return [
            Training(
                Experiment(each, plan), Curve(), Checkpoints(tmp_path / each.id, every=None),
                checkpoint.load_state(tmp_path / each.id / CHECKPOINT) if resume else None, stop,
            )
            for each in cells
        ]  # fmt: skip

    expected = train_stacked(trainings(StopSignals(), resume=False))
    with pytest.raises(Stopped):
        train_stacked(trainings(StopLater(looks), resume=False))
    done = {checkpoint.load_state(tmp_path / each.id / CHECKPOINT)["done"] for each in cells}
    assert len(done) == 1
    rest = train_stacked(trainings(StopSignals(), resume=True))
    for of_all, of_rest in zip(expected, rest, strict=True):
        assert of_all["train_loss"] == of_rest["train_loss"]
        assert of_all["test_loss"] == of_rest["test_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, ()),
        (signal.SIGUSR1, ()),
        (signal.SIGUSR2, ("trainer.devices=2",)),
        (signal.SIGTERM, ("stack_seeds=true", "seed=0,1")),
    ],
    ids=str,
)
def test_a_command_that_is_stopped_saves_and_says_where_it_goes_on(
    number: int, words: Sequence[str], command: Command, rows: Rows,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = ("-m", "norm=bn", "batch=4", *STOPPABLE, *words)
    assert command(*arguments, "runs=undisturbed").code == 0
    expected = {row.id: numbers(row) for row in results.read("undisturbed")}
    folder = run_folder("norm=bn", "batch=4", *STOPPABLE)
    stopper = run_when(lambda: is_training(folder), lambda: os.kill(os.getpid(), number))
    end = command(*arguments)
    stopper.join()
    assert end.code == 128 + number
    assert len((end.out + end.err).splitlines()) <= 12
    done = checkpoint.load_state(folder / CHECKPOINT)["done"]
    assert 0 < done < 200
    one = cell("norm=bn", "batch=4", *STOPPABLE).title
    title = "seed=0" if "seed=0,1" in words else one
    line = f"interrupted: {title}: the same command resumes from step {done} of 200"
    assert line in end.out.splitlines()
    assert status.main([]) == 0
    assert f"resumes from step {done} of 200" in capsys.readouterr().out
    assert command(*arguments).code == 0
    assert {row.resumed for row in rows()} == {1}
    for row in rows():
        if row.plan.startswith("32 workers: devices=2"):
            # A checkpoint averages running statistics over ranks, which rounds them once more.
            assert row.train_loss == expected[row.id]["train_loss"]
            assert row.test_loss == pytest.approx(expected[row.id]["test_loss"], rel=1e-3)
            continue
        assert numbers(row) == expected[row.id]
        curves = [read_history(Path(root) / "default" / row.id) for root in ("runs", "undisturbed")]
        assert list(curves[0]) == list(curves[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGINT, ()), (signal.SIGTERM, ("trainer.devices=2",))],
    ids=str,
)
def test_a_run_that_is_stopped_is_named_and_the_others_finish(
    number: int, words: Sequence[str], command: Command, rows: Rows
) -> None:
    arguments = ("norm=bn", "batch=4", *STOPPABLE, *words)
    folder = run_folder(*arguments)
    stopper = run_when(lambda: is_training(folder), lambda: os.kill(pid_of(folder), number))
    end = command("-m", "seed=0,1", "jobs=1", *arguments)
    stopper.join()
    assert end.code == 1
    done = checkpoint.load_state(folder / CHECKPOINT)["done"]
    reason = f"interrupted; the same command resumes from step {done} of 200"
    assert f"failed: seed=0: {reason}" in end.out
    assert run_files.read_state(folder)["phase"] == "interrupted"
    assert [row.seed for row in rows()] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("words", [("trainer.devices=2",), ("data.val=0",)], ids=str)
def test_sigterm_to_all_ranks_leaves_a_checkpoint(words: Sequence[str], command: Command) -> None:
    """As Slurm and torchrun send it, to every process of a job."""
    arguments = ("norm=bn", "batch=4", *STOPPABLE, *words)
    folder = run_folder(*arguments)

    def terminate() -> None:
        pids = [pid_of(folder)]
        if "trainer.devices=2" in words:
            pids.append(rank_of(folder / "log.1.txt"))
        for pid in pids:
            os.kill(pid, signal.SIGTERM)

    stopper = run_when(lambda: is_training(folder), terminate)
    end = command(*arguments)
    stopper.join()
    assert end.code == 1
    done = checkpoint.load_state(folder / CHECKPOINT)["done"]
    assert f"the same command resumes from step {done} of 200" in end.out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["command", "run"])
def test_a_second_signal_ends_a_run_at_once(kind: str, command: Command) -> None:
    """A step of this training takes a minute."""
    arguments = (*BROKEN, "norm=sluggish", *STOPPABLE)
    folder = run_folder(*arguments)

    def interrupt() -> None:
        pid = os.getpid() if kind == "command" else pid_of(folder)
        os.kill(pid, signal.SIGINT)
        time.sleep(1)
        os.kill(pid, signal.SIGINT)

    stopper = run_when(lambda: (folder / "sluggish").exists(), interrupt)
    end = command(*arguments)
    stopper.join()
    assert end.code == (130 if kind == "command" else 1)
    assert "the same command starts it over" in end.out
    assert run_files.read_state(folder)["phase"] == "interrupted"
