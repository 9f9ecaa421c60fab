"""Whole sweeps with real processes: files, output and exit code."""

import io
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from normbench import results, run_files
from normbench.errors import BadInput, LeftOut
from normbench.execution import process_group, worker_process
from normbench.execution.job import Job
from normbench.execution.local_scheduler import TRAIN
from normbench.execution.progress import Bars, Lines, Screen
from normbench.execution.sweep import PRELOAD, init_checkpoint
from normbench.records.history import read_history
from normbench.results import CHECKPOINT, Row
from support.cells import BROKEN, LONG, RESUMABLE, SHORT, cell, run_folder
from support.commands import Command, Rows
from support.processes import (
    finish,
    is_training,
    pid_of,
    processes,
    run_when,
    server_of,
    terminal,
    wait_for,
    wait_until_gone,
)
from support.rows import numbers, run
from support.shell import shell


@pytest.mark.figures
def test_a_grid_leaves_a_row_a_cell_and_prints_the_table(command: Command, rows: Rows) -> None:
    end = command("-m", "norm=bn,evonorm_s0", "batch=4,128", "seed=0,1", *SHORT)
    assert end.code == 0, end.err
    assert [row.status for row in rows()] == ["ok"] * 8
    assert "8 cells, 0 finished before, 8 to do" in end.out
    assert "| norm \\ batch   | 4 " in end.out
    recommendation, _, table = end.out.partition("**Test accuracy over images per worker")
    assert table.count("(2)") == 4
    assert "**Which normalizer, by test top-1 accuracy (%)" in recommendation
    assert "evonorm_s0 †" in end.out
    assert "column of this row is the same computation for a given seed" in end.out
    assert "demonstration" in end.out
    for row in rows():
        folder = Path("runs") / "default" / row.id
        assert not (folder / "state.json").exists()
        assert len(list(read_history(folder))) == 2
    flat = [row for row in rows() if row.norm == "evonorm_s0" and row.seed == 0]
    assert len({(row.test_top1, row.test_loss, row.train_loss) for row in flat}) == 1
    for form in ("md", "csv", "tex", "png", "pdf", "svg"):
        assert list(Path("runs/reports/batch_size").glob(f"*.{form}"))


def test_a_row_has_the_options_and_the_measurements(command: Command, rows: Rows) -> None:
    assert command("norm=gn", "batch=4", "seed=3", "model.width=8", *SHORT).code == 0
    (row,) = rows()
    expected = cell("norm=gn", "batch=4", "seed=3", "model.width=8", *SHORT)
    assert (row.id, row.config) == (expected.id, json.loads(json.dumps(expected.identity)))
    assert (row.norm, row.batch, row.workers, row.global_batch, row.seed) == ("gn", 4, 32, 128, 3)
    assert row.options == "model.width=8 recipe.images=2560"
    assert (row.groups, row.batch_independent, row.threads) == ([4], True, 1)
    assert row.plan == "32 workers: devices=1 per_forward=32 accumulation=1"
    assert row.versions["torch"]
    assert row.params is not None
    assert row.macs is not None
    for measured in (row.seconds, row.images_per_second, row.peak_memory, row.device_memory):
        assert measured is not None
        assert measured > 0
    for percent in (row.train_top1, row.val_top1, row.test_top1, row.test_top5):
        assert percent is not None
        assert 0 <= percent <= 100
    log = Path("runs") / "default" / row.id / "log.txt"
    begin, end = log.read_text().splitlines()  # and no warning
    assert f"  {expected.title}  {row.plan}  commit={row.commit or 'unknown'} " in begin
    assert f" torch={row.versions['torch']}" in begin
    assert end.endswith(f"  ok  {row.outcome}  {row.seconds:.0f} s")


