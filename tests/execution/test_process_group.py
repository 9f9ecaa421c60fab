"""Runs of several ranks: plans, failures, memory."""

import os
import signal
from pathlib import Path

import pytest

from normbench import results, run_files
from normbench.config.plan import Plan, plans
from normbench.execution import process_group, worker_process
from normbench.execution.sweep import PRELOAD
from normbench.records.history import read_history
from normbench.training.experiment import Experiment
from support.cells import BROKEN, LONG, SHORT, cell, run_folder
from support.commands import Command, Rows
from support.processes import is_training, rank_of, run_when, wait_until_gone
from support.slow import slow_after, slow_except

TWO = ("trainer.devices=2",)
SLOW = pytest.mark.slow


@pytest.mark.slow
def test_a_grid_has_as_many_processes_as_each_cell_can_use(command: Command, rows: Rows) -> None:
    """One worker cannot be divided, 2 and 32 can. W&B has one run of each, and a summary."""
    arguments = (
        "recipe.images=2560", "model.depth=8", "trainer=cpu", "norm=bn", "batch=4,64,128", *TWO,
    )  # fmt: skip
    end = command("-m", *arguments)
    assert end.code == 0, end.err
    plans = {row.batch: row.plan for row in rows()}
    assert plans == {
        4: "32 workers: devices=2 per_forward=16 accumulation=1",
        64: "2 workers: devices=2 per_forward=1 accumulation=1",
        128: "1 workers: devices=1 per_forward=1 accumulation=1",
    }
    assert {row.batch: row.devices[:7] for row in rows()} == {
        4: "2 x cpu",
        64: "2 x cpu",
        128: "1 x cpu",
    }
    assert {path.name for path in Path("runs").iterdir()} == {"check.log", "default", "reports"}
    assert len(list(Path("runs").glob("default/*/wandb/offline-run-*"))) == 3 + 1  # the summary
    assert all(len(list(read_history(Path("runs/default") / r.id))) == 2 for r in rows())
    assert "0 to do" in command("-m", *arguments[:-1]).out


@pytest.mark.slow
def test_hardware_alone_makes_no_second_run(command: Command, rows: Rows) -> None:
    end = command("-m", "norm=bn,gn", "batch=4", "trainer.devices=1,2", *SHORT)
    assert end.code == 0, end.err
    assert "2 cells differ from another in hardware alone" in end.out
    assert [row.plan[12:21] for row in rows()] == ["devices=1"] * 2


@pytest.mark.slow
def test_the_failure_of_one_rank_is_the_reported_failure(command: Command, rows: Rows) -> None:
    """The other rank only loses its connection. The next run of the sweep is trained."""
    end = command(*BROKEN, "-m", "norm=partial,bn", "batch=4", *TWO, *SHORT)
    assert end.code == 1
    folder = run_folder(*BROKEN, "norm=partial", "batch=4", *SHORT)
    failure = f"rank 1: RuntimeError: this layer is broken on purpose ({folder / 'log.1.txt'})"
    assert f"failed  partial: {failure}" in end.out
    assert "in forward" in (folder / "log.1.txt").read_text()
    state = run_files.read_state(folder)
    assert state["phase"] == "failed"
    assert state["error"] == "rank 1: RuntimeError: this layer is broken on purpose"
    assert [row.norm for row in rows()] == ["bn"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_is_killed_ends_the_run(number: int, command: Command, rows: Rows) -> None:
    arguments = ("norm=bn", "batch=4", *TWO, *LONG)
    folder = run_folder(*arguments)
    log = folder / ("log.1.txt" if number else "log.txt")
    killer = run_when(lambda: is_training(folder), lambda: os.kill(rank_of(log), signal.SIGKILL))
    end = command(*arguments)
    killer.join()
    assert end.code == 1
    assert f"rank {number}: killed by signal 9" in end.out
    assert run_files.read_state(folder)["error"] == f"rank {number}: killed by signal 9"
    assert not run_files.is_locked(folder)
    wait_until_gone(Path.cwd())


@pytest.mark.slow
def test_ranks_are_interrupted_together(command: Command) -> None:
    arguments = ("norm=bn", "batch=4", *TWO, *LONG)
    folder = run_folder(*arguments)
    stopper = run_when(lambda: is_training(folder), lambda: os.kill(os.getpid(), signal.SIGINT))
    assert command(*arguments).code == 130
    stopper.join()
    assert run_files.read_state(folder)["phase"] == "interrupted"


@pytest.mark.slow
def test_out_of_memory_is_followed_by_smaller_passes(command: Command, rows: Rows) -> None:
    """Of 32 workers with 4 images 8 fit a pass; a second seed does not try the others again."""
    end = command(*BROKEN, "-m", "norm=greedy", "batch=4", "seed=0,1", "jobs=1", *SHORT)
    assert end.code == 0, end.err
    assert [
        line.partition(": ")[2] for line in end.out.splitlines() if "out of memory" in line
    ] == [
        f"32 workers: devices=1 per_forward={large} accumulation={32 // large}; trying 32 workers: "
        f"devices=1 per_forward={large // 2} accumulation={64 // large}"
        for large in (32, 16)
    ]
    assert {row.plan for row in rows()} == {"32 workers: devices=1 per_forward=8 accumulation=4"}
    direct = command(*BROKEN, "norm=greedy", "batch=4", "trainer.per_forward=8", "runs=b", *SHORT)
    assert direct.code == 0
    assert results.read("b")[0].test_loss == rows()[0].test_loss


@pytest.mark.slow
def test_a_worker_that_does_not_fit_is_a_result(command: Command, rows: Rows) -> None:
    end = command(*BROKEN, "norm=greedy", "norm.most=3", "batch=64", *TWO, *SHORT)
    assert end.code == 0, end.err
    (row,) = rows()
    assert row.status == "oom"
    assert "you tried to allocate 1152921504606846976 bytes" in row.reason
    assert row.plan == "2 workers: devices=2 per_forward=1 accumulation=1"
    assert "| OOM " in end.out


def test_synchronized_statistics_in_several_passes_refuse_compilation(command: Command) -> None:
    words = ("batch=4", "trainer.per_forward=8", "trainer.impl=compile")
    end = command("-m", "norm=bn,sync_bn", *words, *SHORT)
    assert end.code == 2
    assert "normbench: trainer.per_forward=8: sync_bn batch=4 seed=0" in end.err
    assert end.err.endswith("trainer.per_forward=null works, perhaps with more trainer.devices\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["norm=bn", "precision=16-mixed"], ""),
        (["norm=sync_bn"], ""),
        (["norm=sync_bn", "precision=16-mixed"], "precision=bf16-mixed works"),
        (["norm=sn", "norm.sync=true", "trainer.cuda_graph=true"], "copies to main memory"),
        (["norm=sync_bn", "model=timm", "model.name=vit_tiny_patch16_224"], "inside of Channel"),
    ],
)
def test_refusals_of_synchronized_statistics_in_several_passes(words: list[str], says: str) -> None:
    experiment = Experiment(cell(*words))
    reason = experiment.explain_single_pass(experiment.info)
    assert says in reason
    assert bool(says) == bool(reason)


