"""All cells of a command line: skip the finished, check the others, train what is left.

Nothing here imports torch. That is left to worker processes
(`normbench.execution.worker_process`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from normbench import results
from normbench.config.cells import Cell, Settings
from normbench.errors import BadInput, DamagedFile, count
from normbench.execution import announce, process_group, worker_process
from normbench.execution.distributed_env import DistributedEnv
from normbench.execution.job import Job, PreflightRequest, PreflightResults, Summary
from normbench.execution.local_scheduler import LocalScheduler
from normbench.execution.progress import print_line, short_titles, waiting
from normbench.execution.provenance import commit, now
from normbench.execution.reuse import copy_row, shareable_rows
from normbench.execution.scheduler import QueueEntry, possible_plans
from normbench.execution.slurm import SlurmScheduler
from normbench.results import Row
from normbench.run_files import RunLocked, describe_write_error, record_order, require_writable

#: Modules that the fork server imports for all worker processes: the command line, which a worker
#: of the console script would import again; late imports of wandb.init, which are slower once torch
#: is imported; then training and preflight.
PRELOAD = (
    "normbench.__main__", "wandb.sdk.launch", "requests", "normbench.execution.worker",
    "normbench.execution.preflight",
)  # fmt: skip


class Interrupted(BaseException):
    """The user or the system stopped the command by signal `number`.

    No `Exception`: libraries catch those while a signal is handled.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Sweep:
    """The cells of a command line on their way to rows.

    Args:
        cells: of the command line.
        settings: of the command line.
        env: of this process, if torchrun or srun has started it as a rank of one run.

    Raises:
        BadInput: nothing can be trained, because no run can use the command line.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        settings: Settings,
        env: DistributedEnv | None = None,
    ) -> None:
        self.settings, self.env = settings, env
        if settings.stack_seeds and (settings.launcher or env is not None):
            raise BadInput(
                "stack_seeds=true trains several seeds in one process of this machine, and jobs of "
                "a cluster and processes of torchrun train one run each; stack_seeds=false works"
            )
        remedy = "use a writable folder, as runs=$HOME/normbench-runs"
        self.root = require_writable(Path(settings.runs), f"runs={settings.runs}", remedy)
        # The rows of all sweeps. A run whose row is damaged counts as not trained.
        self.rows = {row.id: row for row in results.read(self.root)}
        self.cells: list[Cell] = []
        finished: list[Cell] = []
        for cell in cells:
            row = self.rows.get(cell.id)  # of a run out of memory: it may fit on this machine
            is_finished = row is not None and row.final and self._counts(row)
            (finished if is_finished else self.cells).append(cell)
            if row is not None and is_finished:
                results.clean_up(self.root / row.sweep / row.id)
        self.ids = [cell.id for cell in cells]
        self.titles = short_titles(cells) if self.cells else {}
        self.summary = Summary(reused=len(finished))
        announce.print_missing_files(finished, self.rows, self.root)
        number = count(len(cells), "cell")
        print_line(f"{number}, {len(finished)} finished before, {len(self.cells)} to do")
        self.checkpoints = {
            cell.id: init_checkpoint(cell, self.rows, self.root)
            for cell in self.cells
            if cell.init_from
        }

    def _counts(self, row: Row) -> bool:
        """Return True unless this sweep replaces a row."""
        return not self.settings.force and row.finished >= self.settings.newer_than

    def _has_no_room(self, row: Row | None, memory: int) -> bool:
        """Return True if a run was out of memory, and there is no more memory now."""
        return row is not None and self._counts(row) and memory <= (row.device_memory or 0)

    def run(self, tasks: Mapping[str, Callable[[], object]] | None = None) -> Summary:
        """Give every cell a row.

        Args:
            tasks: by id of a cell, its job on a cluster; needed if the settings name a launcher.

        Raises:
            BadInput: nothing was trained, because no run can use the command line.
        """
        if not self.cells:
            self._record_order()
            self.summary.rows = list(self.rows.values())
            return self.summary
        try:
            with ExitStack() as services:
                with waiting("importing torch and checking all cells ..."):
                    services.enter_context(self._services())
                    preflight = self._run_preflight()
                possible = self._drop_impossible(preflight)
                self._record_order()
                entries = self._queue(possible, preflight)
                self._train(entries, preflight, tasks)
        except Interrupted as stop:
            self.summary.interrupted = stop.number
        return self.summary

    def _record_order(self) -> None:
        """List the cells in the folder of the sweep, for `normbench.status`."""
        with suppress(OSError, DamagedFile):  # the disk may be full; no run needs it
            record_order(self.root / self.settings.sweep, self.ids)

    @contextmanager
    def _services(self) -> Iterator[None]:
        """Start what all runs share: the fork server, and the service that writes to W&B."""
        choices = [each for c in self.cells for each in (c.norm, c.model, c.data, c.recipe)]
        modules = {str(each.options.get("_target_", "")).rpartition(".")[0] for each in choices}
        # Not the modules of a user, which may fail at import.
        preload = sorted(name for name in modules if name.startswith("normbench."))
        worker_process.start_server([*PRELOAD, *preload])
        modes = {cell.logger.options.get("mode", "disabled") for cell in self.cells}
        if self.settings.launcher or modes == {"disabled"}:
            yield
            return
        from normbench.execution import wandb_service  # importing wandb takes half a second

        with wandb_service.shared_service(self.summary.wandb_failures):
            yield

    def _run_preflight(self) -> PreflightResults:
        """Check the cells in a worker process.

        Raises:
            BadInput: it refuses the command line.
        """
        processes = None if self.env is None else self.env.local_world_size
        request = PreflightRequest(self.cells, self.settings, processes, self.checkpoints)
        log = request.log
        end = process_group.wait_for_exit(
            process_group.start("normbench.execution.preflight:check", request, log=log)
        )
        if not end.succeeded:
            failure = f"the check of all cells failed: {end.reason}; see {log}"
            raise BadInput(end.reason if end.kind == "refused" else failure)
        preflight: PreflightResults = end.result
        return preflight

    def _drop_impossible(self, preflight: PreflightResults) -> list[Cell]:
        """Return the cells to train, and write the rows of those that cannot work."""
        reasons = {cell.id: preflight.cells[cell.id].impossible for cell in self.cells}
        if all(reasons.values()) and not self.summary.reused:
            raise BadInput(f"{self.cells[0].title} cannot work: {reasons[self.cells[0].id]}")
        for line in dict.fromkeys(each.coverage for each in preflight.cells.values()):
            if line:
                print_line(line)
        possible = []
        for cell in self.cells:
            row = self.rows.get(cell.id)
            if reason := reasons[cell.id]:
                print_line(f"impossible  {self.titles[cell.id]}: {reason}")
                row = Row(
                    **cell.description(self.settings.sweep), status="impossible", reason=reason,
                    commit=commit(), finished=now(),
                )  # fmt: skip
                with self._failing(cell):
                    results.write(self.root / self.settings.sweep / cell.id, row)
            elif self.settings.launcher:
                possible.append(cell)
            elif self._has_no_room(row, preflight.memory):
                self.summary.reused += 1
            else:
                possible.append(cell.with_accelerator(preflight.accelerator))
        return possible

    @contextmanager
    def _failing(self, cell: Cell) -> Iterator[None]:
        """Let `cell` fail if its folder cannot be written."""
        try:
            yield
        except OSError as error:
            folder = Path(self.settings.runs, self.settings.sweep, cell.id)
            reason = describe_write_error(folder, folder, error)
            self.summary.failed.append(f"{self.titles[cell.id]}: {reason}")

    def _queue(self, cells: Sequence[Cell], preflight: PreflightResults) -> list[QueueEntry]:
        """Return a job for each computation that no run has trained; cells may share it."""
        settings, source_commit = self.settings, commit()
        shareable = shareable_rows(filter(self._counts, self.rows.values()))
        entries: dict[str, QueueEntry] = {}
        for cell in cells:
            check = preflight.cells[cell.id]
            computation = cell.computation if check.worker_independent else ""
            if computation in shareable and self._share(shareable[computation], cell):
                continue
            if computation in entries:
                entries[computation].sharing.append(cell)
            else:
                job = replace(
                    make_job(cell, settings, single_pass=check.single_pass),
                    commit=source_commit,
                    computation=computation,
                    init_checkpoint=self.checkpoints.get(cell.id),
                    network_fields=check.network_fields,
                    external_ranks=self.env is not None,
                )
                entries[computation or cell.id] = QueueEntry(
                    job,
                    single_pass=check.single_pass,
                    stackable=settings.stack_seeds and not check.unstackable,
                )
        return list(entries.values())

    def _share(self, row: Row, cell: Cell) -> bool:
        """Give `cell` the row of the same computation, unless another command trains it."""
        with self._failing(cell):
            try:
                copy_row(row, cell, self.root, self.settings.sweep)
            except RunLocked:
                return False
            self.summary.shared += 1
        return True

    def _train(
        self,
        entries: Sequence[QueueEntry],
        preflight: PreflightResults,
        tasks: Mapping[str, Callable[[], object]] | None,
    ) -> None:
        announce.print_plans(entries, self.summary)
        if self.settings.stack_seeds:
            announce.print_stacks(entries, preflight)
        if tasks is not None:
            for entry in entries:
                with self._failing(entry.cell):
                    _set_row_aside(entry.job)
            SlurmScheduler(entries, self.settings, self.summary, self.titles, tasks).run()
        else:
            LocalScheduler(
                entries, self.settings, self.summary, self.titles,
                gpus=preflight.gpus, memory=preflight.memory, env=self.env,
            ).run()  # fmt: skip


def _set_row_aside(job: Job) -> None:
    """Remove files by which a cluster's job or its scheduler would take the run for finished.

    A row of a forced run, or one that ran out of memory elsewhere, would end the watching. A run
    that must not resume loses its checkpoint.
    """
    results.set_aside(job.folder)
    if not job.resume:
        (job.folder / results.CHECKPOINT).unlink(missing_ok=True)


def make_job(cell: Cell, settings: Settings, *, single_pass: bool = False) -> Job:
    """Return the job of `cell`, with its fastest plan."""
    return Job(
        cell,
        Path(settings.runs) / settings.sweep / cell.id,
        possible_plans(cell, single_pass=single_pass)[0],
        settings.sweep,
        force=settings.force,
        resume=settings.resume and not settings.force,
    )


def init_checkpoint(cell: Cell, rows: Mapping[str, Row], root: Path) -> Path:
    """Return the checkpoint that `cell.init_from` names.

    Raises:
        BadInput: the run has none of that epoch, or has not finished.
    """
    run, _, epoch = str(cell.init_from).partition("@")
    row = rows.get(run)
    if epoch == "last" and (row is None or row.status != "ok"):
        state = "has not finished" if row is None else f"ended as {row.status}"
        described = f" ({cell.start.title})" if cell.start else ""
        raise BadInput(
            f"init_from={cell.init_from}: the run {run}{described} {state} below runs={root}; "
            "@last is the end of a run with checkpoint=keep, which must be trained before"
        )
    if row is not None:
        run = row.shared_with or run
    name = results.CHECKPOINT if epoch == "last" else results.EPOCH_CHECKPOINT.format(epoch)
    for path in root.glob(f"*/{run}/{name}"):
        # Every run writes checkpoints while it trains: the last one is beside its row.
        if epoch != "last" or (path.parent / "row.json").exists():
            return path
    existing = ", ".join(sorted(path.name for path in root.glob(f"*/{run}/*.pt")))
    there = f"there is {existing}" if existing else "no run of that id has kept any"
    there += f" (the run is {cell.start.title})" if cell.start else ""
    raise BadInput(
        f"init_from={cell.init_from}: no {run}/{name} below runs={root}, {there}; "
        "checkpoint.epochs=[N] keeps those of epochs, checkpoint=keep the last, and force=true "
        "trains a finished run again"
    )