def test_the_same_command_trains_nothing_and_starts_no_process(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("-m", "norm=bn", "batch=4,8", *SHORT)
    first = command(*arguments)
    before = rows()
    monkeypatch.setattr("normbench.execution.worker_process.start", None)
    monkeypatch.setattr("normbench.execution.worker_process.start_server", None)
    second = command(*arguments)
    assert (first.code, second.code) == (0, 0)
    assert "2 cells, 2 finished before, 0 to do" in second.out
    assert rows() == before
    assert "no file has changed" in second.out


@pytest.mark.slow
def test_forced_runs_give_the_same_numbers_bit_for_bit(command: Command, rows: Rows) -> None:
    for force in ("force=false", "force=true"):
        assert command("norm=bn", "batch=4", force, *SHORT).code == 0
        (row,) = rows()
        numbers = (row.test_top1, row.test_loss, row.train_loss, row.val_top1)
        if force == "force=false":
            finished, expected = row.finished, numbers
    assert numbers == expected
    assert row.finished > finished


@pytest.mark.slow
def test_a_run_of_one_sweep_is_reused_by_every_other(command: Command, rows: Rows) -> None:
    assert command("sweeps=demo", "norm=bn", "batch=4", "seed=0", *SHORT).code == 0
    end = command("norm=bn", "batch=4", "seed=0", *SHORT)
    assert "1 finished before, 0 to do" in end.out
    (row,) = rows()
    assert row.sweep == "demo"


@pytest.mark.slow
def test_runs_chooses_the_folder_of_the_rows(command: Command, tmp_path: Path) -> None:
    assert command("norm=gn", "runs=else/where", *SHORT).code == 0
    assert [row.norm for row in results.read(tmp_path / "else" / "where")] == ["gn"]


@pytest.mark.slow
def test_a_cell_that_cannot_work_is_named_first_and_the_others_run(
    command: Command, rows: Rows
) -> None:
    end = command("-m", "norm=bn,gn", "batch=1", "model=resnet8", *SHORT)
    assert end.code == 0
    reason = "batch normalization of a single value per channel"
    assert end.out.index("impossible  bn: ") < end.out.index("1/1 ok")
    assert {row.norm: row.status for row in rows()} == {"bn": "impossible", "gn": "ok"}
    assert reason in rows()[0].reason
    assert "| n/a " in end.out
    assert (
        "2 finished before" in command("-m", "norm=bn,gn", "batch=1", "model=resnet8", *SHORT).out
    )


@pytest.mark.slow
def test_a_cell_that_cannot_work_among_finished_ones_has_its_row_too(
    command: Command, rows: Rows
) -> None:
    assert command("norm=gn", "batch=1", "model=resnet8", *SHORT).code == 0
    assert command("-m", "norm=bn,gn", "batch=1", "model=resnet8", *SHORT).code == 0
    assert {row.norm: row.status for row in rows()} == {"bn": "impossible", "gn": "ok"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["norm=bn", "batch=1", "model=resnet8"], "batch normalization of a single value"),
        (["global_batch=2048", "batch=8"], "data=digits_contrast has 1293 training images"),
        (["data=fashion_mnist", "data.root=/nowhere"], "/nowhere/train-images-idx3-ub"),
        (["data.val=0.001"], "data.val=0.001 holds out 2 of 1437 images"),
        (["model.depth=15"], "model.depth=15: this family has 6n + 2 layers"),
        (["recipe.lr=fast"], "recipe.lr=fast: it must be a number"),
        (["recipe.epochs=3"], "recipe.epochs=10 recipe.images=null"),
        ([*BROKEN, "norm=nowhere"], "normbench.nowhere.X cannot be imported"),
        (["data.noise=nan"], "data.noise=nan: it must be a finite number"),
        (["reg.label_smoothing=1"], "reg.label_smoothing=1.0: it must be less than 1"),
        (["precision=16-mixed"], "precision=16-mixed needs a CUDA device"),
    ],
    ids=str,
)  # fmt: skip
def test_preflight_refuses_before_any_training(
    arguments: list[str], says: str, command: Command, rows: Rows
) -> None:
    end = command(*arguments, *SHORT)
    assert end.code == 2
    assert end.err.startswith("normbench: ")
    assert says in end.err
    assert end.err.count("\n") == 1
    assert rows() == []


