"""Where the runs of a command line are trained: here, on a cluster, or as part of one of these.

A job of a cluster runs what is here again, on its node, as a sweep of one cell. Where torchrun or
srun has started several processes for one run, the first leads it and the others follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from normbench import children, ranks, results
from normbench.cells import Cell, Settings
from normbench.cluster import LOOK
from normbench.errors import BadInput
from normbench.jobs import RUN, request_of
from normbench.place import Place, place
from normbench.pool import Say, Summary, Work, why
from normbench.ranks import Ranks
from normbench.sweep import HEAVY, LIGHT, beginning, run


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
            results.write_state(folder, "failed", str(error), title=self.cell.title)
            raise
        finally:
            children.stop_server()

    def stop(self) -> None:
        """Interrupt what runs, so that nothing writes when the job begins anew elsewhere."""
        ranks.stop(list(Ranks.living))


def print_now(line: str) -> None:
    """Print `line` at once, also into a file."""
    print(line, flush=True)


def start(cells: Sequence[Cell], settings: Settings, say: Say) -> Summary:
    """`run`, or this process's part of it where several have been started for one run.

    Raises:
        BadInput: as `run`; or several runs were asked of the processes of one.
    """
    own = place()
    if own is None:
        return run(cells, settings, say, job=partial(_job, settings))
    if len(cells) > 1 or settings.launcher:
        raise BadInput(
            f"{own.world} processes were started for one run, and {len(cells)} cells make several; "
            "one cell works, and a grid with hydra/launcher=slurm_nodes"
        )
    cells = [cells[0].among(own.world)]
    if own.rank:
        return _follow(cells[0], settings, own)
    return run(cells, settings, say, own, partial(_job, settings))


def _follow(cell: Cell, settings: Settings, own: Place) -> Summary:
    """Train as one of the ranks of a run that another process leads, until it has a row."""
    root = Path(settings.runs)
    folder = root / settings.sweep / cell.id
    row, before = folder / "row.json", _moment(folder / "row.json")
    if before and not settings.force:
        return Summary(reused=1)
    init = beginning(cell, root) if cell.init_from else None
    work = Work(cell, folder, "", cell.trainer.layouts(cell.workers)[:1], init)
    children.start_server((LIGHT, *HEAVY))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    child = ranks.join(RUN, request_of(work, settings, ""), own, log=log)
    try:
        while (end := child.ended()) is None and _moment(row) == before:
            children.wait([child], LOOK)
            list(child.messages())
    finally:
        child.kill()
    if end is None or (end.last is not None and end.last.kind == "result"):
        return Summary(trained=1)
    return Summary(failed=[f"{cell.title}: rank {own.rank}: {why(end)} ({log})"])


def _moment(path: Path) -> int:
    """When `path` was written, 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _job(settings: Settings, work: Work) -> OnNode:
    # What was forced has made room already, and a job that begins again goes on.
    runs = str(Path(settings.runs).resolve())
    here = replace(settings, runs=runs, jobs=1, force=False, resume=True, launcher="")
    return OnNode(work.cell, here)
