"""Train a job in its worker process: lock the folder, keep state and W&B run, write the row."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytorch_lightning.utilities.memory import is_oom_error

from normbench import run_files
from normbench.errors import DamagedFile, OutOfMemory, leave_out, one_line
from normbench.execution import rendezvous
from normbench.execution.distributed_env import slurm_job_id
from normbench.execution.job import Job
from normbench.execution.provenance import now, processor, versions
from normbench.execution.recorder import Recorder, Report
from normbench.execution.wandb_logger import Mirror, describe_result, describe_training
from normbench.execution.worker_process import INTERRUPTED, stop_signals
from normbench.records.history import CurveRecord, read_history
from normbench.records.hits import TEST_HITS
from normbench.records.probes import PROBES
from normbench.results import (
    CHECKPOINT,
    PREDICTIONS,
    Row,
    find_row,
    obsolete_files,
    set_aside,
    write,
)
from normbench.training import checkpoint
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.experiment import Experiment
from normbench.training.hardware import current_rank
from normbench.training.seed_stacking import train_stacked
from normbench.training.stop_signals import Stopped
from normbench.training.trainer import train
from normbench.training.training import Training


def train_jobs(jobs: Sequence[Job], report: Report) -> list[str]:
    """Train a job, or several that differ in their seeds as one network; skip finished ones.

    Jobs that resume are stacked with others at the same step. Ranks above 0 only compute. Progress
    messages are pairs (index of the job, progress), or (index, sentence for the user).

    Returns:
        For each job the status of its row; "finished" if there is one already, "busy" if another
        process trains it.

    Raises:
        OutOfMemory: the network does not fit into memory under its plan.
        BaseException: whatever else ended the training. It is in the states of the runs, too.
    """
    first = jobs[0]
    if first.plan.devices > 1:
        rendezvous.open_store()
        if current_rank() > 0:
            return _train_as_follower(first)
    with ExitStack() as locks:
        statuses = [_lock(job, locks) for job in jobs]
        indices = [index for index, status in enumerate(statuses) if not status]
        if first.external_ranks:
            rendezvous.announce(train=bool(indices))
        for group in _group_by_step(jobs, indices) if len(jobs) > 1 else [indices]:
            # W&B runs are closed after all rows are written: that may take long, or fail.
            with ExitStack() as wandb_runs, ExitStack() as recorded:
                recorders = {
                    index: recorded.enter_context(_recorded(jobs[index], index, report, wandb_runs))
                    for index in group
                }
                for index in recorders.keys() - {0}:
                    _point_to_log(jobs[index], first)
                trainings = [recorder.training for recorder in recorders.values()]
                # Also a stack of which one seed is left: alone its last digits would be others.
                results = train_stacked(trainings) if len(jobs) > 1 else list(map(train, trainings))
                for recorder, result in zip(recorders.values(), results, strict=True):
                    recorder.result = result
            for index, recorder in recorders.items():
                statuses[index] = recorder.status
    return statuses


def dismiss_ranks(_argument: Any, _report: Report) -> str:
    """Tell the other ranks of a run, from rank 0, that there is nothing to train."""
    rendezvous.open_store()
    rendezvous.announce(train=False)
    return "dismissed"


def _train_as_follower(job: Job) -> list[str]:
    if job.external_ranks and not rendezvous.await_decision():
        return ["dismissed"]
    with exceptions_of_training():
        experiment = Experiment(job.cell, job.plan)
        checkpoints, state = _checkpoints(job, writes=False), _initial_state(job, experiment)
        train(Training(experiment, checkpoints=checkpoints, state=state, stop_signals=stop_signals))
    return ["followed"]


def _lock(job: Job, locks: ExitStack) -> str:
    """Lock the folder of `job`; return "busy" or "finished" if it must not be trained, else ""."""
    try:
        locks.enter_context(run_files.lock(job.folder))
    except run_files.RunLocked:
        return "busy"
    run_files.remove_temporary_files(job.folder)
    row = None if job.force else find_row(job.folder)
    return "finished" if row is not None and row.final else ""


def _set_folders_aside(folder: Path) -> None:
    """Rename folders that have the names of files of a run."""
    names = ("*.pt", "*.json", "history.csv", TEST_HITS)
    for name in (*names, f"{PROBES}/*.csv"):
        for path in folder.glob(name):
            if path.is_dir():
                aside = path.with_name(f"{path.name}.{time.time_ns()}")
                print(f"{path} is a folder; it is now {path.rename(aside)}")


def _group_by_step(jobs: Sequence[Job], indices: Sequence[int]) -> list[list[int]]:
    """Group the jobs with these indices by the step at which their training begins."""
    groups: dict[int, list[int]] = {}
    for index in indices:
        job = jobs[index]
        state = _initial_state(job, Experiment(job.cell, job.plan, job.network_fields))
        groups.setdefault(state["done"] if state else 0, []).append(index)
    return list(groups.values())


def _write_to_log(job: Job, line: str) -> None:
    """Add a line with the time to the log of this run, whose process may train others, too."""
    with suppress(OSError), job.log.open("a") as log:  # the disk may be full
        log.write(f"{now()}  {line}\n")


def _describe_start(job: Job, done: int, versions: Mapping[str, str]) -> str:
    packages = " ".join(f"{name}={number}" for name, number in versions.items() if number)
    resumed = f"  resumes at step {done}" if done else ""
    return f"{job.cell.title}{resumed}  {job.plan}  commit={job.commit or 'unknown'} {packages}"


def _point_to_log(job: Job, first: Job) -> None:
    """Point the log of this run to the log of the run it shares a process with."""
    with job.log.open("a") as log:
        log.write(f"stacked with {first.cell.id}, whose log has the output: {first.log}\n")


def _initial_state(
    job: Job, experiment: Experiment, report_damage: Callable[[str], None] = lambda _: None
) -> State | None:
    """Return the state to continue from: the last checkpoint of the run, or that of init_from.

    A damaged checkpoint of the run is none; `report_damage` receives a clause about it.
    """
    path = job.folder / CHECKPOINT
    if job.resume and path.exists():
        try:
            state = checkpoint.load_state(path)
            network = experiment.info.network
            if not (damage := checkpoint.explain_damage(state, network, *experiment.count_steps())):
                return state
            report_damage(f"{path}: {damage}")
        except DamagedFile as error:  # written by another version, for example
            report_damage(str(error))
    if job.init_checkpoint is None:
        return None
    start = checkpoint.load_state(job.init_checkpoint)
    return checkpoint.begin_run(start, job.cell.init_only, dense=not experiment.task.by_image)


def _checkpoints(job: Job, *, writes: bool) -> Checkpoints:
    options = job.cell.checkpoint
    return Checkpoints(job.folder, options.every, options.epochs, final=options.keep, writes=writes)


def _prepare_folder(folder: Path, state: State | None) -> list[CurveRecord]:
    """Make room for a training; return the records of the curve up to its `state`.

    An older row is kept aside until the new one is written.
    """
    set_aside(folder)
    for name in (TEST_HITS, PREDICTIONS):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    if state is None or checkpoint.is_new_run(state):
        checkpoint.remove_checkpoints(folder)
        shutil.rmtree(folder / PROBES, ignore_errors=True)
        return []
    try:
        return [record for record in read_history(folder) if record["step"] <= state["done"]]
    except FileNotFoundError:
        return []
    except DamagedFile as damage:
        leave_out(damage)
        return []


def _write_running_state(job: Job) -> str | None:
    """Write that this process trains the run; return the id of its W&B run, if it resumes one."""
    folder, cell = job.folder, job.cell
    if not (job.resume and (folder / CHECKPOINT).exists()):
        with suppress(FileNotFoundError):  # a stacked run may have no log of its own
            os.truncate(job.log, 0)
    _set_folders_aside(folder)
    earlier_id = None if job.force else run_files.read_state(folder).get("mirror")
    process: dict[str, Any] = {"title": cell.title, "pid": os.getpid(), "plan": str(job.plan)}
    process |= {"host": platform.node(), "job": slurm_job_id(), "keeps": cell.checkpoint.keep}
    run_files.write_state(folder, "running", **process)
    return earlier_id


@contextmanager
def _recorded(job: Job, index: int, report: Report, wandb_runs: ExitStack) -> Iterator[Recorder]:
    """Yield the recorder of a training, and write the row of its result.

    The state says that the run is running, and how it ended if it leaves no row. The W&B run is
    closed with `wandb_runs`. Progress is reported with the `index` of the job.
    """
    folder, cell = job.folder, job.cell
    earlier_id = _write_running_state(job)
    origin: dict[str, Any] = {
        "commit": job.commit, "versions": versions(), "cpu": processor(),
        "threads": cell.trainer.threads,
    }  # fmt: skip
    checkpoints = _checkpoints(job, writes=True)
    mirror: Mirror | None = None

    def start_over(damage: str) -> None:
        kept = checkpoint.set_aside_damaged(folder)
        sentence = f"{damage}, so the training starts over; the file is kept as {kept.name}"
        print(sentence)
        report((index, sentence))

    try:
        experiment = Experiment(job.cell, job.plan, job.network_fields)
        state = _initial_state(job, experiment, start_over)
        if state is not None and not checkpoint.is_new_run(state):
            checkpoints.done = state["done"]
        _write_to_log(job, _describe_start(job, checkpoints.done, origin["versions"]))
        past = _prepare_folder(folder, state)
        description = describe_training(cell, job.sweep, origin, earlier_id)
        mirror = Mirror(cell.logger.options, folder, description)
        if mirror.id is not None:
            run_files.update_state(folder, mirror=mirror.id)
        training = Training(
            experiment, checkpoints=checkpoints, state=state, stop_signals=stop_signals
        )
        recorder = Recorder(job, index, report, mirror, training, past)
        with exceptions_of_training():
            yield recorder
        row = Row(
            **cell.description(job.sweep), **recorder.result, **origin,
            wandb=mirror.address, wandb_failure=mirror.failure,
            computation=job.computation, finished=now(),
        )  # fmt: skip
        # Before W&B, which may fail.
        write(folder, row, obsolete_files(keeps=cell.checkpoint.keep))
        recorder.status = row.status
        _write_to_log(job, f"{row.status}  {row.outcome}  {row.seconds or 0:.0f} s")
    except BaseException as error:
        # Lightning turns Ctrl-C into SystemExit, and a rank may notice the broken connection to an
        # interrupted rank before its own signal.
        interrupted = stop_signals.received or isinstance(error, KeyboardInterrupt)
        phase: run_files.Phase = "interrupted" if interrupted else "failed"
        text = ""
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            text = one_line(error)  # a checkpoint that does not fit, for example
            if interrupted:
                print(text)
        with suppress(OSError):  # the disk may be full; the scheduler shows the error
            run_files.update_state(folder, phase=phase, error=text, saved=checkpoints.done)
        saved = f"step {checkpoints.done} is saved" if checkpoints.done else "no checkpoint"
        _write_to_log(job, f"{phase}  {saved}  {text}".rstrip())
        code = INTERRUPTED if interrupted else 1
        if mirror is not None:
            printed = error if phase == "failed" else None
            wandb_runs.callback(mirror.finish, code, {"status": phase}, log=job.log, error=printed)
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    wandb_runs.callback(_finish_mirror, mirror, job, row)


def _finish_mirror(mirror: Mirror, job: Job, row: Row) -> None:
    """Close the W&B run, and write in the row if that failed."""
    mirror.finish(0, *describe_result(row), log=job.log)
    if mirror.failure != row.wandb_failure:
        write(job.folder, replace(row, wandb_failure=mirror.failure))


@contextmanager
def exceptions_of_training() -> Iterator[None]:
    """Turn errors of several libraries about a lack of memory into `OutOfMemory`.

    A training that was stopped, perhaps by a signal to another rank, is interrupted.
    """
    try:
        yield
    except Stopped:
        raise KeyboardInterrupt from None
    except Exception as error:
        if is_oom_error(error):
            raise OutOfMemory(one_line(error)) from error
        raise
