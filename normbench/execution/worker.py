"""One run in its own process: lock the folder, keep state and mirror, train, write the row."""

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import wandb
from pytorch_lightning.utilities.memory import is_oom_error

from normbench import run_files
from normbench.config.cells import Request
from normbench.errors import OutOfMemory, one_line
from normbench.execution import agreement, wandb_logger
from normbench.execution.distributed_env import job
from normbench.execution.provenance import now, versions
from normbench.execution.worker_process import interrupted
from normbench.history import History, read_history
from normbench.probed import FOLDER, IN_TRAINING, grow
from normbench.results import Row, load, set_aside, write
from normbench.training import checkpoint, seed_stacking
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.metrics import Record
from normbench.training.trainer import rank, train


def main(request: Request, tell: Callable[[Any], None]) -> str:
    """Train the cell of `request` unless it is finished.

    Of several processes that share the run the first does what is below, and the others train.

    Returns:
        The status of its row; "finished" if a row was there, "busy" if another process trains it.

    Raises:
        OutOfMemory: the run does not fit under the plan of `request`.
        BaseException: whatever else ended the training. The state of the run says so too.
    """
    if request.plan.devices > 1 and rank() > 0:
        return _follow(request)
    try:
        with run_files.locked(request.folder):
            finished = not request.force and _finished(request.folder / "row.json")
            if request.led:
                agreement.lead(train=not finished)
            if finished:
                return "finished"
            with ExitStack() as mirrors, _kept(request, tell, mirrors) as training:
                training.found = training.alone()
            return training.status
    except run_files.Busy:
        if request.led:
            agreement.lead(train=False)
        return "busy"


def several(requests: Sequence[Request], tell: Callable[[Any], None]) -> list[str]:
    """Train the cells of `requests`, which differ in their seeds, as one network.

    What it tells is a pair: which of them it is about, and what `main` would tell. Those that are
    finished, or that another process trains, are left out; trainings that go on do so with those
    that were as far.

    Returns:
        Of each what `main` would return.
    """
    with ExitStack() as locks:
        found = [_open(each, locks) for each in requests]
        for numbers in _by_step(requests, [n for n, word in enumerate(found) if not word]):
            # Mirrors are closed when all rows are there: W&B may take its time, or fail.
            with ExitStack() as mirrors, ExitStack() as open_:
                own = [
                    open_.enter_context(_kept(requests[n], partial(_about, tell, n), mirrors))
                    for n in numbers
                ]
                for number in numbers:
                    if number:
                        _point(requests[number].folder, requests[0].folder)
                results = seed_stacking.train([each.beside for each in own], requests[0].plan)
                for training, result in zip(own, results, strict=True):
                    training.found = result
            for number, training in zip(numbers, own, strict=True):
                found[number] = training.status
    return found


def _open(request: Request, locks: ExitStack) -> str:
    """Lock the run of `request`; nothing, or the word for why it is not trained."""
    try:
        locks.enter_context(run_files.locked(request.folder))
    except run_files.Busy:
        return "busy"
    finished = not request.force and _finished(request.folder / "row.json")
    return "finished" if finished else ""


def _point(folder: Path, first: Path) -> None:
    """Say in the log of a run where that is which it is trained with."""
    text = f"trained together with {first.name}; what was printed is in {first / 'log.txt'}\n"
    with (folder / "log.txt").open("a") as log:
        log.write(text)


def _about(tell: Callable[[Any], None], number: int, content: Any) -> None:
    tell((number, content))


def _by_step(requests: Sequence[Request], numbers: Sequence[int]) -> list[list[int]]:
    """Of the requests with these numbers those together that go on from the same step."""
    found: dict[int, list[int]] = {}
    for number in numbers:
        state = _state(requests[number])
        found.setdefault(state["done"] if state else 0, []).append(number)
    return list(found.values())


def dismiss(_request: Any, _tell: Callable[[Any], None]) -> str:
    """Tell the other processes of a run that there is nothing to train."""
    agreement.lead(train=False)
    return "dismissed"


def _follow(request: Request) -> str:
    if request.led and not agreement.follow():
        return "dismissed"
    with _memory():
        state = _state(request)
        saved = _checkpoints(request, writes=False)
        train(
            request.cell, lambda _: None, lambda *_: None,
            plan=request.plan, checkpoints=saved, state=state,
        )  # fmt: skip
    return "followed"


def _finished(path: Path) -> bool:
    return path.exists() and load(path).final


def _state(request: Request) -> State | None:
    """What the training goes on from: its own last checkpoint, or what the cell begins with."""
    own = request.folder / checkpoint.LAST
    if request.resume and own.exists():
        try:
            return checkpoint.load(own)
        except Exception as error:  # of another version, say: the training can begin anew
            print(f"{own} cannot be read ({one_line(error)}), so the training begins anew")
    if request.init is None:
        return None
    # It goes on where the other was, but is a training of its own.
    state = checkpoint.load(request.init)
    fresh = {"fresh": [], "last": [], "training_seconds": 0.0, "resumed": -1}
    return state | fresh | {"began": state["done"]}


def _checkpoints(request: Request, *, writes: bool) -> Checkpoints:
    asked = request.cell.checkpoint
    return Checkpoints(request.folder, asked.every, asked.epochs, final=asked.keep, writes=writes)


def _begin(folder: Path, state: State | None) -> list[Record]:
    """Make room for a training; the part of the curve that its `state` has.

    The row of an older one is kept aside until the new one is there.
    """
    set_aside(folder)
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    if state is None or state["resumed"] < 0:
        checkpoint.clear(folder)
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        return []
    if not (folder / "history.csv").exists():
        return []
    return [record for record in read_history(folder) if record["step"] <= state["done"]]


