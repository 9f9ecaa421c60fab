"""Dashboards in W&B, as code: two workspaces of a project, and a report page for each table.

    python -m normbench.dashboard [project=NAME] [entity=NAME] [runs=DIR] [TABLE ...]
    python -m normbench.dashboard --dry-run [out=DIR] [project=NAME] [runs=DIR] [TABLE ...]

    project=NAME   of W&B (WANDB_PROJECT, or normbench)
    entity=NAME    user or team that owns it (WANDB_ENTITY, or whom the key belongs to)
    runs=DIR       root folder of the runs whose tables the pages show (runs)
    out=DIR        where --dry-run writes (reports/dashboard)
    --dry-run      write as JSON what would be saved; needs neither a server nor a key

TABLE is a file of reports/tables/ (default: all). The workspace `normbench` has accuracy over
images per worker, curves, throughput, memory and divergences of all runs, `normbench-diverged`
lists those that diverged; a page has a table and the runs behind it. What was saved before is
replaced. The server is that of `wandb login` and WANDB_BASE_URL.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from normbench import results
from normbench.config import cli
from normbench.config.files import TABLES, comment
from normbench.errors import BadInput, choose_from
from normbench.report import build
from normbench.report.exports import table_markdown
from normbench.report.metrics import METRICS
from normbench.report.pivot import tables
from normbench.report.table import Table
from normbench.report.table_spec import TableSpec
from normbench.results import Row
from normbench.run_files import require_writable

if TYPE_CHECKING:
    import wandb

    from normbench.dashboard.panels import Board, Page

OWN = ("project", "entity", "runs", "out")
DRY = "--dry-run"
PATIENCE = 10  # seconds that a server may take for its first answer


@dataclass(frozen=True)
class Asked:
    """A command line."""

    project: str
    entity: str
    runs: Path
    out: Path
    dry: bool
    wanted: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    """Save or write the dashboards; the exit code is 2 where that cannot be done."""
    try:
        if {"-h", "--help"} & {*arguments}:
            print(f"{__doc__}\nTables: {', '.join(spec.name for spec in build.specs())}")
            return 0
        asked = _parse(arguments)
        specs = build.specs(asked.wanted)
        rows = _rows(asked.runs)
        if not find_spec("wandb_workspaces"):
            raise BadInput("wandb-workspaces is missing: pip install 'normbench[dashboard]'")
        pages = _pages(specs, rows, asked)
        if asked.dry:
            _write(asked, _boards(asked, rows, pages))
        else:
            _save(asked, rows, pages)
    except BadInput as error:
        print(f"normbench.dashboard: {error}", file=sys.stderr)
        return 2
    return 0


def _parse(arguments: Sequence[str]) -> Asked:
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if (equals or argument.startswith("-")) and argument != DRY:
            if key not in OWN or not value:
                raise BadInput(f"{argument} is unknown; {choose_from(key, (*OWN, DRY))}")
            given[key] = value
    dry = DRY in arguments
    if "out" in given and not dry:
        raise BadInput(f"out={given['out']} is where {DRY} writes; without it nothing is written")
    return Asked(
        given.get("project") or os.environ.get("WANDB_PROJECT") or "normbench",
        given.get("entity") or os.environ.get("WANDB_ENTITY", ""),
        Path(given.get("runs", "runs")),
        Path(given.get("out", "reports/dashboard")),
        dry,
        tuple(word for word in arguments if "=" not in word and word != DRY),
    )


def _rows(root: Path) -> list[Row]:
    results.require_rows(root)
    return [row for row in results.read(root) if row.kind == "run"]


def _pages(specs: Sequence[TableSpec], rows: Sequence[Row], asked: Asked) -> list["Page"]:
    """A page for each table that has rows; all that dashboards know of tables is in here.

    Raises:
        BadInput: a table that was asked for has none.
    """
    from normbench.dashboard.panels import Page, Part  # wandb takes seconds, and may not be wanted

    by_id = {row.id: row for row in rows}
    parts: dict[str, list[Part]] = {}
    for table in tables(specs, rows, None):
        trained = {row.shared_with or row.id: row for row in table.runs}
        runs = [by_id.get(run, row) for run, row in trained.items()]
        if runs:
            part = Part(table_markdown(table), runs, _measured(table))
            parts.setdefault(table.spec.name, []).append(part)
    if empty := sorted({*asked.wanted} - parts.keys()):
        raise BadInput(f"table {empty[0]} has no finished run below runs={asked.runs}")
    return [
        Page(spec.name, spec.title, _source(spec), parts[spec.name])
        for spec in specs
        if spec.name in parts
    ]


def _measured(table: Table) -> dict[str, str]:
    """What the numbers of a table are: labels by the keys of a row, as far as it has them."""
    shown = [entry.metric for entry in table.entries]
    known = {name: metric.label for name, metric in METRICS.items() if metric in shown}
    return {name: label for name, label in known.items() if name in Row.__dataclass_fields__}


def _source(spec: TableSpec) -> str:
    source = f" Source: {spec.source}." if spec.source else ""
    return f"{comment(TABLES / f'{spec.name}.yaml')}{source} File: reports/tables/{spec.name}.yaml."


def _boards(
    asked: Asked, rows: Sequence[Row], pages: Sequence["Page"], entity: str = ""
) -> dict[str, "Board"]:
    """All dashboards, by the names of the files that they are written to."""
    from normbench.dashboard import panels

    return {
        "workspace": panels.workspace(rows, asked.project, entity),
        "workspace-diverged": panels.diverged(asked.project, entity),
        **{f"report-{page.name}": panels.report(page, asked.project, entity) for page in pages},
    }


def _write(asked: Asked, boards: Mapping[str, "Board"]) -> None:
    """Each dashboard as a file."""
    from normbench.dashboard.panels import spec

    out = require_writable(asked.out, f"out={asked.out}", "use a writable folder, as out=boards")
    for name, found in {name: spec(board) for name, board in boards.items()}.items():
        path = out / f"{name}.json"
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(f"wrote {path}")


def _save(asked: Asked, rows: Sequence[Row], pages: Sequence["Page"]) -> None:
    """Each dashboard on the server, and its address on the screen."""
    from normbench.dashboard.panels import replace

    with _server() as api:
        entity = asked.entity or api.default_entity
        if not entity:
            raise BadInput("the W&B server knows no user or team of this key; name one by entity=")
        boards = _boards(asked, rows, pages, entity)
        for board in boards.values():  # before anything is saved: the project may not be there
            replace(board, api)
        for name, board in boards.items():
            board.save()  # type: ignore[no-untyped-call]
            print(f"{name}: {board.url}")


@contextmanager
def _server() -> Iterator["wandb.Api"]:
    """Who answers, if we are known there.

    Raises:
        BadInput: nobody does, or we are not, or something is refused.
    """
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    try:
        # Runs may well be offline (WANDB_MODE); who saves a dashboard is not.
        wandb.setup(wandb.Settings(silent=True, mode="online"))
        if not wandb.login(prompt=False, verify=False):
            raise BadInput(
                "not logged in: `wandb login`, or WANDB_API_KEY in the environment; with "
                f"{DRY} neither is needed"
            )
        yield wandb.Api(timeout=PATIENCE)
    except (wandb.errors.Error, WandbApiFailedError) as error:
        raise BadInput(
            "the W&B server does not answer, or not to this key (WANDB_BASE_URL, WANDB_API_KEY): "
            + str(error).partition("\n")[0]
        ) from None
    except ValueError as error:  # say that there is no such project
        raise BadInput(" ".join(str(error).split())) from None
    finally:
        wandb.teardown()


if __name__ == "__main__":
    cli.run(main)
