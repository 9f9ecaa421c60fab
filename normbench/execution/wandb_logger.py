"""The mirror of a run in Weights & Biases. It can be absent: nothing here is ever read back."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import wandb
from wandb.env import SERVICE

from normbench.config.cells import Cell
from normbench.errors import one_line
from normbench.results import flat

Mode = Literal["online", "offline", "disabled"]
_open: list[wandb.Run] = []


def start(cell: Cell, folder: Path, sweep: str, known: str | None = None) -> wandb.Run | None:
    """The W&B run of `cell`, its files in `folder`; None if nobody wants one.

    Args:
        cell: what is trained.
        folder: of the run.
        sweep: that asked for it.
        known: id of its W&B run, if one was begun before; that one goes on.
    """
    options = cell.logger.options
    mode = _mode(options.get("mode", "disabled"))
    if mode == "disabled":
        return None
    arguments: dict[str, Any] = {
        "project": options["project"],
        "entity": options["entity"],
        "group": sweep,
        "name": cell.title,
        "tags": [cell.norm.name, cell.model.name, cell.data.name, cell.protocol],
        "config": {
            "id": cell.id,
            "sweep": sweep,
            "options": cell.options,  # in one key: W&B groups by no key with a dot in it
            **flat(cell.identity),
        },
        "dir": folder.resolve(),  # a service that runs share may stand elsewhere
        "id": known,
        "resume": "allow" if known else None,
        "settings": wandb.Settings(
            console="off",  # log.txt has it
            disable_git=True,  # row.json has it
            x_save_requirements=False,  # row.json has what counts, and reading 140 takes 0.15 s
            silent=True,
            reinit="create_new",  # seeds that are trained together have a run each
            # W&B's own 90 s are long for a run of 3 s whose server is gone.
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", 30)),
        ),
    }
    try:
        return _opened(mode, arguments)
    except wandb.errors.CommError as error:
        if mode == "offline" or options["mode"] == "online":
            raise
        print(f"wandb: offline after all, the server did not answer: {error}", flush=True)
        return _opened("offline", arguments)


@contextmanager
def shared() -> Iterator[None]:
    """A service by which runs write and send, for all processes that start in here.

    One that stands already is used and left. A run that finds none starts its own, in a quarter
    of a second.
    """
    if SERVICE in os.environ or os.environ.get("WANDB_MODE") == "disabled":
        yield
        return
    _connect()
    try:
        yield
    finally:
        try:
            wandb.teardown()
        except SystemExit as end:  # rows are there, whatever became of their mirrors
            print(f"wandb: the service that runs shared ended with {end.code}", flush=True)


def _connect() -> None:
    """Be connected to a service; without one that others share `wandb.init` starts its own."""
    try:
        wandb.setup(wandb.Settings(silent=True)).ensure_service()
    except Exception as error:
        print(f"wandb: no service that runs share: {one_line(error)}", flush=True)
        os.environ.pop(SERVICE, None)


def _opened(mode: Mode, arguments: dict[str, Any]) -> wandb.Run:
    _connect()
    run = wandb.init(mode=mode, **arguments)
    _open.append(run)
    return run


def place(run: wandb.Run | None, root: Path) -> str:
    """Where the run can be looked at: its address, or the folder that `wandb sync` takes.

    The folder is the one below `root`, that of all runs, which may be moved.
    """
    if run is None:
        return ""
    return run.url or str(Path(run.dir).resolve().parent.relative_to(root.resolve()))


def finish(run: wandb.Run | None, summary: Mapping[str, Any], code: int) -> None:
    """Close the run with what came out of it. atexit does not run in a forked child."""
    if run is None:
        return
    run.summary.update(dict(summary))
    run.finish(exit_code=code)
    _open.remove(run)
    if not _open:
        wandb.teardown(exit_code=code)


def _mode(asked: str) -> Mode:
    if asked == "auto":
        asked = os.environ.get("WANDB_MODE", "") or ("online" if _logged_in() else "offline")
    if asked == "disabled":
        return "disabled"
    return "offline" if asked in ("offline", "dryrun") else "online"


def _logged_in() -> bool:
    try:  # no verification: it would ask the server for every run, and wait where there is none
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.errors.Error as error:
        print(f"wandb: offline, the credentials cannot be used: {error}", flush=True)
        return False
