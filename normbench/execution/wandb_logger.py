"""The run's copy in Weights & Biases. It can be absent: nothing here is read back.

Private parts of wandb in use, each checked by tests/execution/test_private_names.py:

    _WandbSetup.ensure_service  starts the service process that all runs of a sweep share, from a
                                process without a run; public calls start one for each run
    wandb.env.SERVICE           name of the variable by which other processes find that service
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import wandb
from wandb.env import SERVICE

from normbench.config.cells import Cell
from normbench.errors import one_line
from normbench.results import flatten

Mode = Literal["online", "offline", "disabled"]
_open_runs: list[wandb.Run] = []


def start(cell: Cell, folder: Path, sweep: str, run_id: str | None = None) -> wandb.Run | None:
    """Start the W&B run of `cell`; return None if the logger is disabled.

    Args:
        cell: to train.
        folder: of the run; takes the files of W&B.
        sweep: name of the group.
        run_id: id of a W&B run that this one continues.
    """
    options = cell.logger.options
    mode = _resolve_mode(options.get("mode", "disabled"))
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
            "options": cell.options,  # in one key: W&B cannot group by a key with a dot
            **flatten(cell.identity),
        },
        "dir": folder.resolve(),  # the shared service may run in another folder
        "id": run_id,
        "resume": "allow" if run_id else None,
        "settings": wandb.Settings(
            console="off",  # log.txt has the output
            disable_git=True,  # row.json has the commit
            x_save_requirements=False,  # row.json has the versions; listing 140 takes 0.15 s
            silent=True,
            reinit="create_new",  # stacked seeds have one run each
            # W&B's default of 90 s is long for a run of 3 s whose server is gone.
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", 30)),
        ),
    }
    try:
        return _init(mode, arguments)
    except wandb.errors.CommError as error:
        if mode == "offline" or options["mode"] == "online":
            raise
        print(f"wandb: the server did not answer, so this run is offline: {error}", flush=True)
        return _init("offline", arguments)


@contextmanager
def shared_service() -> Iterator[None]:
    """Start the service process of W&B for all processes that start in this context.

    A service that runs already is used and left running. A run that finds none starts its own,
    which takes a quarter of a second.
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
        except SystemExit as end:  # the rows are written, whatever happened to W&B
            print(f"wandb: the shared service ended with exit code {end.code}", flush=True)


def _connect() -> None:
    """Connect to the shared service, or start it; if that fails, `wandb.init` starts its own."""
    try:
        wandb.setup(wandb.Settings(silent=True)).ensure_service()
    except Exception as error:
        print(f"wandb: the shared service cannot be used: {one_line(error)}", flush=True)
        os.environ.pop(SERVICE, None)


def _init(mode: Mode, arguments: dict[str, Any]) -> wandb.Run:
    _connect()
    run = wandb.init(mode=mode, **arguments)
    _open_runs.append(run)
    return run


def location(run: wandb.Run | None, root: Path) -> str:
    """Return the address of the run, or the folder that `wandb sync` takes; "" without a run.

    The folder is relative to `root`, the folder of all runs, which may be moved.
    """
    if run is None:
        return ""
    return run.url or str(Path(run.dir).resolve().parent.relative_to(root.resolve()))


def finish(run: wandb.Run | None, summary: Mapping[str, Any], code: int) -> None:
    """Close the W&B run; wandb's own atexit handler does not run in a forked process."""
    if run is None:
        return
    run.summary.update(dict(summary))
    run.finish(exit_code=code)
    _open_runs.remove(run)
    if not _open_runs:
        wandb.teardown(exit_code=code)


def _resolve_mode(option: str) -> Mode:
    """Return what mode=auto means here: WANDB_MODE, or online for those who are logged in."""
    if option == "auto":
        option = os.environ.get("WANDB_MODE", "") or ("online" if _is_logged_in() else "offline")
    if option == "disabled":
        return "disabled"
    return "offline" if option in ("offline", "dryrun") else "online"


def _is_logged_in() -> bool:
    try:  # without verification, which asks the server for every run and waits if there is none
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.errors.Error as error:
        print(f"wandb: offline, because the credentials cannot be used: {error}", flush=True)
        return False
