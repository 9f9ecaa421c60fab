"""The summary of a sweep in W&B: what a server on loopback receives is what the command wrote."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normbench import results
from normbench.config.compose import compose
from normbench.config.wandb_options import OFFLINE
from normbench.execution import provenance, sweep_summary
from normbench.execution.job import Summary
from normbench.report import build
from normbench.report.pivot import tables
from normbench.report.table import Table
from support.commands import Command, Rows
from support.fake_wandb import Artifact, Server, serve
from support.rows import RUNS, run
from support.slow import slow_except

GRID = (
    "-m", "norm=bn,gn", "batch=4,8", "model=resnet8", "data=digits", "recipe.images=512",
    "trainer=cpu",
)  # fmt: skip
KEY = "local" + 35 * "0"
#: The rows of three tables; the names of two are too long for W&B and have the same beginning.
WRITTEN = [
    *RUNS,
    *(run("bn", 4, 0, 70.0, options=f"recipe.{60 * 'x'}={value}") for value in ("a", "b")),
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that we are logged in to."""
    with serve() as running:
        monkeypatch.setenv("WANDB_BASE_URL", running.address)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield running


@pytest.fixture
def written(
    _fork_server: None, _figures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a grid and its tables, as a command leaves them before it sends the summary."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for row in WRITTEN:
        results.write(Path("runs/default") / row.id, row)
    build.write(printed_tables(), Path("runs/reports"), Path("runs"))


def send(*words: str, **changes: Any) -> tuple[str, Summary]:
    """Send the summary of a grid of these words; return its address, and the failures with it."""
    cells, settings = compose([*(words or GRID)])
    assert settings is not None
    summary = Summary(**{"trained": 1, **changes})
    return sweep_summary.send(cells, settings, summary, [], printed_tables()), summary


def summary_run(server: Server) -> dict[str, Any]:
    """Return the variables that created the one summary run."""
    runs = {each["name"]: each for each in server.created if each["jobType"] == "summary"}
    (run,) = runs.values()
    return run


def printed_tables() -> list[Table]:
    return tables(build.specs(["batch_size"]), results.read("runs"), root=Path("runs"))


def media(server: Server, section: str) -> dict[str, tuple[dict[str, Any], bytes]]:
    """Return name, description and content of what the summary run shows in a section."""
    name = summary_run(server)["name"]
    return {
        key.removeprefix(f"{section}/"): (shown, server.files[name, shown["path"]])
        for key, shown in server.summary(name).items()
        if key.startswith(f"{section}/")
    }


def assert_tables_equal_printed(server: Server) -> None:
    """Compare all cells, in what the run shows and in the artifacts that W&B makes of tables."""
    tables = printed_tables()
    shown = [json.loads(content) for _, content in media(server, "tables").values()]
    sent = [artifact for artifact in server.artifacts if artifact.type == "run_table"]
    uploaded = [
        json.loads(content)
        for artifact in sent[-len(tables) :]
        for name, content in artifact.files.items()
        if name.endswith(".table.json")
    ]
    for received in (shown, uploaded):
        grids = [(table["columns"], table["data"]) for table in received]
        assert sorted(grids) == sorted(table.grid() for table in tables)


def assert_rows_equal_files(artifact: Artifact) -> None:
    files = {str(path.relative_to("runs")): path for path in Path("runs").glob("*/*/row.json")}
    assert artifact.committed
    assert artifact.files.keys() == {*files, "wandb_manifest.json"}
    assert all(artifact.files[name] == path.read_bytes() for name, path in files.items())


def assert_figures_equal_files(server: Server, number: int) -> None:
    shown = media(server, "figures")
    files = sorted(map(str, Path("runs/reports").rglob("*.png")))
    assert sorted(f"runs/reports/{name}.png" for name in shown) == files
    assert len(files) == number
    for name, (description, content) in shown.items():
        assert content == Path(f"runs/reports/{name}.png").read_bytes()
        assert description["sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.figures
def test_the_summary_has_tables_figures_and_rows(written: None, server: Server) -> None:
    address, summary = send()
    assert summary.wandb_failures == []
    run = summary_run(server)
    assert address == f"{server.address}/me/normbench/runs/{run['name']}"
    assert (run["displayName"], run["groupName"]) == ("default", "default")
    assert run["notes"] == "Tables, figures and rows of the sweep default"
    config = server.config(run["name"])
    assert (config["sweep"], config["versions"]) == ("default", provenance.versions())
    assert config["commit"] == provenance.commit()
    assert server.summary(run["name"])["rows"] == len(WRITTEN)
    assert_figures_equal_files(server, 1)
    assert_tables_equal_printed(server)
    (rows,) = [artifact for artifact in server.artifacts if artifact.type == "rows"]
    assert_rows_equal_files(rows)


@pytest.mark.slow
def test_the_next_summary_continues_the_run(written: None, server: Server) -> None:
    send()
    first = summary_run(server)["name"]
    row = run("ln", 4, 0, 70.0)
    results.write(Path("runs/default") / row.id, row)
    send()
    assert summary_run(server)["name"] == first
    assert [line["_step"] for line in server.lines("wandb-history.jsonl", first)] == [0, 1]
    assert_tables_equal_printed(server)
    rows = [artifact for artifact in server.artifacts if artifact.type == "rows"]
    assert len(rows) == 2
    assert rows[0].name == rows[1].name
    assert_rows_equal_files(rows[1])


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (("norm=bn",), {}),
        ((*GRID, "logger=none"), {}),
        ((*GRID, "logger.mode=disabled"), {}),
        (GRID, {"trained": 0, "reused": 4}),
        (GRID, {"interrupted": 2}),
    ],
    ids=["one cell", "no logger", "disabled", "nothing new", "interrupted"],
)
def test_nothing_is_sent(
    written: None, server: Server, words: tuple[str, ...], changes: dict[str, int]
) -> None:
    address, summary = send(*words, **changes)
    assert (address, summary.wandb_failures, server.created) == ("", [], [])
    assert not Path("runs/default/summary/wandb").exists()


