"""Workspaces and report pages of W&B: two workspaces of a project, one page for each table.

They use keys that runs log, which `normbench.execution.wandb_logger` writes. Keys with a dot, as
norm.groups, cannot be used, because W&B reads them as paths; `options` has all of them in one
string.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr
from wandb_workspaces.workspaces.internal import get_view_dict

from normbench.config.files import TABLES, comment
from normbench.report.exports import table_markdown
from normbench.report.metrics import METRICS, metric_of_task
from normbench.report.table import Table
from normbench.results import Row

Dashboard = ws.Workspace | wr.Report

# Options fixed in a comparison of normalizers, and those compared.
SETTING = ("data", "model", "recipe", "reg", "protocol", "precision")
COMPARED = ("norm", "batch")
ACCURACY = {"test_top1": "test accuracy (%)"}
SUMMARY = "summary"  # job type of the summary of a sweep, which is no training
SHOWN = 100  # lines or bars in a panel; W&B's default of 10 would drop most of a table


@contextmanager
def _steady_ids() -> Iterator[None]:
    """Give panels reproducible ids, which W&B draws from `random`."""
    before = random.getstate()
    random.seed("normbench")
    try:
        yield
    finally:
        random.setstate(before)


@_steady_ids()
def workspace(rows: Sequence[Row], project: str, entity: str = "") -> ws.Workspace:
    """Return the overview of a project; means are over runs that differ only in their seed.

    The keys by which W&B groups its runs are those in which `rows` differ. `entity`, the owner of
    the project, is needed only to save.
    """
    metrics = main_metrics(rows)
    title = "Accuracy over images per worker" if metrics == ACCURACY else "Over images per worker"
    panels = {
        title: [panel for metric in metrics.items() for panel in _over(*metric)],
        "Training curves": _curves(metrics),
        "Throughput and memory": _cost(),
        "Divergences": _divergences(),
    }
    shown = ws.RunsetSettings(
        filters=expr.And(expr.Metric("JobType") != SUMMARY),
        groupby=[ws.Config(key) for key in grouping(rows)],
        pinned_columns=_columns(metrics),
    )
    return _workspace("normbench", panels, shown, project, entity)


@_steady_ids()
def diverged(rows: Sequence[Row], project: str, entity: str = "") -> ws.Workspace:
    """Return the workspace of all diverged runs; `rows` are those of all runs."""
    metrics = main_metrics(rows)
    only = expr.And(ws.Summary("status").isin(["diverged"]))
    shown = ws.RunsetSettings(filters=only, pinned_columns=_columns(metrics))
    panels = {"Training curves": _curves(metrics)}
    return _workspace("normbench-diverged", panels, shown, project, entity)


@_steady_ids()
def report(
    tables: Sequence[Table], rows: Sequence[Row], project: str, entity: str = ""
) -> wr.Report:
    """Return the report page of a table in all settings; `rows` are those of all runs."""
    spec = tables[0].spec
    file = f"reports/tables/{spec.name}.yaml"
    source = f" Source: {spec.source}." if spec.source else ""
    description = f"{comment(TABLES / f'{spec.name}.yaml')}{source} File: {file}."
    by_id = {row.id: row for row in rows}
    return wr.Report(
        title=f"{spec.name}: {spec.title}"[:128],  # longer titles are refused by W&B
        description=description,
        blocks=[wr.P(description), *(block for table in tables for block in _blocks(table, by_id))],
        width="fluid",
        project=project,
        entity=entity,
    )


def spec(dashboard: Dashboard) -> dict[str, Any]:
    """Return what the server stores of `dashboard`."""
    # save() makes this private call and there is no public one; hence the pin in pyproject.toml.
    text = dashboard._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    content: dict[str, Any] = json.loads(text)
    return content


def replace(dashboard: Dashboard, api: wandb.Api) -> None:
    """Make `dashboard` replace the saved one of the same name, if there is one.

    Raises:
        ValueError: the project does not exist.
    """
    if isinstance(dashboard, wr.Report):
        saved = api.reports(f"{dashboard.entity}/{dashboard.project}")
        dashboard.id = next((each.id for each in saved if each.display_name == dashboard.title), "")
        return
    with suppress(ValueError):  # none has this name
        view = get_view_dict(dashboard.entity, dashboard.project, dashboard.name)
        dashboard._internal_id = view["id"]


def main_metrics(rows: Sequence[Row]) -> dict[str, str]:
    """Return the label of each main metric of the tasks of `rows`; without rows, the accuracy."""
    labels = {row.metric: ACCURACY.get(row.metric, metric_of_task(row).label) for row in rows}
    return labels or ACCURACY


def grouping(rows: Sequence[Row]) -> list[str]:
    """Return the keys by which runs are grouped: those that differ, then the compared ones."""
    keys = [key for key in (*SETTING, "options") if len({getattr(row, key) for row in rows}) > 1]
    # Usually the number of workers follows from `batch`; if not, group by it too.
    if len({(row.batch, row.workers) for row in rows}) > len({row.batch for row in rows}):
        keys.append("workers")
    return [*keys, *COMPARED]


def _blocks(table: Table, rows: Mapping[str, Row]) -> list[Any]:
    """Return a table, and panels of the runs that were trained for it."""
    # Of entries that share a computation, W&B has one run.
    ids = {row.shared_with or row.id: row for row in table.runs}
    trained = [rows.get(id_, row) for id_, row in ids.items()]
    main = main_metrics(trained)
    shown = [entry.metric for entry in table.entries]
    # W&B has what rows have; a table of a derived metric gets panels of the main one.
    measured = {
        name: metric.label
        for name, metric in METRICS.items()
        if metric in shown and (name in Row.__dataclass_fields__ or metric.of_task)
    } or main
    runs = wr.Runset(
        name="trained runs of this table",
        filters=_filter(trained),
        groupby=[f"config.{key}" for key in grouping(trained)],
        pinned_columns=_columns(main),
    )
    over_batch = [panel for key, label in measured.items() for panel in _over(key, label)]
    count = "the run" if len(trained) == 1 else f"the {len(trained)} runs"
    below = (
        f"Below: {count} behind this table, as far as W&B has them. Entries of one computation "
        "share one run, at the images per worker at which it was trained."
    )
    panels = [*over_batch, *_curves(main), *_cost(), *_divergences()]
    grid = wr.PanelGrid(runsets=[runs], panels=panels)
    return [wr.MarkdownBlock(table_markdown(table)), wr.P(below), grid]


def _filter(rows: Sequence[Row]) -> expr.And:
    """Return a filter for exactly `rows`, by id.

    It has the other keys too: without the ids, it shows later runs of the same experiments. A key
    is left out if W&B, which writes the filter as an expression and parses it, would misread it.
    """
    values = {key: sorted({getattr(row, key) for row in rows}) for key in (*SETTING, "norm", "id")}
    return expr.And(
        *(
            ws.Config(key).isin(wanted)
            for key, wanted in values.items()
            if all(re.fullmatch(r"[\w ./,+-]*", value) for value in wanted)
        )
    )


def _over(key: str, label: str) -> list[Any]:
    """Return panels of a metric over images per worker."""
    x, y = wr.Config("batch"), wr.SummaryMetric(key)
    title = f"{label} over images per worker"
    return [wr.ScatterPlot(title=title, x=x, y=y, log_x=True), _bars(key, label)]


def _columns(metrics: Iterable[str]) -> list[str]:
    """Return the columns that stand beside the names of runs."""
    return [
        *(f"config:{key}.value" for key in (*COMPARED, "seed", "options", *SETTING)),
        *(f"summary:{key}" for key in ("status", "reason", *metrics, "devices", "plan")),
    ]


def _curves(metrics: Mapping[str, str]) -> list[Any]:
    """Return panels of the loss of the training and of the main metrics of the validation."""
    curves = {"train_loss": "training loss"}
    for name, label in metrics.items():
        key, title = name.removeprefix("test_"), label.removeprefix("test ")
        if name in ACCURACY:  # other tasks measure another score in training
            curves[f"train_{key}"] = f"training {title}"
        curves[f"val_{key}"] = f"validation {title}"
    means: dict[str, Any] = {
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "max_runs_to_show": SHOWN,
    }
    return [
        wr.LinePlot(title=title, x="epoch", y=[key], title_x="epoch", **means)
        for key, title in curves.items()
    ]


def _cost() -> list[Any]:
    return [
        _bars("images_per_second", "images per second of training"),
        _bars("peak_memory", "most memory in use (bytes)"),
    ]


def _divergences() -> list[Any]:
    return [
        wr.ScalarChart(title="runs that diverged", metric="diverged", groupby_aggfunc="sum"),
        _bars("diverged", "runs that diverged", "sum"),
    ]


def _bars(key: str, title: str, how: Literal["mean", "sum"] = "mean") -> wr.BarPlot:
    """Return a panel with a bar for each group of runs."""
    return wr.BarPlot(
        title=title, metrics=[key], groupby_aggfunc=how, max_runs_to_show=SHOWN,
        groupby_rangefunc="stddev" if how == "mean" else None, max_bars_to_show=SHOWN,
    )  # fmt: skip


def _workspace(
    name: str, panels: Mapping[str, list[Any]], shown: ws.RunsetSettings, project: str, entity: str
) -> ws.Workspace:
    """Return a workspace with a section for each group of panels."""
    board = ws.Workspace(
        name=name,
        sections=[
            ws.Section(name=title, panels=group, is_open=True) for title, group in panels.items()
        ],
        settings=ws.WorkspaceSettings(max_runs=SHOWN),
        runset_settings=shown,
        project=project,
        entity=entity,
    )
    board._internal_name = f"nw-{name}-v"  # otherwise every save would create another workspace
    return board