@pytest.mark.parametrize("norm", slow_after(1, [["norm=sync_bn"], ["norm=sn", "norm.sync=true"]]))
def test_synchronized_passes_train_as_one_pass(norm: list[str], command: Command) -> None:
    """With statistics computed anew at the end, too."""
    trained = []
    for per_forward in (8, 1):
        words = (f"trainer.per_forward={per_forward}", f"runs=of{per_forward}", "batch=4")
        more = ("global_batch=32", "precision=64-true", "recipe.recalibration=2")
        assert command(*norm, *words, *more, *SHORT, "recipe.images=192").code == 0
        trained += results.read(f"of{per_forward}")
    one_pass, eight_passes = trained
    assert eight_passes.plan == "8 workers: devices=1 per_forward=1 accumulation=8"
    assert eight_passes.train_loss == pytest.approx(one_pass.train_loss, rel=1e-12)
    assert eight_passes.test_loss == pytest.approx(one_pass.test_loss, rel=1e-12)


@pytest.mark.parametrize(
    "norm", slow_after(1, [["norm=sn", "norm.sync=true"], ["norm=sync_bn"]]), ids=len
)
def test_synchronized_statistics_on_two_devices_are_those_of_one(
    norm: list[str], command: Command, rows: Rows
) -> None:
    rows_read = []
    for devices in (1, 2):
        arguments = (*norm, "model.stem_stride=1", f"trainer.devices={devices}")
        more = ("precision=64-true", f"runs=on{devices}")
        assert command(*arguments, *more, *SHORT, "recipe.images=384").code == 0
        rows_read += results.read(f"on{devices}")
    one, two = rows_read
    assert one.id == two.id
    assert one.train_loss == pytest.approx(two.train_loss, rel=1e-12)


@pytest.mark.parametrize(
    ("workers", "devices", "per_forward", "first", "number"),
    [
        (32, 1, None, Plan(1, 32, 1), 6),
        (32, 2, None, Plan(2, 16, 1), 5),
        (6, 4, None, Plan(3, 2, 1), 2),
        (1, 8, None, Plan(1, 1, 1), 1),
        (12, 1, 5, Plan(1, 4, 3), 4),
        (8, 2, 100, Plan(2, 4, 1), 3),
    ],
)
def test_plans_are_ordered_by_speed(
    workers: int, devices: int, per_forward: int | None, first: Plan, number: int
) -> None:
    ordered = plans(workers, devices, per_forward)
    assert ordered[0] == first
    assert len(ordered) == number
    assert {plan.workers for plan in ordered} == {workers}
    passes = [plan.accumulation for plan in ordered]
    assert passes == sorted(passes)