def test_a_runs_folder_that_cannot_be_written_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    end = command("runs=file/inside", *SHORT)
    assert end.code == 2
    assert end.err == (
        f"normbench: runs=file/inside cannot be written ({tmp_path}/file is no folder); "
        "use a writable folder, as runs=$HOME/normbench-runs\n"
    )


def test_a_run_that_raises_is_one_line_and_the_sweep_goes_on(command: Command, rows: Rows) -> None:
    arguments = (*BROKEN, "-m", "norm=broken,gn", "batch=4", *SHORT)
    end = command(*arguments)
    assert end.code == 1
    assert "failed  broken: " in end.out
    assert "failed: broken: " in end.out
    assert "RuntimeError: this layer is broken on purpose" in end.out
    assert "1 of 2 cells have no row; the same command trains them" in end.out
    assert [row.norm for row in rows()] == ["gn"]
    folder = run_folder(*BROKEN, "norm=broken", "batch=4", *SHORT)
    assert run_files.read_state(folder)["phase"] == "failed"
    assert "Traceback" in (folder / "log.txt").read_text()
    assert "in forward" in (folder / "log.txt").read_text()
    assert "2 cells, 1 finished before, 1 to do" in command(*arguments).out


def test_a_run_that_diverges_is_a_result(command: Command, rows: Rows) -> None:
    end = command("-m", "norm=bn,gn", "recipe.lr=1e30", *SHORT)
    assert end.code == 0
    assert [row.status for row in rows()] == ["diverged", "diverged"]
    assert "| div. " in end.out


@pytest.mark.slow
def test_a_killed_run_is_named_and_the_others_finish(command: Command, rows: Rows) -> None:
    victim = run_folder("norm=bn", "batch=4", *LONG)
    killer = run_when(lambda: is_training(victim), lambda: os.kill(pid_of(victim), signal.SIGKILL))
    end = command("-m", "norm=bn", "batch=4", *LONG)
    killer.join()
    assert end.code == 1
    assert "killed by signal 9" in end.out
    assert run_files.read_state(victim)["phase"] == "failed"
    assert run_files.read_state(victim)["error"] == "killed by signal 9"
    assert not run_files.is_locked(victim)
    assert rows() == []


