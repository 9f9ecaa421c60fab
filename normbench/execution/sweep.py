"""All cells of a command line: skip the finished, check the others, train what is left.

Nothing here imports torch. That is left to worker processes
(`normbench.execution.worker_process`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from normbench import results
from normbench.config.cells import Cell, Settings
from normbench.errors import BadInput
from normbench.execution import announce, worker_process
from normbench.execution.distributed_env import DistributedEnv
from normbench.execution.job import Job, PreflightRequest, PreflightResults, Print, Summary
from normbench.execution.local_scheduler import LocalScheduler
from normbench.execution.provenance import commit, now
from normbench.execution.reuse import copy_row, shareable_rows
from normbench.execution.scheduler import QueueEntry, possible_plans
from normbench.execution.slurm import NodeTask, SlurmScheduler
from normbench.results import Row
from normbench.run_files import require_writable

#: Modules that the fork server imports for all worker processes: the command line, which a worker
#: of the console script would import again; late imports of wandb.init, which are slower once torch
#: is imported; then training and preflight.
PRELOAD = (
    "normbench.__main__", "wandb.sdk.launch", "requests", "normbench.execution.worker",
    "normbench.execution.preflight",
)  # fmt: skip


class Interrupted(Exception):  # noqa: N818
    """The user or the system stopped the command by signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(
    cells: Sequence[Cell],
    settings: Settings,
    print_line: Print,
    env: DistributedEnv | None = None,
    tasks: Mapping[str, NodeTask] | None = None,
) -> Summary:
    """Give every cell a row.

    Args:
        cells: of the command line.
        settings: of the command line.
        print_line: shows a line to the user.
        env: of this process, if torchrun or srun has started it as a rank of one run.
        tasks: by id of a cell, its job on a cluster; needed if the settings name a launcher.

    Raises:
        BadInput: nothing was trained, because no run can use the command line.
    """
    remedy = "name a folder that can, as in runs=~/normbench-runs"
    root = require_writable(Path(settings.runs), f"runs={settings.runs}", remedy)
    # The rows of all sweeps: a damaged one is refused now and not after the training.
    rows = {row.id: row for row in results.read(root)}
    open_cells = [cell for cell in cells if settings.force or not _is_finished(rows.get(cell.id))]
    summary = Summary(reused=len(cells) - len(open_cells))
    open_ids = {cell.id for cell in open_cells}
    announce.print_missing_files(
        [cell for cell in cells if cell.id not in open_ids], rows, root, print_line
    )
    _refuse_stacking_elsewhere(settings, env)
    number = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    print_line(f"{number}, {summary.reused} finished before, {len(open_cells)} to do")
    if not open_cells:
        summary.rows = list(rows.values())
        return summary
    checkpoints = {
        cell.id: init_checkpoint(cell, rows, root) for cell in open_cells if cell.init_from
    }
    print_line("importing torch and checking all cells ...")
    try:
        with _services(open_cells, settings):
            preflight = _run_preflight(open_cells, root, settings, env)
            possible = _drop_impossible(open_cells, preflight, rows, settings, summary, print_line)
            entries = _queue(possible, preflight, rows, settings, summary, checkpoints, env)
            announce.print_plans(entries, summary, print_line)
            if settings.stack_seeds:
                announce.print_stacks(entries, preflight.unstackable, print_line)
            if settings.launcher:
                assert tasks is not None
                _set_rows_aside(entries)
                SlurmScheduler(entries, settings, summary, print_line, tasks).run()
            else:
                LocalScheduler(
                    entries, settings, summary, print_line,
                    gpus=preflight.gpus, memory=preflight.memory, env=env,
                ).run()  # fmt: skip
    except Interrupted as stop:
        summary.interrupted = stop.number
    return summary


def make_job(
    cell: Cell,
    settings: Settings,
    *,
    init_checkpoint: Path | None,
    external_ranks: bool,
    commit: str = "",
    computation: str = "",
    single_pass: bool = False,
) -> Job:
    """Return the job of `cell`, with its fastest plan."""
    return Job(
        cell=cell,
        folder=Path(settings.runs) / settings.sweep / cell.id,
        plan=possible_plans(cell, single_pass=single_pass)[0],
        sweep=settings.sweep,
        commit=commit,
        force=settings.force,
        resume=settings.resume and not settings.force,
        computation=computation,
        init_checkpoint=init_checkpoint,
        external_ranks=external_ranks,
    )


def init_checkpoint(cell: Cell, rows: Mapping[str, Row], root: Path) -> Path:
    """Return the checkpoint that `cell.init_from` names.

    Raises:
        BadInput: the run has none of that epoch.
    """
    run, _, epoch = str(cell.init_from).partition("@")
    if run in rows:
        run = rows[run].shared_with or run
    name = results.CHECKPOINT if epoch == "last" else results.EPOCH_CHECKPOINT.format(epoch)
    for path in root.glob(f"*/{run}/{name}"):
        return path
    existing = ", ".join(sorted(path.name for path in root.glob(f"*/{run}/*.pt")))
    there = f"there is {existing}" if existing else "no run of that id has kept any"
    raise BadInput(
        f"init_from={cell.init_from}: no {run}/{name} below runs={root}, {there}; "
        "checkpoint.epochs=[N] keeps those of epochs, checkpoint=keep the last, and force=true "
        "trains a finished run again"
    )


