"""All runs of a command line: drop the finished, check the others, train what is left.

Nothing here imports torch: that is done in processes of their own
(`normbench.execution.worker_process`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from normbench import results
from normbench.config.cells import Cell, Settings
from normbench.errors import BadInput
from normbench.execution import worker_process
from normbench.execution.distributed_env import Place
from normbench.execution.pool import Machine, Say, Summary, Verdicts, Work, why
from normbench.execution.provenance import commit, now
from normbench.execution.reuse import share, sources
from normbench.execution.scheduler import Jobs
from normbench.execution.slurm import Cluster, Job
from normbench.probed import FOLDER
from normbench.results import Row

# What every child would import anew: the command line, which a child of the console script imports
# again; what wandb.init imports late (slower, once torch is there); then what trains and checks.
PRELOADED = (
    "normbench.__main__", "wandb.sdk.launch", "requests", "normbench.execution.worker",
    "normbench.execution.preflight",
)  # fmt: skip


class Interrupted(Exception):  # noqa: N818
    """The user or the system asked the sweep to stop, by signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(
    cells: Sequence[Cell],
    settings: Settings,
    say: Say,
    own: Place | None = None,
    job: Callable[[Work], Job] | None = None,
) -> Summary:
    """Give every cell a row.

    Args:
        cells: what is asked.
        settings: of the command line.
        say: prints a line.
        own: where this process stands among several that were started for one run.
        job: makes a job of a cluster out of a work; asked if the settings name a launcher.

    Raises:
        BadInput: nothing was trained, because no run could use what was asked.
    """
    remedy = "name a folder that can, as in runs=~/normbench-runs"
    root = results.writable(Path(settings.runs), f"runs={settings.runs}", remedy)
    # All rows, whatever sweep they are of: a damaged one is refused now and not after the training.
    rows = {row.id: row for row in results.read(root)}
    to_do = [cell for cell in cells if settings.force or not _has_row(rows.get(cell.id))]
    summary = Summary(reused=len(cells) - len(to_do))
    open_ = {cell.id for cell in to_do}
    if bare := sum(_lacks_checkpoints(cell, rows, root) for cell in cells if cell.id not in open_):
        say(f"{bare} finished runs have no checkpoint as asked; force=true trains them again")
    if blind := sum(_lacks_looks(cell, rows, root) for cell in cells if cell.id not in open_):
        say(
            f"{blind} finished runs were not looked at as asked by probe; force=true trains them "
            "again, and python -m normbench.probe looks into those that kept their networks"
        )
    _require_one_process(settings, own)
    number = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    say(f"{number}, {summary.reused} finished before, {len(to_do)} to do")
    if not to_do:
        return summary
    begins = {cell.id: beginning(cell, root) for cell in to_do if cell.init_from}
    say("importing torch and checking all cells ...")
    try:
        with _services(to_do, settings):
            verdicts = _check(to_do, root, settings, own)
            able = _sort_out(to_do, verdicts, rows, settings, summary, say)
            works = _divide(able, verdicts, rows, settings, summary, begins)
            _announce(works, summary, say)
            if settings.seeds_together:
                _say_together(works, verdicts.alone, say)
            if settings.launcher:
                assert job is not None
                _make_room(works, settings)
                Cluster(works, settings, summary, say, job).run()
            else:
                machine = Machine(verdicts.gpus, verdicts.memory)
                Jobs(works, settings, summary, machine, say, own).run()
    except Interrupted as stop:
        summary.interrupted = stop.number
    return summary


def _require_one_process(settings: Settings, own: Place | None) -> None:
    if settings.seeds_together and (settings.launcher or own is not None):
        raise BadInput(
            "seeds_together=true: seeds are trained together by one process of this machine, and "
            "here a cluster's jobs or torchrun's processes train a run each; seeds_together=false "
            "works"
        )