@pytest.mark.slow  # three servers import torch
def test_runs_go_on_without_the_fork_server(tmp_path: Path) -> None:
    """Two runs train when it is killed, and two need another server. The check continues, too."""
    grid = ("norm=bn,gn", "batch=4,8", *RESUMABLE, "jobs=2", "protocol=fixed_workers")
    folders = [
        tmp_path / run_folder("norm=bn", f"batch={n}", *RESUMABLE, "protocol=fixed_workers")
        for n in (4, 8)
    ]
    with terminal(tmp_path, "-m", *grid) as process:
        assert process.stdout is not None
        while "importing torch" not in process.stdout.readline():
            pass
        wait_for(lambda: (tmp_path / "runs/check.log").exists())  # the check has begun
        os.kill(server_of(process.pid), signal.SIGKILL)
        wait_for(lambda: all(is_training(folder) for folder in folders))
        os.kill(server_of(process.pid), signal.SIGKILL)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert len(results.read(tmp_path / "runs")) == 4
    assert "failed" not in out
    wait_until_gone(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_sweep_that_is_stopped_keeps_what_is_finished(
    command: Command, rows: Rows, number: int, code: int
) -> None:
    assert command("norm=gn", "batch=4", *SHORT).code == 0
    running = [run_folder("norm=bn", f"batch={batch}", *LONG) for batch in (4, 8)]
    stopper = run_when(
        lambda: all(is_training(folder) for folder in running), lambda: os.kill(os.getpid(), number)
    )
    end = command("-m", "norm=bn", "batch=4,8,16", "jobs=2", *LONG)
    stopper.join()
    assert end.code == code
    assert [run_files.read_state(folder)["phase"] for folder in running] == ["interrupted"] * 2
    assert not any(run_files.is_locked(folder) for folder in running)
    assert f"stopped by signal {int(number)}" in end.out
    assert "3 of 3 cells have no row; the same command trains them" in end.out
    assert [row.norm for row in rows()] == ["gn"]


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_stops_everything(tmp_path: Path) -> None:
    """The signal reaches the whole process group, also the fork server."""
    folder = tmp_path / run_folder("norm=bn", "batch=4", *LONG)
    with terminal(tmp_path, "norm=bn", "batch=4", *LONG) as process:
        wait_for(lambda: is_training(folder))
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in out
    assert run_files.read_state(folder)["phase"] == "interrupted"
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_ctrl_c_during_the_imports_stops_everything(tmp_path: Path) -> None:
    with terminal(tmp_path, *LONG) as process:
        assert process.stdout is not None
        while "importing torch" not in process.stdout.readline():
            pass
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in out
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_worker_processes_die_with_a_killed_parent_and_the_command_resumes(
    tmp_path: Path, command: Command, rows: Rows
) -> None:
    arguments = ("norm=bn", "batch=4", "recipe.images=64000", "logger=none", "trainer=cpu")
    folder = tmp_path / run_folder(*arguments)
    with terminal(tmp_path, *arguments) as process:
        wait_for(lambda: is_training(folder))
        assert pid_of(folder) in processes(str(tmp_path))
        process.kill()
        process.wait()
    wait_until_gone(tmp_path)
    assert run_files.read_state(folder)["phase"] == "running"
    assert command(*arguments).code == 0
    assert [row.status for row in rows()] == ["ok"]


def oom(memory: int) -> Row:
    """The row of a run that did not fit into `memory` bytes."""
    description = cell("norm=bn", *SHORT).description("default")
    return Row(
        **description, status="oom", reason="no memory", device_memory=memory, finished="2026"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "status"), [(1, "ok"), (10**15, "oom")])
def test_an_oom_run_is_trained_again_where_there_is_more_memory(
    command: Command, rows: Rows, memory: int, status: str
) -> None:
    row = oom(memory)
    results.write(Path("runs") / "default" / row.id, row)
    end = command("norm=bn", *SHORT)
    assert end.code == 0
    assert rows()[0].status == status
    assert ("| OOM " in end.out) == (status == "oom")


@pytest.mark.slow
def test_a_run_whose_process_exits_has_failed(command: Command) -> None:
    end = command(*BROKEN, "norm=vanishing", *SHORT)
    assert end.code == 1
    assert "failed  vanishing" in end.out
    assert "exited with code 0 and reported no result" in end.out


@pytest.mark.slow
def test_not_a_number_in_evaluation_is_a_result(command: Command, rows: Rows) -> None:
    end = command(*BROKEN, "norm=untested", *SHORT)
    assert end.code == 0
    (row,) = rows()
    assert (row.status, row.test_loss) == ("diverged", None)
    assert row.reason == "the loss on the test images was nan"
    assert "| div. " in end.out


def test_a_layer_that_cannot_be_built_is_one_line_and_a_traceback(command: Command) -> None:
    end = command(*BROKEN, "-m", "norm=gn,unbuildable", *SHORT)
    assert end.code == 2
    assert "(LookupError: no layer of 16 channels); the traceback is in runs/check.log" in end.err
    assert "in layer" in Path("runs/check.log").read_text()


@pytest.mark.slow
def test_a_forced_run_that_is_stopped_keeps_the_old_row_aside(command: Command, rows: Rows) -> None:
    arguments = ["norm=bn", "batch=4", *LONG]
    folder = run_folder(*arguments)
    description = cell(*arguments).description("default")
    results.write(folder, Row(**description, status="ok", test_top1=90.0))
    stopper = run_when(lambda: is_training(folder), lambda: os.kill(os.getpid(), signal.SIGINT))
    assert command("force=true", *arguments).code == 130
    stopper.join()
    assert rows() == []
    assert run_files.read_state(folder)["phase"] == "interrupted"
    assert results.read_row(folder / "previous.json").test_top1 == 90.0


