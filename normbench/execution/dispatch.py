"""Choose where the runs of a command are trained: here, on a cluster, or with other ranks.

A job on a cluster runs this module again on its node, as a sweep of one cell. Where torchrun or
srun has started several processes for one run, rank 0 decides and the others follow.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from normbench import results, run_files
from normbench.config.cells import Cell, Settings
from normbench.errors import BadInput, one_line
from normbench.execution import process_group, worker_process
from normbench.execution.distributed_env import DistributedEnv, distributed_env, slurm_job_id
from normbench.execution.job import Summary
from normbench.execution.local_scheduler import TRAIN
from normbench.execution.process_group import ProcessGroup
from normbench.execution.provenance import now
from normbench.execution.sweep import PRELOAD, Sweep, init_checkpoint, make_job


@dataclass(frozen=True)
class NodeRun:
    """A run as a job on a node of a cluster: there it is a sweep of one cell."""

    cell: Cell
    settings: Settings

    def __call__(self) -> list[str]:
        """Train the cell on this node; return its failures.

        With several tasks in the job, each of them is a rank of the run.
        """
        try:
            return start([self.cell], self.settings).failed
        except BadInput as error:  # known only on the node, such as its number of devices
            with suppress(OSError):
                run_files.write_state(self._folder, "failed", str(error), title=self.cell.title)
            raise

    def checkpoint(self) -> Any:
        """Return the job that continues later; submitit calls this before a preemption.

        All processes of the run end, so that none writes when the job starts again elsewhere.
        """
        from submitit.helpers import DelayedSubmission

        process_group.stop(ProcessGroup.active)
        state = run_files.read_state(self._folder)
        more: dict[str, Any] = {
            key: state[key] for key in ("steps", "saved", "mirror") if key in state
        }
        more |= {"title": self.cell.title, "job": slurm_job_id()}
        with suppress(OSError):  # the job runs without it
            run_files.write_state(self._folder, "queued", **more)
        return DelayedSubmission(self)

    @property
    def _folder(self) -> Path:
        return Path(self.settings.runs) / self.settings.sweep / self.cell.id


def start(cells: Sequence[Cell], settings: Settings) -> Summary:
    """Give every cell a row, or do this process's part of it under torchrun or srun.

    Raises:
        BadInput: no run can use the command line.
    """
    env = distributed_env()
    if env is not None:
        return _start_rank(cells, settings, env)
    if not settings.launcher:
        return Sweep(cells, settings).run()
    options = json.loads(settings.launcher)  # text, so that Settings can be hashed and compared
    if (ranks := options["nodes"] * options["tasks_per_node"]) > 1:
        cells = [cell.with_devices(ranks) for cell in cells]  # refuse now what no job could train
    if settings.force:
        settings = replace(settings, newer_than=now())
    # On a node: old rows do not count, and a requeued job resumes.
    runs = str(Path(settings.runs).resolve())
    node_settings = replace(settings, runs=runs, jobs=1, force=False, resume=True, launcher="")
    tasks = {cell.id: NodeRun(cell, node_settings) for cell in cells}
    return Sweep(cells, settings).run(tasks)


def _start_rank(cells: Sequence[Cell], settings: Settings, env: DistributedEnv) -> Summary:
    if settings.launcher:
        raise BadInput(
            f"{env.world_size} processes were started for one run, and none of them submits jobs; "
            "leave out hydra/launcher, or call normbench once"
        )
    if len(cells) > 1:
        raise BadInput(
            f"{env.world_size} processes were started for one run, and this command has "
            f"{len(cells)} cells; use one cell, or hydra/launcher=slurm_nodes for a grid"
        )
    cell = cells[0].with_devices(env.world_size)
    if env.rank == 0:  # it alone reads and writes rows, locks and states
        return _lead(cell, settings, env)
    return _follow(cell, settings, env)


def _lead(cell: Cell, settings: Settings, env: DistributedEnv) -> Summary:
    """Train as rank 0; if there is nothing to train, dismiss the other ranks."""
    failure = ""
    try:
        summary = Sweep([cell], settings, env).run()
    finally:
        if not ProcessGroup.rank_started:  # they wait for a decision that training would bring
            failure = _dismiss_ranks(settings, env)
    if failure:  # this process must fail: torchrun and `srun -K` then end those that still wait
        summary.failed.append(f"{cell.title}: {failure}")
    return summary


def _dismiss_ranks(settings: Settings, env: DistributedEnv) -> str:
    """Let the other ranks exit; return why they could not be told to, or an empty text."""
    worker_process.start_server(PRELOAD)
    log = Path(settings.runs) / "check.log"
    target = "normbench.execution.worker:dismiss_ranks"
    end = process_group.wait_for_exit(process_group.start(target, None, env=env, log=log))
    if end.succeeded:
        return ""
    port = env.variables["MASTER_PORT"]
    return f"not all ranks were told to exit (MASTER_PORT={port}): {end.reason} ({log})"


def _follow(cell: Cell, settings: Settings, env: DistributedEnv) -> Summary:
    """Train as a rank above 0, if rank 0 decides to train."""
    root = Path(settings.runs)
    checkpoint = None
    if cell.init_from:
        # Only the row of that run: reading all of them is rank 0's work.
        rows = {row.id: row for row in results.read(root, cell.init_from.partition("@")[0])}
        checkpoint = init_checkpoint(cell, rows, root)
    job = replace(make_job(cell, settings), init_checkpoint=checkpoint, external_ranks=True)
    worker_process.start_server(PRELOAD)
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Summary(failed=[f"{cell.title}: rank {env.rank}: {one_line(error)}"])
    group = process_group.start(TRAIN, [job], env=env, log=job.log)
    end = process_group.wait_for_exit(group, saves=True)
    if end.succeeded:
        return Summary(trained=1)
    # Rank 0 looks for this file and shows the failure; it may not have noticed anything itself.
    log = process_group.log_of_rank(job.log, env.rank)
    reason = f"rank {env.rank}: {end.reason}"
    with suppress(OSError):  # the disk may be full
        run_files.write_failure(job.folder, env.rank, reason, str(log), end.timestamp)
    return Summary(failed=[f"{cell.title}: {reason} ({log})"])