def _make_room(works: Sequence[Work], settings: Settings) -> None:
    """A row would end the watching: of a run that is forced, or did not fit elsewhere.

    What is to begin anew has no checkpoint either when its job looks for one.
    """
    for work in works:
        results.set_aside(work.folder)
        if settings.force or not settings.resume:
            (work.folder / results.CHECKPOINT).unlink(missing_ok=True)


def _has_row(row: Row | None) -> bool:
    """What did not fit the memory counts as open until it is known whether there is more now."""
    return row is not None and row.final


def _lacks_checkpoints(cell: Cell, rows: dict[str, Row], root: Path) -> bool:
    """Checkpoints are asked for that a finished run has not kept."""
    asked = [results.KEPT.format(epoch) for epoch in cell.checkpoint.epochs]
    asked += [results.CHECKPOINT] if cell.checkpoint.keep else []
    run = rows[cell.id].shared_with or cell.id
    return rows[cell.id].status == "ok" and not all(any(root.glob(f"*/{run}/{n}")) for n in asked)


def _lacks_looks(cell: Cell, rows: dict[str, Row], root: Path) -> bool:
    """Probes are asked for whose numbers a finished run has not."""
    run = rows[cell.id].shared_with or cell.id
    found = (f"*/{run}/{FOLDER}/{kind}.csv" for kind in cell.probe.kinds)
    trained = rows[cell.id].status in ("ok", "diverged")
    return trained and not all(any(root.glob(path)) for path in found)


def beginning(cell: Cell, root: Path) -> Path:
    """The checkpoint that a cell begins with.

    Raises:
        BadInput: the run has none of that epoch.
    """
    run, _, epoch = str(cell.init_from).partition("@")
    for row in results.read(root, run):
        run = row.shared_with or run
    name = results.CHECKPOINT if epoch == "last" else results.KEPT.format(epoch)
    for path in root.glob(f"*/{run}/{name}"):
        return path
    kept = ", ".join(sorted(path.name for path in root.glob(f"*/{run}/*.pt")))
    remedy = f"there is {kept}" if kept else "no run of that id has kept any"
    raise BadInput(
        f"init_from={cell.init_from}: no {run}/{name} below runs={root}, {remedy}; "
        "checkpoint.epochs=[N] keeps those of epochs, checkpoint=keep the last, and force=true "
        "trains a finished run again"
    )


@contextmanager
def _services(cells: Sequence[Cell], settings: Settings) -> Iterator[None]:
    """What all processes of a sweep stand on: the imports, and what mirrors in W&B write by."""
    worker_process.start_server([*PRELOADED, *_modules(cells)])
    mirrored = any(cell.logger.options.get("mode", "disabled") != "disabled" for cell in cells)
    if settings.launcher or not mirrored:
        yield
        return
    from normbench.execution import wandb_logger  # wandb is imported in half a second

    with wandb_logger.shared():
        yield


def _check(cells: Sequence[Cell], root: Path, settings: Settings, own: Place | None) -> Verdicts:
    """What can be known before training, by `normbench.execution.preflight` in a process of its
    own.

    Raises:
        BadInput: something that no run could use.
    """
    log = root / "check.log"
    # Whether a node of a cluster has the devices that are asked for is for it to say.
    locals_ = None if own is None else own.locals
    request = (list(cells), log, not settings.launcher, locals_, settings.seeds_together)
    end = worker_process.finish(
        worker_process.start("normbench.execution.preflight:check", request, log=log)
    )
    if end.last is not None and end.last.kind == "result":
        found: Verdicts = end.last.content
        return found
    refused = end.last is not None and end.last.kind == "refused"
    raise BadInput(why(end) if refused else f"the check died: {why(end)}; see {log}")


def _modules(cells: Sequence[Cell]) -> list[str]:
    """Our own modules that the cells name; one of somebody else's may fail as it is imported."""
    groups = [each for cell in cells for each in (cell.norm, cell.model, cell.data, cell.recipe)]
    named = {str(group.options.get("_target_", "")).rpartition(".")[0] for group in groups}
    return sorted(name for name in named if name.startswith("normbench."))


