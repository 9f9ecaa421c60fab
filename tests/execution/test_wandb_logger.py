"""The copy of a run in W&B: read by W&B's own reader, and sent to a server on loopback."""

import json
import os
import signal
import subprocess
import sys
from math import inf
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from normbench.execution.wandb_logger import Mirror
from normbench.records.history import read_history
from normbench.records.json_fields import flatten
from support.cells import BROKEN, LONG, SHORT, cell
from support.commands import Command, Rows
from support.fake_wandb import serve
from support.processes import is_training, run_when
from support.slow import slow_except

WITH_WANDB = [argument for argument in SHORT if argument != "logger=none"]
#: Fields of the row about code and machine that the config has.
ORIGIN = ("commit", "versions", "cpu", "threads", "impl", "devices")


def inspected(folder: Path) -> dict[str, Any]:
    """What W&B reads in the offline run below `folder`."""
    (offline,) = folder.glob("wandb/offline-run-*")
    script = str(Path(sys.executable).with_name("wandb"))
    words = [script, "leet", "inspect", "--summary", "--json", str(offline)]
    contents: dict[str, Any] = json.loads(
        subprocess.run(words, capture_output=True, check=True).stdout
    )
    return contents


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The records of a kind in the offline run below `folder`: history, metric, run ..."""
    (offline,) = folder.glob("wandb/offline-run-*")
    script = str(Path(sys.executable).with_name("wandb"))
    words = [script, "leet", "inspect", "--json", str(offline)]
    lines = subprocess.run(words, capture_output=True, check=True, text=True).stdout.splitlines()
    read = [json.loads(line) for line in lines]
    return [record[kind] for record in read if record["type"] == kind]


def history(folder: Path) -> list[dict[str, Any]]:
    return [record["item"] for record in records(folder, "history")]


def saved_log(folder: Path) -> str:
    """The log that is uploaded with the offline run below `folder`."""
    saved = [file["path"] for each in records(folder, "files") for file in each["files"]]
    assert saved == ["log.txt"]
    (path,) = folder.glob("wandb/offline-run-*/files/log.txt")
    assert not path.is_symlink()
    return path.read_text()


def best_of_curve(folder: Path) -> dict[str, dict[str, float]]:
    """The best value of each accuracy and loss of the curve, as in a summary."""
    best: dict[str, dict[str, float]] = {}
    for name in ("train_loss", "train_top1", "val_loss", "val_top1"):
        values = [record[name] for record in read_history(folder) if name in record]
        if values:
            best[name] = {"max": max(values)} if name.endswith("top1") else {"min": min(values)}
    return best


@pytest.mark.parametrize("norm", slow_except(["bn", "evonorm_s0"], ["bn"]))
def test_an_offline_run_has_the_numbers_of_the_row(command: Command, rows: Rows, norm: str) -> None:
    end = command(f"norm={norm}", "batch=4", "probe=spp", "data.val=0.2", *WITH_WANDB)
    assert end.code == 0
    assert (
        "W&B: 1 offline run; upload with `wandb sync runs/default/*/wandb/offline-run-*`" in end.out
    )
    (row,) = rows()
    folder = Path("runs/default") / row.id
    contents = inspected(folder)
    assert (contents["state"], contents["exit_code"], contents["project"]) == (
        "finished",
        0,
        "normbench",
    )
    title = f"{norm} batch=4 seed=0 data.val=0.2 recipe.images=2560"
    assert (contents["name"], contents["notes"]) == (title, f"Training of {title}")
    (started,) = records(folder, "run")
    assert (started["job_type"], started["run_group"]) == ("train", "default")
    assert {norm, "digits_contrast", "resnet8_cifar", "fixed_global_batch"} == set(contents["tags"])
    assert contents["config"].items() >= flatten(row.config).items()
    assert (contents["config"]["id"], contents["config"]["sweep"]) == (row.id, "default")
    origin = {name: getattr(row, name) for name in ORIGIN}
    assert all(origin.values())
    assert contents["config"].items() >= origin.items()
    for key in ("test_top1", "test_loss", "params", "status"):
        assert contents["summary"][key] == pytest.approx(getattr(row, key))
    best = best_of_curve(folder)
    assert len(best) == 4
    for key, values in best.items():
        last = list(read_history(folder))[-1][key] if key == "val_loss" else getattr(row, key)
        assert contents["summary"][key] == pytest.approx({"last": last, **values})
    assert saved_log(folder) == (folder / "log.txt").read_text()
    assert row.wandb.startswith(f"default/{row.id}/wandb/offline-run-")
    assert (Path("runs") / row.wandb).is_dir()
    curve = list(read_history(folder))
    axes = {each["name"]: each.get("step_metric") for each in records(folder, "metric")}
    columns = {name for record in curve for name in record}
    assert axes.items() >= dict.fromkeys(columns - {"step"}, "step").items()
    logged = history(folder)
    assert len(curve) == len(logged)
    assert "spp_variance" in curve[-1]
    for ours, theirs in zip(curve, logged, strict=True):
        assert theirs.items() >= {key: pytest.approx(value) for key, value in ours.items()}.items()


@pytest.mark.slow
def test_two_runs_of_a_sweep_are_two_runs_of_a_group(command: Command, rows: Rows) -> None:
    end = command("-m", "sweeps=demo", "norm=bn", "batch=4", "seed=0,1", *WITH_WANDB)
    assert (end.code, end.err) == (0, "")
    contents = [inspected(Path("runs/demo") / row.id) for row in rows()]
    assert {each["config"]["sweep"] for each in contents} == {"demo"}
    assert len({each["run_id"] for each in contents}) == 2
    assert {each["config"]["seed"] for each in contents} == {0, 1}
    assert "W&B: 3 offline runs" in end.out
    (summary,) = records(Path("runs/demo/summary"), "run")
    assert (summary["job_type"], summary["run_group"]) == ("summary", "demo")


@pytest.mark.slow
def test_runs_share_a_service_that_ends_with_their_sweep(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_CACHE_DIR", str(Path.cwd() / "cache"))
    message = "the shared service cannot be used"
    assert command("-m", "norm=bn", "batch=4", "seed=0,1", *WITH_WANDB).code == 0
    log = Path("runs/default") / rows()[0].id / "log.txt"
    assert message not in log.read_text()
    services = Path("cache/wandb/logs")  # that of the runs, and that of the summary
    assert len(list(services.glob("core-debug-*.log"))) == 2
    rmtree(services)  # a service that starts in the same second has a log of the same name
    assert "WANDB_SERVICE" not in os.environ

    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/no/such/socket")  # as one that was killed
    assert command("norm=bn", "batch=4", "force=true", *WITH_WANDB).code == 0
    assert message in log.read_text()
    assert inspected(log.parent)["exit_code"] == 0
    assert len(list(services.glob("core-debug-*.log"))) == 1


@pytest.mark.slow
def test_a_failed_run_is_failed_in_wandb(command: Command) -> None:
    arguments = (*BROKEN, "norm=broken", "batch=4", *WITH_WANDB)
    assert command(*arguments).code == 1
    folder = Path("runs/default") / cell(*arguments).id
    contents = inspected(folder)
    assert (contents["state"], contents["exit_code"]) == ("failed", 1)
    assert contents["summary"]["status"] == "failed"
    log = (folder / "log.txt").read_text()
    first, traceback = saved_log(folder).split("Traceback", 1)
    assert log.startswith(f"{first}Traceback")
    assert log.endswith(traceback.splitlines()[-1] + "\n")


@pytest.mark.slow
def test_an_interrupted_run_is_interrupted_in_wandb(command: Command) -> None:
    arguments = ["norm=bn", "batch=4", *(word for word in LONG if word != "logger=none")]
    folder = Path("runs/default") / cell(*arguments).id
    stopper = run_when(lambda: is_training(folder), lambda: os.kill(os.getpid(), signal.SIGINT))
    assert command(*arguments).code == 130
    stopper.join()
    assert inspected(folder)["exit_code"] == 130


def test_without_a_logger_there_is_no_wandb_folder(command: Command, rows: Rows) -> None:
    assert command("norm=bn", *SHORT).code == 0
    (row,) = rows()
    assert row.wandb == ""
    assert not list(Path("runs").rglob("wandb"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["variable", "option"])
def test_wandb_is_disabled_by_its_variable_or_an_option(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "variable":
        monkeypatch.setenv("WANDB_MODE", "disabled")
    option = ["logger.mode=disabled"] if how == "option" else []
    assert command("norm=bn", *option, *WITH_WANDB).code == 0
    assert rows()[0].wandb == ""


@pytest.mark.slow
def test_a_forced_run_leaves_one_wandb_run(command: Command, rows: Rows) -> None:
    for _ in range(2):
        assert command("norm=bn", "force=true", *WITH_WANDB).code == 0
    assert inspected(Path("runs/default") / rows()[0].id)["exit_code"] == 0


@pytest.mark.slow
def test_the_environment_names_the_project(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    assert command("norm=bn", *WITH_WANDB).code == 0
    assert inspected(Path("runs/default") / rows()[0].id)["project"] == "mine"


def test_logged_in_users_are_online_by_default(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setenv("WANDB_API_KEY", "local" + 35 * "0")
        monkeypatch.delenv("WANDB_MODE")
        end = command("norm=bn", "batch=4", *WITH_WANDB)
    assert end.code == 0
    (row,) = rows()
    assert row.wandb.startswith(server.address)
    first = server.created[0]
    assert (first["project"], first["groupName"]) == ("normbench", "default")
    assert (first["jobType"], first["notes"]) == ("train", f"Training of {first['displayName']}")
    config, name = server.config(first["name"]), first["name"]
    assert config["norm"] == "bn"
    assert config.items() >= {field: getattr(row, field) for field in ORIGIN}.items()
    folder = Path("runs/default") / row.id
    assert server.files[name, "log.txt"] == (folder / "log.txt").read_bytes()
    for key, values in best_of_curve(folder).items():
        assert server.summary(name)[key].items() >= values.items()
    assert any(sent.get("exitcode") == 0 and sent.get("complete") for sent in server.streamed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_the_best_value_of_a_resumed_run_is_that_of_its_whole_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    curve = [
        {"step": 10, "train_loss": inf, "val_top1": 20.0},
        {"step": 20, "train_loss": 0.5, "val_top1": 80.0},
        {"step": 30, "train_loss": 0.7, "val_top1": 60.0},
    ]
    folder = tmp_path / "default/run"
    description = {"group": "default", "id": "run"}
    with serve() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setenv("WANDB_API_KEY", "local" + 35 * "0")
        options = {"mode": mode, "project": "normbench", "entity": None}
        for past in (0, 2):
            rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            mirror = Mirror(options, folder, description)
            mirror.define_curve(["step", "train_loss", "val_top1"])
            mirror.restore(curve[:past])
            for record in curve[past : past + 2]:
                mirror.log(record)
            mirror.finish(0, {"train_loss": 0.6} if past else {"status": "interrupted"})
            assert mirror.failure == ""
            summary = server.summary("run") if mode == "online" else inspected(folder)["summary"]
            last = (0.6, 60.0) if past else (0.5, 80.0)
            assert summary["train_loss"] == {"last": last[0], "min": 0.5}
            assert summary["val_top1"] == {"last": last[1], "max": 80.0}


@pytest.mark.slow
def test_others_are_offline_by_default_without_a_prompt(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    assert command("norm=bn", *WITH_WANDB).code == 0
    assert "offline-run" in rows()[0].wandb


@pytest.mark.slow
def test_without_an_answer_of_the_server_the_run_is_offline(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "local" + 35 * "0")
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    assert command("norm=bn", *WITH_WANDB).code == 0
    (row,) = rows()
    assert "offline-run" in row.wandb
    assert (
        "the server cannot be used, so this run is offline"
        in (Path("runs/default") / row.id / "log.txt").read_text()
    )
