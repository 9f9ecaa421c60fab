"""One run in its own process: lock the folder, keep state and mirror, train, write the row."""

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import wandb

from normbench import tracking
from normbench.cells import Request
from normbench.children import one_line
from normbench.results import Busy, History, Phase, Row, load, locked, write, write_state
from normbench.task import Record
from normbench.training import train

PACKAGES = (
    "normbench",
    "torch",
    "pytorch-lightning",
    "torchmetrics",
    "hydra-core",
    "wandb",
    "timm",
    "numpy",
)


def main(request: Request, tell: Callable[[Any], None]) -> str:
    """Train the cell of `request` unless it is finished.

    Returns:
        The status of its row; "finished" if a row was there, "busy" if another process trains it.

    Raises:
        BaseException: whatever ended the training. The state of the run says so too.
    """
    try:
        with locked(request.folder):
            if not request.force and _finished(request.folder / "row.json"):
                return "finished"
            _clear(request.folder)
            return _kept(request, tell)
    except Busy:
        return "busy"


def _finished(path: Path) -> bool:
    return path.exists() and load(path).final


def _clear(folder: Path) -> None:
    """Make room for a new run; the row of an older one is kept aside until the new one is there."""
    if (folder / "row.json").exists():
        (folder / "row.json").replace(folder / "previous.json")
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    os.truncate(folder / "log.txt", 0)


def _kept(request: Request, tell: Callable[[Any], None]) -> str:
    """The training, between a state and a row, and its mirror in W&B."""
    write_state(request.folder, "running", pid=os.getpid(), host=platform.node())
    mirror = None
    try:
        mirror = tracking.start(request.cell, request.folder, request.sweep)
        row = describe(request, _train(request, tell, mirror), tracking.place(mirror))
    except BaseException as error:
        interrupted = _is_interrupt(error)
        phase: Phase = "interrupted" if interrupted else "failed"
        write_state(request.folder, phase, "" if interrupted else one_line(error))
        tracking.finish(mirror, {"status": phase}, 130 if interrupted else 1)
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    write(request.folder, row)  # first: what W&B does from here on can lose nothing
    (request.folder / "previous.json").unlink(missing_ok=True)
    tracking.finish(mirror, _summary(row), 0)
    return row.status


def _train(
    request: Request, tell: Callable[[Any], None], mirror: wandb.Run | None
) -> dict[str, Any]:
    history = History(request.folder)

    def curve(record: Record) -> None:
        history.add(record)
        if mirror is not None:
            mirror.log(record, step=int(record["step"]), commit=True)

    def progress(done: int, steps: int, loss: float) -> None:
        tell({"done": done, "steps": steps, "loss": loss})

    return train(request.cell, curve, progress)


def _is_interrupt(error: BaseException) -> bool:
    # Lightning turns Ctrl-C into an exit of its own.
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt)
    )


def describe(request: Request, found: Mapping[str, Any], mirror: str = "") -> Row:
    """The row of a run, with what its training found."""
    return Row(
        **request.cell.asked(request.sweep),
        **found,
        wandb=mirror,
        threads=request.cell.trainer.threads,
        finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
        versions={name: _version(name) for name in PACKAGES},
        commit=request.commit,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout that is not installed
        return ""


def _summary(row: Row) -> dict[str, Any]:
    measured = ("train_loss", "train_top1", "val_top1", "test_top1", "test_top5", "test_loss")
    also = ("status", "params", "macs", "seconds", "images_per_second", "peak_memory")
    return {name: getattr(row, name) for name in (*measured, *also)}
