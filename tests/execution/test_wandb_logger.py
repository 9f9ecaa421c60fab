"""The copy of a run in W&B: read by W&B's own reader, and sent to a server on loopback."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from normbench.records.history import read_history
from normbench.records.json_fields import flatten
from support.cells import BROKEN, LONG, SHORT, cell
from support.commands import Command, Rows
from support.fake_wandb import serve
from support.processes import is_training, run_when
from support.slow import slow_except

WITH_WANDB = [argument for argument in SHORT if argument != "logger=none"]


def inspected(folder: Path) -> dict[str, Any]:
    """What W&B reads in the offline run below `folder`."""
    (offline,) = folder.glob("wandb/offline-run-*")
    script = str(Path(sys.executable).with_name("wandb"))
    words = [script, "leet", "inspect", "--summary", "--json", str(offline)]
    contents: dict[str, Any] = json.loads(
        subprocess.run(words, capture_output=True, check=True).stdout
    )
    return contents


def history(folder: Path) -> list[dict[str, Any]]:
    (offline,) = folder.glob("wandb/offline-run-*")
    script = str(Path(sys.executable).with_name("wandb"))
    words = [script, "leet", "inspect", "--json", str(offline)]
    lines = subprocess.run(words, capture_output=True, check=True, text=True).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    return [record["history"]["item"] for record in records if record["type"] == "history"]


@pytest.mark.parametrize("norm", slow_except(["bn", "evonorm_s0"], ["bn"]))
def test_an_offline_run_has_the_numbers_of_the_row(command: Command, rows: Rows, norm: str) -> None:
    end = command(f"norm={norm}", "batch=4", "probe=spp", *WITH_WANDB)
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
    assert contents["name"] == f"{norm} batch=4 seed=0 recipe.images=2560"
    assert {norm, "digits_contrast", "resnet8_cifar", "fixed_global_batch"} == set(contents["tags"])
    assert contents["config"].items() >= flatten(row.config).items()
    assert (contents["config"]["id"], contents["config"]["sweep"]) == (row.id, "default")
    for key in ("test_top1", "test_loss", "train_loss", "params", "status"):
        assert contents["summary"][key] == pytest.approx(getattr(row, key))
    assert row.wandb.startswith(f"default/{row.id}/wandb/offline-run-")
    assert (Path("runs") / row.wandb).is_dir()
    curve = list(read_history(folder))
    logged = history(folder)
    assert len(curve) == len(logged)
    assert "spp_variance" in curve[-1]
    for ours, theirs in zip(curve, logged, strict=True):
        assert theirs.items() >= {key: pytest.approx(value) for key, value in ours.items()}.items()


def test_two_runs_of_a_sweep_are_two_runs_of_a_group(command: Command, rows: Rows) -> None:
    assert command("-m", "sweeps=demo", "norm=bn", "batch=4", "seed=0,1", *WITH_WANDB).code == 0
    contents = [inspected(Path("runs/demo") / row.id) for row in rows()]
    assert {each["config"]["sweep"] for each in contents} == {"demo"}
    assert len({each["run_id"] for each in contents}) == 2
    assert {each["config"]["seed"] for each in contents} == {0, 1}


@pytest.mark.slow
def test_runs_share_a_service_that_ends_with_their_sweep(
    command: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_CACHE_DIR", str(Path.cwd() / "cache"))
    message = "the shared service cannot be used"
    assert command("-m", "norm=bn", "batch=4", "seed=0,1", *WITH_WANDB).code == 0
    log = Path("runs/default") / rows()[0].id / "log.txt"
    assert message not in log.read_text()
    services = Path("cache/wandb/logs")
    assert len(list(services.glob("core-debug-*.log"))) == 1
    assert "WANDB_SERVICE" not in os.environ

    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/no/such/socket")  # as one that was killed
    assert command("norm=bn", "batch=4", "force=true", *WITH_WANDB).code == 0
    assert message in log.read_text()
    assert inspected(log.parent)["exit_code"] == 0
    assert len(list(services.glob("core-debug-*.log"))) == 2


def test_a_failed_run_is_failed_in_wandb(command: Command) -> None:
    arguments = (*BROKEN, "norm=broken", "batch=4", *WITH_WANDB)
    assert command(*arguments).code == 1
    contents = inspected(Path("runs/default") / cell(*arguments).id)
    assert (contents["state"], contents["exit_code"]) == ("failed", 1)
    assert contents["summary"]["status"] == "failed"


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
    assert json.loads(first["config"])["norm"]["value"] == "bn"
    assert any(sent.get("exitcode") == 0 and sent.get("complete") for sent in server.streamed)


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
