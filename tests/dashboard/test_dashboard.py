"""Dashboards: what is written, what a server on loopback receives, and that runs log their keys."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normbench import results
from normbench.config.files import ROOT
from normbench.dashboard import __main__ as dashboard
from normbench.records.history import read_history
from normbench.records.json_fields import flatten
from normbench.report import build, exports
from support.commands import Command, Rows
from support.fake_wandb import Server, serve
from support.processes import services, wait_for, wait_until_gone
from support.rows import batch_size_tables, dense, run

(SPEC,) = build.specs(["batch_size"])
REPORT = f"{SPEC.name}: {SPEC.title}"
KEY = "local" + 35 * "0"

TRAINED = [run("bn", batch, seed, 80.0 + batch) for batch in (4, 8) for seed in (0, 1)]
SHARED = run("gn", 4, 0, 88.0)
RUNS = [
    *TRAINED,
    run("bn", 2, 0, 10.0, status="diverged"),
    SHARED,
    run("gn", 8, 0, 88.0, shared_with=SHARED.id),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with finished runs, and nobody is logged in."""
    for row in RUNS:
        results.write(tmp_path / "runs" / "default" / row.id, row)
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_MODE", "offline")  # as where runs have no network
    return tmp_path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that we are logged in to."""
    with serve() as running:
        monkeypatch.setenv("WANDB_BASE_URL", running.address)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield running


def written(*words: str) -> dict[str, dict[str, Any]]:
    """What --dry-run writes, by name."""
    assert dashboard.main(["--dry-run", *words]) == 0
    return {
        path.stem: json.loads(path.read_text()) for path in sorted(Path("out/dashboard").iterdir())
    }


def named(nested: Any, key: str) -> list[Any]:
    """The values of `key` at whatever depth."""
    if not isinstance(nested, dict | list):
        return []
    own = [nested[key]] if isinstance(nested, dict) and key in nested else []
    below = nested.values() if isinstance(nested, dict) else nested
    return own + [value for each in below for value in named(each, key)]


def test_the_workspace_has_its_sections_and_keeps_experiments_apart(folder: Path) -> None:
    section = written("reports=out")["workspace"]["section"]
    names = [each["name"] for each in section["panelBankConfig"]["sections"]]
    assert names == [
        "Accuracy over images per worker", "Training curves", "Throughput and memory", "Divergences"
    ]  # fmt: skip
    (runs,) = section["runSets"]
    assert [key["name"] for key in runs["grouping"]] == ["norm.value", "batch.value"]
    (only,) = runs["filters"]["filters"]
    assert (only["key"]["name"], only["op"], only["value"]) == ("jobType", "!=", "summary")
    other = run("bn", 4, 0, 80.0, workers=8, model="resnet8", protocol="fixed_workers")
    results.write(folder / "runs" / "default" / other.id, other)
    (runs,) = written("reports=out")["workspace"]["section"]["runSets"]
    assert [key["name"].removesuffix(".value") for key in runs["grouping"]] == [
        "model", "protocol", "workers", "norm", "batch"
    ]  # fmt: skip


def test_runs_of_other_tasks_have_panels_of_their_metric(folder: Path) -> None:
    for row in dense("bn", 2, [20.0, 30.0], "detect", "test_box_map"):
        results.write(folder / "runs" / "default" / row.id, row)
    boards = written("reports=out", "batch_size")
    titles = named(boards["workspace"], "chartTitle")
    precision = "mean average precision of boxes (%)"
    for title in (f"test {precision}", "test accuracy (%)"):
        assert f"{title} over images per worker" in titles
    assert {f"validation {precision}", "validation accuracy (%)", "training loss"} <= {*titles}
    columns = {name for names in named(boards, "columnOrder") for name in names}
    assert {"summary:test_box_map", "summary:test_top1"} <= columns
    assert f"test {precision} over images per worker" in named(
        boards["report-batch_size"], "chartTitle"
    )


def test_without_classifiers_there_is_no_accuracy(tmp_path: Path, folder: Path) -> None:
    rows = dense("bn", 2, [20.0, 30.0], "segment", "test_miou")
    for row in rows:
        results.write(folder / "dense" / "default" / row.id, row)
    board = written("runs=dense", "reports=out")["workspace"]
    names = [each["name"] for each in board["section"]["panelBankConfig"]["sections"]]
    assert names[0] == "Over images per worker"
    assert not [title for title in named(board, "chartTitle") if "accuracy" in title]
    assert "summary:test_top1" not in named(board, "columnOrder")[0]


def test_a_page_has_the_table_and_the_runs_that_were_trained_for_it(folder: Path) -> None:
    page = written("reports=out", "batch_size")["report-batch_size"]
    texts = [text for text in named(page["blocks"], "text") if text]
    assert texts[0].startswith("Accuracy over images per worker: ")
    assert texts[0].endswith(" File: reports/tables/batch_size.yaml.")
    (table,) = [block for block in page["blocks"] if block["type"] == "markdown-block"]
    assert table["content"] == exports.table_markdown(*batch_size_tables(results.read("runs")))
    (grid,) = [block for block in page["blocks"] if block["type"] == "panel-grid"]
    (runs,) = grid["metadata"]["runSets"]
    filters = {each["key"]["name"]: each["value"] for each in runs["filters"]["filters"]}
    assert filters["id"] == sorted(row.id for row in RUNS if row.shared_with is None)
    assert (filters["norm"], filters["protocol"]) == (["bn", "gn"], ["fixed_global_batch"])
    panels = grid["metadata"]["panelBankSectionConfig"]["panels"]
    assert {"Scatter Plot", "Bar Chart", "Run History Line Plot"} <= set(named(panels, "viewType"))


def test_the_page_of_a_papers_table_names_its_source_and_shows_its_numbers(folder: Path) -> None:
    changes = {"data": "imagenet", "model": "resnet50", "recipe": "evonorm_resnet_90"}
    own = run("bn", 32, 0, 76.0, workers=8, protocol="fixed_workers", **changes)
    results.write(folder / "runs" / "default" / own.id, own)
    blocks = written("reports=out", "evonorm_9")["report-evonorm_9"]["blocks"]
    assert any("Source: EvoNorm (Liu et al. 2020), appendix E, table 9." in text
               for text in named(blocks, "text"))  # fmt: skip
    assert "test top-1 accuracy (%) over images per worker" in named(blocks, "chartTitle")


def test_what_is_saved_is_what_a_dry_run_writes_and_takes_the_place_of_the_old(
    folder: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = written("reports=out", "batch_size")
    assert not server.operations
    assert written("reports=out", "batch_size") == expected
    capsys.readouterr()
    for _ in range(2):
        assert dashboard.main(["batch_size"]) == 0
        boards = {name: server.saved(name) for name in ("normbench", "normbench-diverged", REPORT)}
        assert list(boards.values()) == [
            expected[name] for name in ("workspace", "workspace-diverged", "report-batch_size")
        ]
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"workspace: {server.address}/me/normbench?nw=normbench"
        assert lines[2].startswith(f"report-batch_size: {server.address}/me/normbench/reports/")
    assert len(server.views) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "score"),
    [
        (("recipe.images=512", "data.val=0.2"), "top1"),
        (
            (
                "task=segment", "data.scenes=60", "data.test_scenes=10", "data.size=40",
                "model.width=4", "global_batch=8", "recipe.images=64",
            ),
            "miou",
        ),
    ],
    ids=["classify", "segment"],
)  # fmt: skip
def test_an_uploaded_offline_run_is_the_row_and_has_all_that_dashboards_show(
    more: tuple[str, ...],
    score: str,
    command: Command,
    rows: Rows,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("norm=bn", "batch=4", "trainer=cpu", *more)
    end = command(*words)
    assert end.code == 0, end.err
    (upload,) = re.findall(r"upload with `(wandb sync .*)`", end.out)
    monkeypatch.delenv("WANDB_MODE")
    script = f"{Path(sys.executable).parent}/{upload}"
    subprocess.run(script, shell=True, check=True, capture_output=True)

    (row,) = rows()
    config = server.config(server.created[0]["name"])
    del config["_wandb"]
    fields = ("id", "options", "commit", "versions", "cpu", "threads", "impl", "devices")
    origin = {name: getattr(row, name) for name in fields}
    assert config == {**flatten(row.config), **origin, "sweep": "default"}
    curve = list(read_history(Path("runs/default") / row.id))
    lines = server.lines("wandb-history.jsonl")
    history = [line for line in lines if "predictions" not in line]  # that is a picture
    assert len(lines) - len(history) == (score != "top1")
    for ours, theirs in zip(curve, history, strict=True):
        assert theirs.items() >= {key: pytest.approx(value) for key, value in ours.items()}.items()
    summary = server.lines("wandb-summary.json")[-1]
    values = {**vars(row), **row.metrics}
    assert summary[f"val_{score}"]["last"] == values[f"val_{score}"]
    assert summary[f"test_{score}"] == values[f"test_{score}"]
    for key in ("images_per_second", "peak_memory", "status", "devices"):
        assert summary[key] == getattr(row, key)
    assert summary["diverged"] == (row.status == "diverged")

    boards = written("reports=out").values()
    drawn = {key for keys in named(list(boards), "metrics") for key in keys}
    assert drawn <= summary.keys()
    columns = {name for names in named(list(boards), "columnOrder") for name in names}
    known = {f"config:{key}.value" for key in config} | {f"summary:{key}" for key in summary}
    assert columns <= known | {"run:displayName"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["batch_siez"], "table batch_siez is unknown; did you mean batch_size?"),
        (["runs=nowhere"], "runs=nowhere is no folder; `python -m normbench` trains into runs/"),
        (["proyect=x"], "proyect=x is unknown; did you mean project?"),
        (["--dry"], "--dry is unknown; did you mean --dry-run?"),
        (["reports=there"], "reports=there is only for --dry-run"),
        (["project=../x"], "project=../x: such a name in W&B has 1 to 128 letters and none of /"),
        (["--dry-run", "entity=a/b"], "entity=a/b: such a name in W&B has 1 to 128 letters"),
        (["--dry-run", "reports=/proc/x"], "/proc/x/dashboard cannot be written"),
        ([], "not logged in: `wandb login`, or WANDB_API_KEY in the environment"),
    ],
)
def test_words_that_cannot_be_used(
    folder: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dashboard.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"normbench.dashboard: {says}")
    assert said.err.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["runs"]


def test_a_server_that_does_not_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboard, "PATIENCE", 1)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert dashboard.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "the W&B server does not answer, or not to this key" in said.err
    assert "http://127.0.0.1:9" in said.err


def test_a_damaged_row_is_named_and_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = Path("runs/default/damaged/row.json")
    damaged.parent.mkdir()
    damaged.write_text("{")
    assert dashboard.main(["--dry-run", "reports=out"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"left out: {damaged} is not JSON" in line
    assert Path("out/dashboard/workspace.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["refuses the key", "another kind of server", "answers without data", "fails"]
)
def test_a_server_that_is_of_no_use(folder: Path, server: Server, fault: str) -> None:
    server.fault = fault
    # In a process of its own, as wandb does not wait for a service that was killed.
    said = subprocess.run(
        [sys.executable, "-m", "normbench.dashboard"],
        cwd=folder, text=True, capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert "the W&B server does not answer, or not to this key" in said.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stuck", ["the server", "the server later", "the service"])
def test_nothing_is_waited_for_without_end(folder: Path, server: Server, stuck: str) -> None:
    if stuck == "the server":
        server.fault = "silent"
    elif stuck == "the server later":
        server.silent_after = "upsertView"
    with subprocess.Popen(
        [sys.executable, "-m", "normbench.dashboard"],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        try:
            if stuck == "the service":
                wait_for(lambda: bool(services(folder)))
                os.kill(services(folder)[0], signal.SIGSTOP)
            _, error = command.communicate(timeout=120)
        finally:
            command.kill()
    assert command.returncode == 2
    assert error.count("\n") == 1, error
    assert "the W&B server does not answer" in error
    wait_until_gone(folder)


def test_a_project_that_is_not_there(
    folder: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dashboard.main(["project=other", "entity=team"]) == 2
    said = capsys.readouterr()
    assert "Project other does not exist under entity team" in said.err
    assert not server.views


def test_without_wandb_workspaces(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None)
    assert dashboard.main(["--dry-run"]) == 2
    assert "pip install 'normbench[dashboard]'" in capsys.readouterr().err


def test_help_lists_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert dashboard.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "--dry-run" in out
    assert re.search("Tables: .*batch_size", out)


def test_the_commands_of_the_guide(folder: Path, server: Server) -> None:
    text = (ROOT / "docs" / "guide" / "wandb.md").read_text()
    lines = [line.partition("  #")[0].split() for line in text.splitlines()]
    own = [words[3:] for words in lines if words[:3] == ["python", "-m", "normbench.dashboard"]]
    assert len(own) == 3
    assert all(dashboard.main(words) == 0 for words in own)


def test_the_private_names_of_wandb_workspaces_are_there() -> None:
    # --dry-run serializes as save() does, which no public method offers; a workspace is replaced by
    # its internal id and name.
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.workspaces.internal import get_view_dict

    board = ws.Workspace(entity="me", project="normbench")
    assert {"_internal_id", "_internal_name"} <= vars(board).keys()
    for each in (board, wr.Report(title="one", entity="me", project="normbench")):
        assert each._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)[0] == "{"
    assert list(inspect.signature(get_view_dict).parameters) == ["entity", "project", "view_name"]