def _is_finished(row: Row | None) -> bool:
    """Return whether a cell needs no check; one that ran out of memory may fit on this machine."""
    return row is not None and row.final


def _refuse_stacking_elsewhere(settings: Settings, env: DistributedEnv | None) -> None:
    if settings.stack_seeds and (settings.launcher or env is not None):
        raise BadInput(
            "stack_seeds=true trains several seeds in one process of this machine, and jobs of "
            "a cluster and processes of torchrun train one run each; stack_seeds=false works"
        )


@contextmanager
def _services(cells: Sequence[Cell], settings: Settings) -> Iterator[None]:
    """Start what all runs share: the fork server, and the service that writes to W&B."""
    worker_process.start_server([*PRELOAD, *_modules_of(cells)])
    uses_wandb = any(cell.logger.options.get("mode", "disabled") != "disabled" for cell in cells)
    if settings.launcher or not uses_wandb:
        yield
        return
    from normbench.execution import wandb_logger  # importing wandb takes half a second

    with wandb_logger.shared_service():
        yield


def _modules_of(cells: Sequence[Cell]) -> list[str]:
    """Return the modules of normbench that the cells name; a user's own may fail at import."""
    choices = [each for cell in cells for each in (cell.norm, cell.model, cell.data, cell.recipe)]
    modules = {str(choice.options.get("_target_", "")).rpartition(".")[0] for choice in choices}
    return sorted(name for name in modules if name.startswith("normbench."))


def _run_preflight(
    cells: Sequence[Cell], root: Path, settings: Settings, env: DistributedEnv | None
) -> PreflightResults:
    """Run `normbench.execution.preflight` in a worker process.

    Raises:
        BadInput: it refuses the command line.
    """
    log = root / "check.log"
    # A node of a cluster checks by itself whether it has the devices.
    on_this_machine = not settings.launcher
    processes = None if env is None else env.local_world_size
    argument = PreflightRequest(list(cells), log, on_this_machine, processes, settings.stack_seeds)
    end = worker_process.wait_for_exit(
        worker_process.start("normbench.execution.preflight:check", argument, log=log)
    )
    if end.succeeded:
        preflight: PreflightResults = end.result
        return preflight
    raise BadInput(
        end.reason if end.refused else f"the check of all cells failed: {end.reason}; see {log}"
    )


def _drop_impossible(
    cells: Sequence[Cell],
    preflight: PreflightResults,
    rows: Mapping[str, Row],
    settings: Settings,
    summary: Summary,
    print_line: Print,
) -> list[Cell]:
    """Return the cells to train, and write the rows of those that cannot work."""
    reasons = preflight.impossible
    if all(reasons.values()) and not summary.reused:
        raise BadInput(f"{cells[0].title} cannot work: {reasons[cells[0].id]}")
    for network, coverage in preflight.coverage.items():
        print_line(f"{network}: {coverage}")
    possible = []
    for cell in cells:
        row = rows.get(cell.id)
        if reason := reasons[cell.id]:
            print_line(f"impossible  {cell.title}: {reason}")
            folder = Path(settings.runs) / settings.sweep / cell.id
            results.write(folder, _impossible_row(cell, settings.sweep, reason))
        elif settings.launcher:
            possible.append(cell)
        elif (
            row is not None and not settings.force and preflight.memory <= (row.device_memory or 0)
        ):
            summary.reused += 1  # out of memory then, and there is no more memory now
        else:
            possible.append(cell.with_accelerator(preflight.accelerator))
    return possible


def _impossible_row(cell: Cell, sweep: str, reason: str) -> Row:
    return Row(
        **cell.description(sweep),
        status="impossible",
        reason=reason,
        commit=commit(),
        finished=now(),
    )


def _queue(
    cells: Sequence[Cell],
    preflight: PreflightResults,
    rows: Mapping[str, Row],
    settings: Settings,
    summary: Summary,
    checkpoints: Mapping[str, Path],
    env: DistributedEnv | None,
) -> list[QueueEntry]:
    """Return the jobs: of cells that compute the same the first, unless a run has trained it."""
    root, source_commit = Path(settings.runs), commit()
    shareable = {} if settings.force else shareable_rows(rows.values())
    entries: dict[str, QueueEntry] = {}
    for cell in cells:
        computation = cell.computation if cell.id in preflight.worker_independent else ""
        if computation in shareable:
            copy_row(shareable[computation], cell, root, settings.sweep)
            summary.shared += 1
        elif computation in entries:
            entries[computation].sharing.append(cell)
        else:
            single_pass = cell.id in preflight.single_pass
            job = make_job(
                cell, settings, commit=source_commit, computation=computation,
                init_checkpoint=checkpoints.get(cell.id), single_pass=single_pass,
                external_ranks=env is not None,
            )  # fmt: skip
            stackable = settings.stack_seeds and not preflight.unstackable[cell.id]
            entries[computation or cell.id] = QueueEntry(
                job, single_pass=single_pass, stackable=stackable
            )
    return list(entries.values())


def _set_rows_aside(entries: Sequence[QueueEntry]) -> None:
    """Remove what would make a cluster's job or its scheduler believe that the run is finished.

    A row of a forced run, or one that ran out of memory elsewhere, would end the watching. Runs
    that must not resume lose their checkpoint.
    """
    for entry in entries:
        results.set_aside(entry.job.folder)
        if not entry.job.resume:
            (entry.job.folder / results.CHECKPOINT).unlink(missing_ok=True)
