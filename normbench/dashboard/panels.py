"""Workspaces and report pages of W&B: two workspaces of a project, one page for each table.

They use keys that runs log: `normbench.execution.wandb_logger` writes the config,
`normbench.execution.worker` the summary. Keys with a dot, as norm.groups, cannot be used, because
W&B reads them as paths; `options` has all of them in one string.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr
from wandb_workspaces.workspaces.internal import get_view_dict

from normbench.results import Row

Dashboard = ws.Workspace | wr.Report

# Options fixed in a comparison of normalizers, and those compared.
SETTING = ("data", "model", "recipe", "reg", "protocol", "precision")
COMPARED = ("norm", "batch")
ACCURACY = ("test_top1", "test accuracy (%)")
CURVES = {
    "train_loss": "training loss",
    "train_top1": "training accuracy (%)",
    "val_top1": "validation accuracy (%)",
}
COLUMNS = (
    *(f"config:{key}.value" for key in (*COMPARED, "seed", "options", *SETTING)),
    *(f"summary:{key}" for key in ("status", "reason", "test_top1", "devices", "plan")),
)
SHOWN = 100  # lines or bars in a panel; W&B's default of 10 would drop most of a table


@dataclass(frozen=True)
class Section:
    """A section of a report page.

    Args:
        markdown: the table with heading and footnotes.
        trained: its trained runs; of entries that share a computation, W&B has one run.
        measured: metrics of the table, labels by key.
    """

    markdown: str
    trained: Sequence[Row]
    measured: Mapping[str, str]


@dataclass(frozen=True)
class ReportPage:
    """Content of a report page: name, title and source of a table, and its sections."""

    name: str
    title: str
    source: str
    parts: Sequence[Section]


def workspace(rows: Sequence[Row], project: str, entity: str = "") -> ws.Workspace:
    """Return the overview of a project; means are over runs that differ only in their seed.

    Args:
        rows: of the runs; they determine the keys by which runs are grouped.
        project: in W&B.
        entity: owner of the project; needed only to save.
    """
    with _steady_ids():
        sections = [
            ws.Section(
                name="Accuracy over images per worker", panels=_over(*ACCURACY), is_open=True
            ),
            ws.Section(name="Training curves", panels=_curves(), is_open=True),
            ws.Section(name="Throughput and memory", panels=_cost(), is_open=True),
            ws.Section(name="Divergences", panels=_divergences(), is_open=True),
        ]
    shown = ws.RunsetSettings(
        groupby=[ws.Config(key) for key in grouping(rows)], pinned_columns=list(COLUMNS)
    )
    return _workspace("normbench", sections, shown, project, entity)


def diverged(project: str, entity: str = "") -> ws.Workspace:
    """Return the workspace of all diverged runs."""
    with _steady_ids():
        sections = [ws.Section(name="Training curves", panels=_curves(), is_open=True)]
    only = expr.And(ws.Summary("status").isin(["diverged"]))
    shown = ws.RunsetSettings(filters=only, pinned_columns=list(COLUMNS))
    return _workspace("normbench-diverged", sections, shown, project, entity)


def report(page: ReportPage, project: str, entity: str = "") -> wr.Report:
    """Return the report page of a table.

    Args:
        page: its content.
        project: in W&B.
        entity: owner of the project; needed only to save.
    """
    with _steady_ids():
        blocks = [wr.P(page.source), *(block for part in page.parts for block in _blocks(part))]
    return wr.Report(
        title=f"{page.name}: {page.title}"[:128],  # longer titles are refused by W&B
        description=page.source,
        blocks=blocks,
        width="fluid",
        project=project,
        entity=entity,
    )


def spec(dashboard: Dashboard) -> dict[str, Any]:
    """Return what the server stores of `dashboard`."""
    # save() makes this private call and there is no public one; hence the pin in pyproject.toml.
    text = dashboard._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    found: dict[str, Any] = json.loads(text)
    return found


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


def grouping(rows: Sequence[Row]) -> list[str]:
    """Return the keys by which runs are grouped: those that differ, then the compared ones."""
    keys = [key for key in (*SETTING, "options") if len({getattr(row, key) for row in rows}) > 1]
    # Usually the number of workers follows from `batch`; if not, group by it too.
    if len({(row.batch, row.workers) for row in rows}) > len({row.batch for row in rows}):
        keys.append("workers")
    return [*keys, *COMPARED]


def _blocks(part: Section) -> list[Any]:
    runs = wr.Runset(
        name="trained runs of this table",
        filters=_filter(part.trained),
        groupby=[f"config.{key}" for key in grouping(part.trained)],
        pinned_columns=list(COLUMNS),
    )
    over_batch = [panel for key, label in part.measured.items() for panel in _over(key, label)]
    panels = [*(over_batch or _over(*ACCURACY)), *_curves(), *_cost(), *_divergences()]
    number = len(part.trained)
    what = "the run" if number == 1 else f"the {number} runs"
    below = (
        f"Below: {what} behind this table, as far as W&B has them. Entries of one computation "
        "share one run, at the images per worker at which it was trained."
    )
    return [
        wr.MarkdownBlock(part.markdown),
        wr.P(below),
        wr.PanelGrid(runsets=[runs], panels=panels),
    ]


def _filter(rows: Sequence[Row]) -> expr.And:
    """Return a filter for exactly `rows`, by id.

    It has the other keys too: without the ids, it shows later runs of the same experiments.
    """
    values = {key: sorted({getattr(row, key) for row in rows}) for key in (*SETTING, "norm", "id")}
    return expr.And(*(ws.Config(key).isin(found) for key, found in values.items()))


def _over(key: str, label: str) -> list[Any]:
    """Return panels of a metric over images per worker."""
    x, y = wr.Config("batch"), wr.SummaryMetric(key)
    title = f"{label} over images per worker"
    return [wr.ScatterPlot(title=title, x=x, y=y, log_x=True), _bars(key, label)]


def _curves() -> list[Any]:
    return [
        wr.LinePlot(
            title=title,
            x="epoch",
            y=[key],
            title_x="epoch",
            groupby_aggfunc="mean",
            groupby_rangefunc="stddev",
            max_runs_to_show=SHOWN,
        )
        for key, title in CURVES.items()
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
        title=title,
        metrics=[key],
        groupby_aggfunc=how,
        groupby_rangefunc="stddev" if how == "mean" else None,
        max_runs_to_show=SHOWN,
        max_bars_to_show=SHOWN,
    )


def _workspace(
    name: str, sections: list[ws.Section], shown: ws.RunsetSettings, project: str, entity: str
) -> ws.Workspace:
    made = ws.Workspace(
        name=name,
        sections=sections,
        settings=ws.WorkspaceSettings(max_runs=SHOWN),
        runset_settings=shown,
        project=project,
        entity=entity,
    )
    made._internal_name = f"nw-{name}-v"  # otherwise every save would create another workspace
    return made


@contextmanager
def _steady_ids() -> Iterator[None]:
    """Give panels reproducible ids, which W&B draws from `random`."""
    before = random.getstate()
    random.seed("normbench")
    try:
        yield
    finally:
        random.setstate(before)
