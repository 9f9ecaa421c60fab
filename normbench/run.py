"""One run in its own process: lock the folder, keep state and mirror, train, write the row."""

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import wandb
from pytorch_lightning.utilities.memory import is_oom_error

from normbench import agreement, checkpoint, tracking
from normbench.cells import Request
from normbench.checkpoint import Checkpoints, State
from normbench.children import interrupted, one_line
from normbench.errors import OutOfMemory
from normbench.evaluation import Record
from normbench.history import History, read_history
from normbench.place import job
from normbench.probed import FOLDER, IN_TRAINING, grow
from normbench.provenance import now, versions
from normbench.results import (
    Busy,
    Phase,
    Row,
    change_state,
    load,
    locked,
    read_state,
    set_aside,
    write,
    write_state,
)
from normbench.training import rank, train


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
        with locked(request.folder):
            finished = not request.force and _finished(request.folder / "row.json")
            if request.led:
                agreement.lead(train=not finished)
            return "finished" if finished else _kept(request, tell)
    except Busy:
        if request.led:
            agreement.lead(train=False)
        return "busy"


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


def _kept(request: Request, tell: Callable[[Any], None]) -> str:
    """The training, between a state and a row, and its mirror in W&B."""
    folder = request.folder
    known = read_state(folder).get("mirror")  # of the process that was interrupted
    write_state(folder, "running", **_whereabouts(request))
    mirror = None
    try:
        if not (request.resume and (folder / checkpoint.LAST).exists()):
            os.truncate(folder / "log.txt", 0)
        state = _state(request)
        past = _begin(folder, state)
        mirror = tracking.start(
            request.cell, folder, request.sweep, None if request.force else known
        )
        if mirror is not None:
            change_state(folder, mirror=mirror.id)
        with _memory():
            found = _train(request, tell, mirror, state, past)
        row = describe(request, found, tracking.place(mirror, request.folder.parents[1]))
    except BaseException as error:
        stopped = _is_interrupt(error)
        phase: Phase = "interrupted" if stopped else "failed"
        change_state(folder, phase=phase, error="" if stopped else one_line(error))
        tracking.finish(mirror, {"status": phase}, 130 if stopped else 1)
        if stopped:
            raise KeyboardInterrupt from error
        raise
    write(folder, row)  # first: what W&B does from here on can lose nothing
    (folder / "previous.json").unlink(missing_ok=True)
    if not request.cell.checkpoint.keep:
        (folder / checkpoint.LAST).unlink(missing_ok=True)
    tracking.finish(mirror, _summary(row), 0)
    return row.status


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


def _train(
    request: Request,
    tell: Callable[[Any], None],
    mirror: wandb.Run | None,
    state: State | None,
    past: list[Record],
) -> dict[str, Any]:
    watched = [name for kind in request.cell.probe.kinds for name in IN_TRAINING[kind]]
    history = History(request.folder, past, watched)
    if mirror is not None and mirror.offline:  # its files were begun anew
        for record in past:
            mirror.log(record, step=int(record["step"]))

    def curve(record: Record) -> None:
        history.add(record)
        if mirror is not None:
            mirror.log(record, step=int(record["step"]), commit=True)

    known = False

    def progress(done: int, steps: int, loss: float) -> None:
        nonlocal known
        if not known:  # for whoever only sees the folder
            change_state(request.folder, steps=steps)
            known = True
        tell({"done": done, "steps": steps, "loss": loss})

    return train(
        request.cell, curve, progress,
        plan=request.plan, checkpoints=_checkpoints(request, writes=True), state=state,
        seen=partial(grow, request.folder),
    )  # fmt: skip


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