def test_a_worker_process_changes_nothing_in_a_locked_folder(
    command: Command, tmp_path: Path
) -> None:
    """Another process trains the run: its log and its state stay."""
    folder = tmp_path / run_folder("norm=bn", *SHORT)
    bn = cell("norm=bn", *SHORT).with_accelerator("cpu")
    job = Job(bn, folder, bn.trainer.plans(bn.workers)[0], "default", force=True)
    with run_files.lock(folder):
        job.log.write_text("of the other\n")
        run_files.write_state(folder, "running", pid=1)
        worker_process.start_server(PRELOAD)
        end, _ = finish(process_group.start(TRAIN, [job], log=job.log))
        assert end.result == ["busy"]
    assert job.log.read_text() == "of the other\n"
    assert run_files.read_state(folder)["pid"] == 1


@pytest.mark.slow
def test_a_damaged_row_costs_its_own_run(command: Command, rows: Rows) -> None:
    """A foreign one costs nothing."""
    foreign = Path("runs/default") / ("a" * 12) / "row.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("{")
    end = command("norm=gn", *SHORT)
    assert end.code == 0, end.err
    assert f"normbench: left out: {foreign} is not JSON: " in end.err
    (row,) = rows_beside(foreign, rows)
    damaged = Path(run_folder("norm=gn", *SHORT)) / "row.json"
    damaged.write_text("[]")
    end = command("norm=gn", *SHORT)
    assert end.code == 0, end.err
    assert "1 to do" in end.out
    assert f"normbench: left out: {damaged} holds no JSON object" in end.err
    (again,) = rows_beside(foreign, rows)
    assert numbers(again) == numbers(row)
    assert damaged.with_name("damaged.json").read_text() == "[]"


def rows_beside(damaged: Path, rows: Rows) -> list[Row]:
    """Return the rows of all other runs."""
    with pytest.warns(LeftOut, match=str(damaged)):
        return rows()


@pytest.mark.slow
def test_commands_on_other_rows_replace_no_report(command: Command) -> None:
    assert command("norm=bn", *SHORT).code == 0
    before = {path: path.read_bytes() for path in Path("runs/reports").rglob("*") if path.is_file()}
    other = command("norm=gn", "runs=other", *SHORT)
    assert "files: 6 new" in other.out
    assert all(path.read_bytes() == content for path, content in before.items())
    assert {path.name for path in Path("other/reports/batch_size").iterdir()} >= {
        path.name for path in before if path.suffix == ".md"
    }
    assert "files: 6 new" in command("norm=bn", "reports=tables", *SHORT).out
    more = command("norm=bn", "batch=4", *SHORT)
    assert " replaced" in more.out
    assert {path.name for path in Path().iterdir()} == {"runs", "other", "tables"}


def test_reports_that_cannot_be_written_are_refused_before_any_training(command: Command) -> None:
    Path("taken").touch()
    end = command("norm=bn", "reports=taken/here", *SHORT)
    assert end.code == 2
    assert "normbench: reports=taken/here cannot be written (" in end.err
    assert "taken is no folder); use a writable folder, as reports=$HOME/" in end.err


def show(shown: Screen) -> None:
    """A run begins, must wait, begins again and ends."""
    shown.add("a", "gn recipe.decayed=[weight]")
    shown.update("a", 5, 10, 1.5)
    shown.remove("a")
    shown.add("a", "gn recipe.decayed=[weight]")
    shown.end("a", "ok gn recipe.decayed=[weight] [/a]", failed=False)
    shown.close()


def test_bars_escape_titles_and_remove_queued_runs() -> None:
    """Brackets are no markup, and a run that must wait leaves no bar behind."""
    out = io.StringIO()
    bars = Bars(Console(file=out, force_terminal=True, width=100), 2)
    show(bars)
    assert len(bars.progress.tasks) == 1
    assert "ok gn recipe.decayed=[weight] [/a]" in out.getvalue()


def test_lines_show_finished_runs(capsys: pytest.CaptureFixture[str]) -> None:
    show(Lines(2))
    assert capsys.readouterr().out == "1/2 ok gn recipe.decayed=[weight] [/a]\n"


@pytest.mark.slow
def test_two_sweeps_at_once_train_each_cell_once(
    tmp_path: Path, command: Command, rows: Rows
) -> None:
    arguments = ("-m", "norm=bn,gn", "batch=4,8", "seed=0,1", *SHORT)
    with terminal(tmp_path, *arguments) as other:
        wait_for(lambda: any(tmp_path.glob("runs/default/*/state.json")))
        end = command(*arguments)
        out, _ = other.communicate(timeout=120)
    assert (end.code, other.returncode) == (0, 0)
    assert len(rows()) == 8
    trained = [
        line.split()[2:5]
        for text in (out, end.out)
        for line in text.splitlines()
        if " ok  " in line or " diverged  " in line
    ]
    # Of gn one cell is trained for both.
    assert len(trained) == len({tuple(words) for words in trained}) == 6


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_run_computes_with_the_threads_of_the_command_line(
    command: Command, rows: Rows, threads: int
) -> None:
    """The layers of this normalizer fail if torch has another number of threads."""
    norm = (*BROKEN, "norm=counting_threads", f"norm.threads={threads}")
    end = command(*norm, f"trainer.threads={threads}", *SHORT)
    assert end.code == 0, end.out
    assert [row.threads for row in rows()] == [threads]


@pytest.mark.slow
def test_the_number_of_jobs_changes_no_number(command: Command, rows: Rows) -> None:
    losses = []
    for jobs in (1, 2):
        more = ("force=true", f"jobs={jobs}")
        assert command("-m", "norm=bn", "seed=0,1", *more, *SHORT).code == 0
        losses.append([row.train_loss for row in rows()])
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["4", "4,2"])
def test_a_forced_sweep_on_a_cluster_trains_what_others_have(
    batches: str, command: Command, rows: Rows
) -> None:
    """Its nodes see the rows of other sweeps, and those of the same computation."""
    assert command("norm=gn", "batch=4", *SHORT).code == 0
    Path("runs/default").rename("runs/first")
    (before,) = rows()
    words = ("-m", "hydra/launcher=submitit_local", "norm=gn", f"batch={batches}", "force=true")
    # In a process of its own, as submitit leaves its jobs open.
    end = shell(f"python -m normbench {' '.join((*words, *SHORT))}", Path.cwd())
    assert end.returncode == 0, end.stderr
    assert "finished by another command" not in end.stdout
    assert all(row.finished > before.finished and row.sweep == "default" for row in rows())
    assert len(rows()) == len(batches.split(","))


def test_only_the_end_of_a_finished_run_is_its_last_checkpoint(tmp_path: Path) -> None:
    """Every run writes checkpoints while it trains."""
    other = cell("norm=bn", "init_from=0123456789ab@last")
    folder = tmp_path / "default/0123456789ab"
    folder.mkdir(parents=True)
    (folder / CHECKPOINT).touch()
    with pytest.raises(BadInput, match="the run 0123456789ab has not finished below"):
        init_checkpoint(other, {}, tmp_path)
    row = run("bn", 4, 0, 90.0, id="0123456789ab")
    diverged = {row.id: replace(row, status="diverged")}
    with pytest.raises(BadInput, match="ended as diverged below"):
        init_checkpoint(other, diverged, tmp_path)
    with pytest.raises(BadInput, match=r"there is checkpoint\.pt"):  # of a forced repetition
        init_checkpoint(other, {row.id: row}, tmp_path)
    (folder / "row.json").touch()
    assert init_checkpoint(other, {row.id: row}, tmp_path) == folder / CHECKPOINT