@contextmanager
def _kept(
    request: Request, tell: Callable[[Any], None], mirrors: ExitStack
) -> Iterator["Training"]:
    """A training between a state and a row, with its mirror in W&B; what it finds makes the row.

    The mirror is closed with `mirrors`.
    """
    folder = request.folder
    known = run_files.read(folder).get("mirror")  # of the process that was interrupted
    run_files.write(folder, "running", **_whereabouts(request))
    mirror = None
    try:
        if not (request.resume and (folder / checkpoint.LAST).exists()):
            with suppress(FileNotFoundError):  # what is printed goes to the log of another seed
                os.truncate(folder / "log.txt", 0)
        state = _state(request)
        past = _begin(folder, state)
        mirror = wandb_logger.start(
            request.cell, folder, request.sweep, None if request.force else known
        )
        if mirror is not None:
            run_files.change(folder, mirror=mirror.id)
        training = Training(request, tell, mirror, state, past)
        with _memory():
            yield training
        row = describe(
            request, training.found, wandb_logger.place(mirror, request.folder.parents[1])
        )
        training.status = row.status
    except BaseException as error:
        stopped = _is_interrupt(error)
        phase: run_files.Phase = "interrupted" if stopped else "failed"
        run_files.change(folder, phase=phase, error="" if stopped else one_line(error))
        mirrors.callback(wandb_logger.finish, mirror, {"status": phase}, 130 if stopped else 1)
        if stopped:
            raise KeyboardInterrupt from error
        raise
    write(folder, row)  # first: what W&B does from here on can lose nothing
    (folder / "previous.json").unlink(missing_ok=True)
    if not request.cell.checkpoint.keep:
        (folder / checkpoint.LAST).unlink(missing_ok=True)
    mirrors.callback(wandb_logger.finish, mirror, _summary(row), 0)


def _whereabouts(request: Request) -> dict[str, Any]:
    """Where the run is trained, for its state."""
    own = {
        "title": request.cell.title,
        "pid": os.getpid(),
        "host": platform.node(),
        "plan": str(request.plan),
        "job": job(),
    }
    return {name: value for name, value in own.items() if value is not None}


@contextmanager
def _memory() -> Iterator[None]:
    """What each library raises when the memory is full becomes one exception."""
    try:
        yield
    except Exception as error:
        if is_oom_error(error):
            raise OutOfMemory(one_line(error)) from error
        raise


class Training:
    """One training on the way: where its records go, and what it found.

    Args:
        request: of it.
        tell: takes how far it is.
        mirror: in W&B.
        state: that it goes on from.
        past: the records of the curve until there.
    """

    def __init__(
        self,
        request: Request,
        tell: Callable[[Any], None],
        mirror: wandb.Run | None,
        state: State | None,
        past: list[Record],
    ) -> None:
        self.request, self.tell, self.mirror, self.state = request, tell, mirror, state
        watched = [name for kind in request.cell.probe.kinds for name in IN_TRAINING[kind]]
        self.history = History(request.folder, past, watched)
        self.checkpoints = _checkpoints(request, writes=True)
        self.found: dict[str, Any] = {}
        self.status = ""
        self.known = False
        if mirror is not None and mirror.offline:  # its files were begun anew
            for record in past:
                mirror.log(record, step=int(record["step"]))

    def curve(self, record: Record) -> None:
        """Take a record of the curve."""
        self.history.add(record)
        if self.mirror is not None:
            self.mirror.log(record, step=int(record["step"]), commit=True)

    def progress(self, done: int, steps: int, loss: float) -> None:
        """Say how far it is."""
        if not self.known:  # for whoever only sees the folder
            run_files.change(self.request.folder, steps=steps)
            self.known = True
        self.tell({"done": done, "steps": steps, "loss": loss})

    def seen(self, *found: Any) -> None:
        """Keep what a probe has seen."""
        grow(self.request.folder, *found)

    def alone(self) -> dict[str, Any]:
        """What it finds."""
        return train(
            self.request.cell, self.curve, self.progress,
            plan=self.request.plan, checkpoints=self.checkpoints, state=self.state, seen=self.seen,
        )  # fmt: skip

    @property
    def beside(self) -> seed_stacking.Run:
        """The same, to be trained with other seeds."""
        return seed_stacking.Run(
            self.request.cell, self.curve, self.progress, self.checkpoints, self.state, self.seen
        )


def _is_interrupt(error: BaseException) -> bool:
    # Lightning turns Ctrl-C into an exit of its own; and a rank whose partner was interrupted
    # before it may hear of a broken connection first.
    return interrupted() or isinstance(error, KeyboardInterrupt)


def describe(request: Request, found: Mapping[str, Any], mirror: str = "") -> Row:
    """The row of a run, with what its training found."""
    return Row(
        **request.cell.asked(request.sweep),
        **found,
        wandb=mirror,
        threads=request.cell.trainer.threads,
        computation=request.computation,
        finished=now(),
        versions=versions(),
        commit=request.commit,
    )


def _summary(row: Row) -> dict[str, Any]:
    measured = ("train_loss", "train_top1", "val_top1", "test_top1", "test_top5", "test_loss")
    also = ("status", "reason", "params", "macs", "seconds", "images_per_second", "peak_memory")
    hardware = ("devices", "plan")  # without which no speed says anything
    found = {name: getattr(row, name) for name in (*measured, *also, *hardware)}
    return {**found, "diverged": int(row.status == "diverged")}  # W&B counts numbers alone
