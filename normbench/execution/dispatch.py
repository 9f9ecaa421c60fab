"""Where the runs of a command line are trained: here, on a cluster, or as part of one of these.

A job of a cluster runs what is here again, on its node, as a sweep of one cell. Where torchrun or
srun has started several processes for one run, the first leads it and the others follow.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from normbench import run_files
from normbench.config.cells import Cell, Settings
from normbench.errors import BadInput
from normbench.execution import process_group, worker_process
from normbench.execution.distributed_env import Place, job, place
from normbench.execution.pool import Say, Summary, Work, when, why
from normbench.execution.process_group import Ranks
from normbench.execution.scheduler import RUN, request_of
from normbench.execution.sweep import PRELOADED, beginning, run


@dataclass(frozen=True)
class OnNode:
    """A run as a job of a cluster: there it is a sweep of one cell."""

    cell: Cell
    settings: Settings

    def __call__(self) -> list[str]:
        """Train it with what the node has; what failed.

        Of several tasks of a job the first leads, and the others are further ranks of the run.
        """
        try:
            return start([self.cell], self.settings, print_now).failed
        except BadInput as error:  # what only a node can know, such as its devices
            folder = Path(self.settings.runs) / self.settings.sweep / self.cell.id
            run_files.write(folder, "failed", str(error), title=self.cell.title)
            raise
        finally:
            worker_process.stop_server()

    def stop(self) -> None:
        """Interrupt what runs, so that nothing writes when the job begins anew elsewhere."""
        process_group.stop(list(Ranks.living))
        folder = Path(self.settings.runs) / self.settings.sweep / self.cell.id
        run_files.write(folder, "queued", title=self.cell.title, job=job())


def print_now(line: str) -> None:
    """Print `line` at once, also into a file."""
    print(line, flush=True)


def start(cells: Sequence[Cell], settings: Settings, say: Say) -> Summary:
    """`run`, or this process's part of it where several have been started for one run.

    Raises:
        BadInput: as `run`; or several runs were asked of the processes of one.
    """
    own = place()
    if settings.launcher and own is None:
        options = json.loads(settings.launcher)
        if (tasks := options["nodes"] * options["tasks_per_node"]) > 1:
            cells = [cell.among(tasks) for cell in cells]  # now, and not when their turn has come
    if own is None:
        return run(cells, settings, say, job=partial(_job, settings))
    if len(cells) > 1 or settings.launcher:
        raise BadInput(
            f"{own.world} processes were started for one run, and {len(cells)} cells make several; "
            "one cell works, and a grid with hydra/launcher=slurm_nodes"
        )
    cell = cells[0].among(own.world)
    return _follow(cell, settings, own) if own.rank else _lead(cell, settings, say, own)


def _lead(cell: Cell, settings: Settings, say: Say, own: Place) -> Summary:
    """Train with the others, or send them home."""
    try:
        return run([cell], settings, say, own)
    finally:
        if not process_group.joined():
            worker_process.start_server(PRELOADED)
            log = Path(settings.runs) / "check.log"
            worker_process.finish(
                process_group.join("normbench.execution.worker:dismiss", None, own, log=log)
            )


def _follow(cell: Cell, settings: Settings, own: Place) -> Summary:
    """Train as one of the ranks of a run that another process leads, if it says so."""
    root = Path(settings.runs)
    folder = root / settings.sweep / cell.id
    init = beginning(cell, root) if cell.init_from else None
    work = Work(cell, folder, init=init)
    worker_process.start_server(PRELOADED)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    request = request_of(work, settings, "", led=True)
    end = worker_process.finish(process_group.join(RUN, request, own, log=log))
    if end.last is not None and end.last.kind == "result":
        return Summary(trained=1)
    # The leader looks for it, and says it: it may itself have noticed nothing yet.
    own_log = process_group.log_of(log, own.rank)
    run_files.write_failure(
        folder, own.rank, f"rank {own.rank}: {why(end)}", str(own_log), when(end)
    )
    return Summary(failed=[f"{cell.title}: rank {own.rank}: {why(end)} ({own_log})"])


def _job(settings: Settings, work: Work) -> OnNode:
    # What was forced has made room already, and a job that begins again goes on.
    runs = str(Path(settings.runs).resolve())
    here = replace(settings, runs=runs, jobs=1, force=False, resume=True, launcher="")
    return OnNode(work.cell, here)
