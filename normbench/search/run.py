"""Run a search on this machine or in jobs of a cluster, and print its candidates as they come."""

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from normbench.config.cells import Cell, Settings
from normbench.config.plan import share_of_cores, usable_cores
from normbench.errors import BadInput, DamagedFile, count
from normbench.execution import process_group, worker_process
from normbench.execution.conclusion import stop_by_signals
from normbench.execution.distributed_env import slurm_job_id
from normbench.execution.job import PreflightRequest
from normbench.execution.process_group import ProcessGroup
from normbench.execution.progress import print_line, waiting
from normbench.execution.slurm import Cluster
from normbench.execution.sweep import PRELOAD, Interrupted
from normbench.run_files import open_locked, read_json, require_writable, write_json
from normbench.search.candidates import Candidate, Records, read_baselines
from normbench.search.request import SearchRequest, parse_request, write_search_file
from normbench.search.results import print_best
from normbench.search.space import BASELINES

WORKER = "normbench.search.worker:work"
JOBS = "jobs.json"  # ids of the jobs of a cluster
POLL = 1.0  # seconds between two looks into the folder
QUERY = 5.0  # seconds between two calls of squeue


def run(name: str, words: Sequence[str]) -> int:
    """Search until all candidates are evaluated; return the exit code.

    Raises:
        BadInput: the words cannot be used; nothing was trained.
    """
    request, settings = parse_request(name, words)
    require_writable(
        request.folder,
        f"runs={settings.runs}",
        "use a writable folder, as runs=$HOME/normbench-runs",
    )
    try:
        with stop_by_signals():
            gpus = check_trainings(request.cells, settings, show=True)
            write_search_file(request)
            if settings.launcher:
                failed = _search_on_cluster(request, settings)
            else:
                failed = search_here(request, settings.jobs, gpus, show=True)
    except Interrupted as stop:
        print_line(f"stopped by signal {stop.number}; the same command continues the search")
        return 128 + stop.number
    for line in failed:
        print_line(f"failed: {line}")
    print_best(request.folder)
    return 1 if failed else 0


def check_trainings(cells: Sequence[Cell], settings: Settings, *, show: bool) -> int:
    """Check the trainings as those of any other command; return the GPUs that they use.

    Raises:
        BadInput: one of them cannot work with the formula of conf/norm/graph.yaml.
    """
    text = "importing torch and checking the trainings ..."
    with waiting(text) if show else nullcontext():
        start_server()
        preflight = PreflightRequest(cells, settings, None, {})
        end = process_group.wait_for_exit(
            process_group.start("normbench.search.worker:check", preflight, log=preflight.log)
        )
    if not end.succeeded:
        failure = f"the check of the trainings failed: {end.reason}; see {preflight.log}"
        raise BadInput(end.reason if end.kind == "refused" else failure)
    return int(end.result)


def start_server() -> None:
    """Start the process that imports torch once for all workers."""
    worker_process.start_server([*PRELOAD, "normbench.search.worker", "normbench.norms.graph"])