def test_a_plan_does_not_change_the_run_id(tmp_path: Path) -> None:
    one = cell("norm=bn")
    hardware = ("trainer.devices=4", "trainer.per_forward=2", "checkpoint=keep", "trainer=cpu")
    assert cell("norm=bn", *hardware).id == one.id
    assert cell("norm=bn", "init_from=0123456789ab@3").id != one.id


@pytest.mark.parametrize(
    "words",
    slow_except(
        [
            ["norm=bn", "recipe.recalibration=3"],
            ["norm=evonorm_b0", "recipe.ema=0.9", "reg=cutmix"],
            ["norm=batch_renorm", "recipe.ema=0.9", "recipe.recalibration=2"],
            ["norm=gn", "recipe.example_weight=loss"],
            ["norm=fixup"],
            ["norm=skipinit", "model=resnet14_v2"],
        ],
        [["norm=bn", "recipe.recalibration=3"]],
    ),
    ids=str,
)
def test_several_devices_evaluate_like_one(words: list[str], command: Command) -> None:
    """145 images to validate on three devices, each counted once; running statistics of all."""
    shared = (
        "protocol=fixed_workers", "workers=6", "batch=8", "data.val=0.1009", "model.stem_stride=1",
        "model.depth=8", "precision=64-true", *SHORT, "recipe.images=240",
    )  # fmt: skip
    plans = (["trainer.devices=1"], ["trainer.devices=3", "trainer.per_forward=1"])
    for number, plan in enumerate(plans):
        assert command(*words, *shared, *plan, f"runs=r{number}").code == 0
    (one,), (three,) = results.read("r0"), results.read("r1")
    assert three.plan == "6 workers: devices=3 per_forward=1 accumulation=2"
    # Evaluations are added up in single precision.
    for name in ("train_loss", "test_loss", "train_top1", "val_top1", "test_top1", "test_top5"):
        assert getattr(three, name) == pytest.approx(getattr(one, name), rel=1e-6), name


@pytest.mark.parametrize(
    ("actions", "rank", "kind", "content"),
    [
        (("later", "at once"), None, "result", "later"),
        (("never", "fail"), 1, "failed", "ValueError: no luck"),
        pytest.param(("fail", "never"), 0, "failed", "ValueError: no luck", marks=SLOW),
        pytest.param(("never", "memory"), 1, "memory", "no room", marks=SLOW),
        pytest.param(("at once", "never"), None, "result", "at once", marks=SLOW),
    ],
)
def test_a_group_ends_with_the_first_failure_or_the_result_of_rank_0(
    actions: tuple[str, str], rank: int | None, kind: str, content: str, tmp_path: Path
) -> None:
    """The other rank may still write the row, or may wait for ever for one that is gone."""
    worker_process.start_server(PRELOAD)
    argument = dict(zip("01", actions, strict=True))
    log = tmp_path / "log.txt"
    group = process_group.start("child_work:act_by_rank", argument, 2, log=log)
    end = process_group.wait_for_exit(group)
    assert end.last is not None
    assert (end.rank, end.last.kind, end.last.content) == (rank, kind, content)
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_validation_with_fewer_images_than_devices(command: Command, rows: Rows) -> None:
    few = ("model.stem_stride=1", "protocol=fixed_workers", "workers=12", "batch=2", *SHORT)
    end = command("norm=bn", "data.val=0.007", *few, "recipe.images=480", "trainer.devices=12")
    assert end.code == 0, end.out + end.err
    assert rows()[0].val_top1 is not None
    assert rows()[0].devices.startswith("12 x ")


@pytest.mark.slow
def test_rows_of_a_worker_dependent_normalizer_are_not_shared(command: Command, rows: Rows) -> None:
    """Its normalizer says so; its layers are torch's own, which say nothing."""
    end = command(*BROKEN, "-m", "norm=foreign", "batch=4,8", *SHORT)
    assert end.code == 0, end.err
    assert [row.shared_with for row in rows()] == [None, None]
    assert not any(row.batch_independent or row.computation for row in rows())


@pytest.mark.slow
def test_init_from_loads_parameters_by_name_or_refuses(command: Command, rows: Rows) -> None:
    base = ("norm=gn", *SHORT, "recipe.images=3840")
    assert command(*base, "checkpoint.epochs=[1]").code == 0
    start = f"init_from={rows()[0].id}@1"
    assert command(*base, start, "recipe.decayed=[weight]").code == 0
    (row,) = [row for row in rows() if "decayed" in row.options]
    assert row.status == "ok"
    other = command(*base, start, "norm=evonorm_s0")
    assert other.code == 2
    assert "init_from: the checkpoint is of another network" in other.err
    longer = command(*base, start, "recipe.images=640")
    assert longer.code == 2
    assert "use the same data and global batch, and a recipe that is longer" in longer.err