@pytest.mark.slow
def test_a_server_that_the_runs_could_not_use_is_not_asked_again(
    written: None, server: Server
) -> None:
    failure = f"bn: the server cannot be used, {OFFLINE}: no answer"
    address, summary = send(wandb_failures=[failure])
    assert address.startswith("default/summary/wandb/offline-run-")
    assert summary.wandb_failures == [failure]
    assert server.operations == []


@pytest.mark.parametrize(
    "place",
    slow_except(["default/summary", "default/summary/wandb"], ["default/summary/wandb"]),
)
def test_a_folder_that_cannot_be_written_is_a_failure(written: None, place: str) -> None:
    blocked = Path("runs", place)
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file in the place of the folder")
    address, summary = send(*GRID, "logger.mode=offline")
    assert address == ""
    (failure,) = summary.wandb_failures
    assert failure.startswith("summary of the sweep: ")


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["CreateArtifact ", "upsertBucket", "createRunFiles"])
def test_a_server_that_stops_answering_is_a_failure(
    written: None, server: Server, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "2")
    server.silent_after = operation
    _, summary = send()
    (failure,) = summary.wandb_failures
    assert failure.startswith("summary of the sweep: ")


@pytest.mark.slow
@pytest.mark.figures
def test_a_command_sends_the_summary_when_it_has_trained(
    command: Command, rows: Rows, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    end = command(*GRID)
    assert (end.code, end.err) == (0, "")
    name = summary_run(server)["name"]
    assert f"W&B: tables, figures and rows: {server.address}/me/normbench/runs/{name}" in end.out
    assert_figures_equal_files(server, 2)
    assert_rows_equal_files(server.artifacts[-1])
    before = len(server.created)
    assert command(*GRID).code == 0
    assert len(server.created) == before


@pytest.mark.slow
@pytest.mark.figures
def test_an_offline_summary_is_uploaded_by_the_command_that_is_printed(
    command: Command, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(2):  # the second replaces the files of the first
        end = command(*GRID, f"seed={seed}", "logger.project=other")
    assert (end.code, end.err) == (0, "")
    assert "W&B: 4 offline runs; upload with" in end.out  # gn has one run for two cells
    assert not server.created
    assert len(list(Path("runs/default/summary/wandb").glob("offline-run-*"))) == 1
    (upload,) = re.findall(r"upload with `(wandb sync .*)`", end.out)
    monkeypatch.delenv("WANDB_MODE")
    script = f"{Path(sys.executable).parent}/{upload}"
    subprocess.run(script, shell=True, check=True, capture_output=True)
    assert summary_run(server)["project"] == "other"
    assert_figures_equal_files(server, 2)
    (rows,) = [each for each in server.artifacts if each.type == "rows"]
    assert_rows_equal_files(rows)
    assert_tables_equal_printed(server)


@pytest.mark.slow
def test_a_summary_that_fails_is_one_line(command: Command) -> None:
    Path("runs/default").mkdir(parents=True)
    Path("runs/default/summary").write_text("a file in the place of the folder")
    end = command(*GRID)
    assert end.code == 0
    (line,) = end.err.splitlines()
    assert line.startswith("warning: W&B lacks records: summary of the sweep: ")