def search_here(
    request: SearchRequest, jobs: int | None, gpus: int | None, *, show: bool
) -> list[str]:
    """Evaluate the candidates that are left in processes of this machine; return failures.

    Args:
        request: the search.
        jobs: processes; None: as many as there are GPUs or else CPU cores.
        gpus: CUDA devices among which they are divided; None: each sees all.
        show: print the candidates.
    """
    threads = max(cell.trainer.threads for cell in request.cells)
    cores = max(1, usable_cores() // threads)
    jobs = jobs or min(gpus or cores, request.options.in_flight)
    if show:
        place = count(gpus, "GPU") if gpus else f"threads={threads}"
        print_line(f"{count(jobs, 'candidate')} at a time, {place}")
    start_server()
    groups: list[ProcessGroup] = []
    failed = []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # indices or UUIDs: kept as they are
    devices = visible.split(",") if visible else [str(gpu) for gpu in range(gpus or 0)]
    # The jobs of a cluster share the folder, so that their logs have their ids.
    logs = [request.folder / f"worker.{slurm_job_id() or number}.log" for number in range(jobs)]
    readers = share_of_cores(jobs)
    request = replace(request, cells=tuple(c.with_readers(readers) for c in request.cells))
    watch = Watch(request) if show else None
    try:
        for log in logs:
            gpu = devices[len(groups) % gpus] if gpus else None
            environment = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
            groups.append(process_group.start(WORKER, request, log=log, environment=environment))
        running = dict(zip(groups, logs, strict=True))
        while running:
            process_group.wait(running, POLL)
            for group, log in list(running.items()):
                for _ in group.messages():
                    pass
                if (end := group.poll()) is not None:
                    del running[group]
                    if not end.succeeded:
                        failed.append(f"{end.reason}; see {log}")
            if watch is not None:
                watch.print_new()
    except BaseException:
        process_group.stop(groups)
        raise
    return failed


class Watch:
    """Print the candidates of a search once each, in their order."""

    def __init__(self, request: SearchRequest) -> None:
        self.request, self.records = request, Records(request.folder)
        self.printed = len(self.records.completed_prefix(request.options.candidates))
        self.printed_baselines = set(read_baselines(request.folder))
        if self.printed:
            print_line(f"{count(self.printed, 'candidate')} evaluated before")

    @property
    def done(self) -> bool:
        """True if all baselines and candidates have a record."""
        baselines = len(self.printed_baselines) == len(BASELINES)
        return baselines and self.printed >= self.request.options.candidates

    def print_new(self) -> None:
        """Print the candidates since the last call, up to the first that is missing."""
        for name, baseline in read_baselines(self.request.folder).items():
            if name not in self.printed_baselines:
                self.printed_baselines.add(name)
                print_line(f"{name:>10}  {describe(baseline)}")
        total = self.request.options.candidates
        while self.printed < total and (candidate := self.records.find(self.printed)) is not None:
            print_line(f"{candidate.number:>10}  {describe(candidate)}")
            self.printed += 1


def describe(candidate: Candidate) -> str:
    """Return verdict, scores or reason, and formula as one line."""
    shown = " ".join(f"{score:5.1f}" for score in candidate.scores)
    if candidate.cost is not None:
        shown += f"  cost {candidate.cost:.3g}"
    result = "  ".join(filter(None, [shown, candidate.reason]))
    rejected = "" if candidate.valid else "rejected: "
    return f"{rejected}{candidate.verdict:<12}  {result}  {candidate.formula}"


@dataclass(frozen=True)
class SearchJob:
    """A job of a cluster: a worker on its node."""

    request: SearchRequest

    def __call__(self) -> None:
        """Evaluate candidates until none is left, on the devices of the job.

        Raises:
            RuntimeError: the worker failed.
        """
        if failed := search_here(self.request, 1, gpus=None, show=False):
            raise RuntimeError(failed[0])

    def checkpoint(self) -> Any:
        """Return the job that continues later; submitit calls this before a preemption."""
        from submitit.helpers import DelayedSubmission

        process_group.stop(ProcessGroup.active)
        return DelayedSubmission(self)


def _search_on_cluster(request: SearchRequest, settings: Settings) -> list[str]:
    """Submit workers as jobs of a cluster, and watch until all candidates are evaluated."""
    cluster = Cluster(settings.launcher, Path(settings.runs))
    request = replace(request, folder=request.folder.resolve())
    watch = Watch(request)
    if watch.done:
        return []
    with open_locked(request.folder / "lock", wait=True):  # two commands would both submit
        active = cluster.active(_read_jobs(request.folder))
        missing = max(0, (settings.jobs or 1) - len(active))
        arrays = cluster.submit([SearchJob(request)] * missing)
        ids = active | {job.job_id for jobs in arrays for job in jobs}
        write_json(request.folder / JOBS, {"jobs": sorted(ids)})
    print_line(
        f"{count(missing, 'job')} submitted, {len(active)} active before; logs: {cluster.logs}"
    )
    try:
        while ids:
            watch.print_new()
            if watch.done:
                return []
            time.sleep(QUERY)
            ids = cluster.active(ids)
    except Interrupted:
        print_line(
            f"{count(len(ids), 'job')} in the queue; the same command follows them, "
            f"`scancel {' '.join(sorted(ids))}` cancels"
        )
        raise
    watch.print_new()
    evaluated = f"{watch.printed} of {request.options.candidates} candidates"
    return [] if watch.done else [f"all jobs ended after {evaluated}; logs: {cluster.logs}"]


def _read_jobs(folder: Path) -> set[str]:
    try:
        return set(read_json(folder / JOBS)["jobs"])
    except (FileNotFoundError, DamagedFile, KeyError):
        return set()