def _sort_out(
    cells: Sequence[Cell],
    verdicts: Verdicts,
    rows: dict[str, Row],
    settings: Settings,
    summary: Summary,
    say: Say,
) -> list[Cell]:
    """The cells to train, on hardware that is there. Those that cannot work get their row now."""
    reasons = verdicts.impossible
    if all(reasons.values()) and not summary.reused:
        raise BadInput(f"{cells[0].title} cannot work: {reasons[cells[0].id]}")
    for network, reached in verdicts.coverage.items():
        say(f"{network}: {reached}")
    able = []
    for cell in cells:
        row = rows.get(cell.id)
        if reason := reasons[cell.id]:
            say(f"impossible  {cell.title}: {reason}")
            folder = Path(settings.runs) / settings.sweep / cell.id
            results.write(folder, _impossible(cell, settings.sweep, reason))
        elif settings.launcher:
            able.append(cell)
        elif row is not None and not settings.force and verdicts.memory <= (row.memory or 0):
            summary.reused += 1  # it did not fit, and there is no more memory than then
        else:
            able.append(cell.on(verdicts.accelerator))
    return able


def _impossible(cell: Cell, sweep: str, reason: str) -> Row:
    """The row of a cell that cannot work."""
    asked = cell.asked(sweep)
    return Row(**asked, status="impossible", reason=reason, commit=commit(), finished=now())


def _divide(
    cells: Sequence[Cell],
    verdicts: Verdicts,
    rows: dict[str, Row],
    settings: Settings,
    summary: Summary,
    begins: dict[str, Path],
) -> list[Work]:
    """What is to be trained: of cells that compute the same the first, unless it has been."""
    root = Path(settings.runs)
    known = {} if settings.force else sources(rows.values())
    works: dict[str, Work] = {}
    for cell in cells:
        computation = cell.computation if cell.id in verdicts.shared else ""
        if computation in known:
            share(known[computation], cell, root, settings.sweep)
            summary.shared += 1
        elif computation in works:
            works[computation].sharing.append(cell)
        else:
            folder, whole = root / settings.sweep / cell.id, cell.id in verdicts.whole_step
            beside = settings.seeds_together and not verdicts.alone[cell.id]
            work = Work(cell, folder, computation, begins.get(cell.id), whole, beside)
            works[computation or cell.id] = work
    return list(works.values())


def _announce(works: Sequence[Work], summary: Summary, say: Say) -> None:
    """What will be trained, and how its workers are laid."""
    if sharing := summary.shared + sum(len(work.sharing) for work in works):
        say(f"{len(works)} to train; {sharing} compute the very same as another cell: its row")
    for plan, number in Counter(map(_laid, works)).items():
        say(f"plan of {'1 run' if number == 1 else f'{number} runs'}: {plan}")


def _say_together(works: Sequence[Work], alone: dict[str, str], say: Say) -> None:
    """Which seeds share a network, and why others do not."""
    sizes = Counter(work.alike for work in works if work.together)
    for size, number in sorted(Counter(sizes.values()).items()):
        if size > 1:
            say(f"{size} seeds together in {'1 network' if number == 1 else f'{number} networks'}")
    for reason in dict.fromkeys(alone[work.cell.id] for work in works if not work.together):
        say(f"seeds one by one: {reason}")


def _laid(work: Work) -> str:
    """Its plan, and what of the wishes for it does not divide the workers."""
    plan, trainer = work.plan, work.cell.trainer
    wishes = {"devices": trainer.devices, "per_forward": trainer.per_forward or 0}
    uneven = [
        f"trainer.{name}={wish} is more than divides them"
        for name, wish in wishes.items()
        if wish > getattr(plan, name)
    ]
    return "; ".join([str(plan), *uneven])
