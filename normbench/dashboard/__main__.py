"""Dashboards in W&B, as code: two workspaces of a project, and a report page for each table.

    python -m normbench.dashboard [project=NAME] [entity=NAME] [runs=DIR] [TABLE ...]
    python -m normbench.dashboard --dry-run [reports=DIR] [project=NAME] [runs=DIR] [TABLE ...]

TABLE is a file of reports/tables/ (default: all). The workspace `normbench` has accuracy over
images per worker, curves, throughput, memory and the number of diverged runs; the workspace
`normbench-diverged` lists diverged runs. A report page has a table and the runs behind it.
Workspaces and pages that the command saved before are replaced. The server is that of `wandb login`
and WANDB_BASE_URL.
"""

import json
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

from normbench import results
from normbench.config import cli
from normbench.config.wandb_options import require_name
from normbench.errors import BadInput, one_line
from normbench.report import build
from normbench.report.pivot import tables
from normbench.report.table import Table
from normbench.results import Row
from normbench.run_files import require_writable

if TYPE_CHECKING:
    import wandb

    from normbench.dashboard.panels import Dashboard

DRY_RUN = "--dry-run"
PATIENCE = 10  # seconds that a server may take for its first answer
STEP = 20  # seconds for the requests of one dashboard, or of the login
NO_ANSWER = "the W&B server does not answer, or not to this key (WANDB_BASE_URL, WANDB_API_KEY)"


@dataclass(frozen=True)
class DashboardOptions:
    """Options of the command line."""

    project: str = cli.option("", "W&B project (WANDB_PROJECT, or normbench)")
    entity: str = cli.option(
        "", "user or team that owns the project (WANDB_ENTITY, or the owner of the key)"
    )
    runs: Path = cli.option(Path("runs"), "root folder of the runs whose tables the pages show")
    reports: Path | None = cli.option(
        None, "root folder of reports (RUNS/reports): --dry-run writes to DIR/dashboard"
    )
    dry_run: bool = cli.option(
        False, "write workspaces and pages as JSON; needs neither a server nor a key"
    )


@cli.command(
    "normbench.dashboard",
    lambda: build.help_text(__doc__, DashboardOptions),
    needs_all_files=True,
)
def main(arguments: Sequence[str]) -> int:
    """Save or write the dashboards."""
    options, wanted = cli.parse_options(arguments, DashboardOptions)
    if options.reports and not options.dry_run:
        raise BadInput(f"reports={options.reports} is only for {DRY_RUN}")
    specs = build.specs(wanted)
    build.require_rows(options.runs)
    rows = [row for row in results.read(options.runs) if row.kind == "run"]
    if not find_spec("wandb_workspaces"):
        raise BadInput("wandb-workspaces is missing: pip install 'normbench[dashboard]'")
    shown = [table for table in tables(specs, rows) if table.runs]
    if empty := sorted({*wanted} - {table.spec.name for table in shown}):
        raise BadInput(f"table {empty[0]} has no finished run below runs={options.runs}")
    project = options.project or os.environ.get("WANDB_PROJECT") or "normbench"
    entity = options.entity or os.environ.get("WANDB_ENTITY", "")
    require_name("project", project)
    if entity:
        require_name("entity", entity)
    if options.dry_run:
        folder = build.reports_folder(options.runs, options.reports) / "dashboard"
        _write_files(folder, _dashboards(rows, shown, project, entity))
    else:
        _save_on_server(rows, shown, project, entity)
    return 0


def _dashboards(
    rows: Sequence[Row], tables: Sequence[Table], project: str, entity: str
) -> dict[str, "Dashboard"]:
    """Return all dashboards by the stem of the file that --dry-run writes."""
    from normbench.dashboard import panels  # importing wandb takes seconds

    # A page has its table in all settings.
    pages: dict[str, list[Table]] = {}
    for table in tables:
        pages.setdefault(table.spec.name, []).append(table)
    return {
        "workspace": panels.workspace(rows, project, entity),
        "workspace-diverged": panels.diverged(rows, project, entity),
        **{
            f"report-{name}": panels.report(of_spec, rows, project, entity)
            for name, of_spec in pages.items()
        },
    }


def _write_files(folder: Path, dashboards: Mapping[str, "Dashboard"]) -> None:
    """Write each dashboard as a file."""
    from normbench.dashboard.panels import spec

    require_writable(folder, str(folder), "use a writable folder, as reports=boards")
    for name, dashboard in dashboards.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(spec(dashboard), indent=1, ensure_ascii=False) + "\n")
        print(f"wrote {path}")


def _save_on_server(
    rows: Sequence[Row], tables: Sequence[Table], project: str, entity: str
) -> None:
    """Save each dashboard on the server and print its address."""
    from normbench.dashboard.panels import replace
    from normbench.execution.wandb_service import time_limit

    with _server() as api:
        with time_limit(STEP):
            entity = entity or api.default_entity or ""
        if not entity:
            raise BadInput("the W&B server knows no user or team of this key; name one by entity=")
        dashboards = _dashboards(rows, tables, project, entity)
        for dashboard in dashboards.values():  # before anything is saved: the project may not exist
            with time_limit(STEP):
                replace(dashboard, api)
        for name, dashboard in dashboards.items():
            with time_limit(STEP):
                dashboard.save()  # type: ignore[no-untyped-call]
            print(f"{name}: {dashboard.url}")


@contextmanager
def _server() -> Iterator["wandb.Api"]:
    """Yield the API of the W&B server.

    Raises:
        BadInput: the server does not answer, knows no such key, or refuses a request.
    """
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    from normbench.execution.wandb_service import started_service, time_limit

    # Runs may be offline (WANDB_MODE); saving a dashboard needs the server.
    settings = wandb.Settings(silent=True, mode="online")

    def start() -> None:
        with time_limit(STEP):
            wandb.setup(settings)

    try:
        with started_service(start, PATIENCE / 2, []):  # nothing is left to send when it ends
            with time_limit(STEP):
                if not wandb.login(prompt=False, verify=False):
                    raise BadInput(
                        "not logged in: `wandb login`, or WANDB_API_KEY in the environment; with "
                        f"{DRY_RUN} neither is needed"
                    )
                _require_answer(wandb.setup().settings.base_url)
                api = wandb.Api(timeout=PATIENCE)
            yield api
    except (wandb.errors.Error, WandbApiFailedError, OSError) as error:
        raise BadInput(f"{NO_ANSWER}: {one_line(error)}") from None
    except ValueError as error:  # the project does not exist
        raise BadInput(" ".join(str(error).split())) from None


def _require_answer(url: str) -> None:
    """Raise `BadInput` if no server answers at `url`.

    W&B's own service would repeat its requests to such a server, and its end waits for them.
    """
    try:
        urlopen(url, timeout=PATIENCE).close()
    except HTTPError:  # an answer, if only a refusal
        pass
    except OSError as error:
        # W&B may know a certificate that Python does not.
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):
            raise BadInput(f"{NO_ANSWER}: {url}: {one_line(error)}") from None


if __name__ == "__main__":
    cli.run(main)
