"""Runs in Weights & Biases. They can be absent: nothing here is read back.

No training fails or waits for long because of W&B: each call has a time limit, and after the first
failure a run continues without W&B. `normbench.execution.wandb_summary` is the run of a sweep.
"""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import wandb
from PIL.Image import Image

from normbench.config.cells import Cell
from normbench.config.wandb_options import OFFLINE, read_timeout
from normbench.errors import one_line
from normbench.execution.wandb_service import PATIENCE, connect, time_limit
from normbench.records.json_fields import flatten
from normbench.report.metrics import METRICS
from normbench.results import Row

Mode = Literal["online", "offline", "disabled"]
#: Fields of the row in the summary, and those about code and machine in the config.
SUMMARY = (
    "train_loss", "train_top1", "val_top1", "test_top1", "test_top5", "test_loss",
    "status", "reason", "params", "macs", "seconds", "images_per_second", "peak_memory",
    "devices", "plan",  # without them no speed can be compared
)  # fmt: skip
CONFIG = ("commit", "versions", "cpu", "threads", "impl", "devices")
_open_runs: list[wandb.Run] = []


class Mirror:
    """A run in W&B: a training, or the summary of a sweep.

    After its first failure nothing more is sent. `failure` is the reason, or why a run is offline
    that should be online; "" if there is none. `address` is that of the run on the server, or the
    folder that `wandb sync` takes, relative to the folder of all runs; "" without a run.

    Args:
        options: of the group `logger`.
        folder: that takes the files of W&B, in the folder of its sweep.
        description: arguments of `wandb.init` that say what the run is. A run on the server that
            has their `id` is continued.
    """

    def __init__(
        self, options: Mapping[str, Any], folder: Path, description: Mapping[str, Any]
    ) -> None:
        self.failure = self.address = ""
        self._run: wandb.Run | None = None
        self._metrics: dict[str, dict[str, float]] = {}  # of the curve, as in the summary
        with self._attempt():
            self._run = self._start(options, _arguments(options, folder, description))
        with self._attempt():
            if self._run is not None:
                self.address = self._run.url or _offline_folder(self._run, folder)

    @property
    def id(self) -> str | None:
        """The id of the W&B run, by which a training that resumes continues it."""
        return None if self._run is None else self._run.id

    def send(self, call: Callable[[wandb.Run], object], seconds: float = PATIENCE) -> None:
        """Call `call` with the W&B run, if there is one, for at most `seconds`."""
        if self._run is not None:
            with self._attempt(), time_limit(seconds):
                call(self._run)

    def define_curve(self, columns: Sequence[str]) -> None:
        """Have W&B draw the `columns` of the curve over optimizer steps, and keep the best values.

        In the summary, an accuracy is {last, max} and a loss {last, min}.
        """

        def define(run: wandb.Run) -> None:
            run.define_metric("step")
            for column in columns:
                summary = f"last,{best.__name__}" if (best := _best(column)) else None
                if column != "step":
                    run.define_metric(column, step_metric="step", summary=summary)

        self.send(define)

    def restore(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take earlier records of the curve; an offline run, whose files are new, logs them."""
        for record in records:
            if self._run is not None and self._run.offline:
                self.log(record)
            else:
                self._update_metrics(record)

    def log(self, record: Mapping[str, Any]) -> None:
        """Log a record of the curve."""
        self._update_metrics(record)
        self.send(lambda run: run.log(dict(record), step=int(record["step"]), commit=True))

    def log_image(self, name: str, image: Image) -> None:
        """Log a picture, behind the records of the curve."""
        self.send(lambda run: run.log({name: wandb.Image(image)}, commit=True))

    def finish(
        self,
        code: int,
        summary: Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
        log: Path | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Close the W&B run; wandb's own atexit handler does not run in a forked process.

        Args:
            code: exit code of the run.
            summary: fields of the summary; those of the curve stand beside their best values.
            config: what is known of the run only at its end.
            log: file that is saved with the run.
            error: that ended the run; its traceback is added to the saved log, as the log itself
                gets it only when the process ends.
        """
        run = self._run
        if run is None:
            return
        uploading = 0.0 if run.offline else read_timeout("FINISH")
        known = dict(config or {})
        with self._attempt(), time_limit(uploading + PATIENCE):
            run.config.update(known, allow_val_change=True)  # type: ignore[no-untyped-call]
            if log is not None:
                _save_log(run, log, error)
            # Whole, as W&B forgets the best value of a run that it continues.
            curve = {
                name: {**metric, "last": summary.get(name, metric["last"])}
                for name, metric in self._metrics.items()
            }
            run.summary.update({**summary, **curve})
            run.finish(exit_code=code)
            _open_runs.remove(run)
            with TemporaryFile(dir=run.dir) as probe:  # W&B does not report a full disk
                probe.write(bytes(2**16))
            if not _open_runs:
                wandb.teardown(exit_code=code)

    def _update_metrics(self, record: Mapping[str, Any]) -> None:
        """Update the last and the best value of each metric by a record of the curve."""
        for name, value in record.items():
            if best := _best(name):
                metric = self._metrics.setdefault(name, {})
                metric["last"] = value
                if isfinite(value):
                    key = best.__name__
                    metric[key] = best(value, metric.get(key, value))

    def _start(self, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> wandb.Run | None:
        mode: Mode = self._resolve_mode(options.get("mode", "disabled"))
        if mode == "disabled":
            return None
        try:
            return _init(mode, arguments)
        except wandb.errors.Error as error:  # no server answers, or it refuses the key
            if mode == "offline":
                raise
            self._note(f"the server cannot be used, {OFFLINE}: {one_line(error)}")
            return _init("offline", arguments)

    def _resolve_mode(self, option: str) -> Mode:
        """Return what mode=auto means here: WANDB_MODE, or online for those who are logged in."""
        if option == "auto":
            option = os.environ.get("WANDB_MODE", "")
        if option == "disabled":
            return "disabled"
        if option in ("offline", "dryrun"):
            return "offline"
        if option:
            return "online"
        try:  # without verification, which asks the server for every run and waits if there is none
            with time_limit(PATIENCE):
                return "online" if wandb.login(prompt=False, verify=False) else "offline"
        except (wandb.errors.Error, TimeoutError) as error:
            self._note(f"the key cannot be used, {OFFLINE}: {one_line(error)}")
            return "offline"

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Give up the W&B run if the block fails."""
        try:
            yield
        # W&B, its service, its server and the disk may raise any exception.
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            self._note(one_line(error))
            if self._run in _open_runs:
                _open_runs.remove(self._run)
            self._run = None

    def _note(self, failure: str) -> None:
        print(f"wandb: {failure}", flush=True)
        self.failure = self.failure or failure


def describe_training(
    cell: Cell, sweep: str, origin: Mapping[str, Any], run_id: str | None
) -> dict[str, Any]:
    """Return the description of the W&B run of a training.

    Args:
        cell: to train.
        sweep: name of the group.
        origin: fields of the row about code and machine that are known before the training.
        run_id: id of a W&B run that this one continues.
    """
    return {
        "group": sweep,
        "name": cell.title,
        "job_type": "train",
        "notes": f"Training of {cell.title}",
        "tags": [cell.norm.name, cell.model.name, cell.data.name, cell.protocol],
        "config": {
            "id": cell.id,
            "sweep": sweep,
            "options": cell.options,  # in one key: W&B cannot group by a key with a dot
            **flatten(cell.identity),
            **origin,
        },
        "id": run_id,
    }


def describe_result(row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the summary of the W&B run that left `row`, and what its config gets at the end."""
    summary = {name: getattr(row, name) for name in SUMMARY} | row.metrics
    config = {name: value for name in CONFIG if (value := getattr(row, name))}
    return {**summary, "diverged": int(row.status == "diverged")}, config  # it counts only numbers


def _arguments(
    options: Mapping[str, Any], folder: Path, description: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `wandb.init`, without the mode."""
    if not options:  # logger=none
        return {}
    return {
        **description,
        "project": options["project"],
        "entity": options["entity"],
        "dir": folder.resolve(),  # the shared service may run in another folder
        "resume": "allow" if description["id"] else None,
        "settings": wandb.Settings(
            console="off",  # log.txt has the output
            disable_git=True,  # row.json has the commit
            x_save_requirements=False,  # row.json has the versions; listing 140 takes 0.15 s
            silent=True,
            reinit="create_new",  # stacked seeds have one run each
            init_timeout=read_timeout("INIT"),
            finish_timeout=read_timeout("FINISH"),
            finish_timeout_raises=True,
        ),
    }


def _init(mode: Mode, arguments: Mapping[str, Any]) -> wandb.Run:
    connect()
    with time_limit(read_timeout("INIT") + PATIENCE):
        run = wandb.init(mode=mode, **arguments)
    _open_runs.append(run)
    return run


def _offline_folder(run: wandb.Run, folder: Path) -> str:
    """Return the folder that `wandb sync` takes, relative to the folder of all runs.

    It may be moved.
    """
    offline, root = Path(run.dir).resolve().parent, folder.parents[1].resolve()
    if not offline.is_relative_to(root):
        raise OSError(f"{folder} cannot be written by W&B, which would write to {offline}")
    return str(offline.relative_to(root))


def _best(name: str) -> Callable[[float, float], float] | None:
    """Return which of two values of a metric of the curve is better, or None if it is no metric."""
    split, _, metric = name.partition("_")
    if split not in ("train", "val"):
        return None
    known = METRICS.get(f"test_{metric}")
    return min if known and known.better == "lower" else max


def _save_log(run: wandb.Run, log: Path, error: BaseException | None) -> None:
    """Save a copy of `log`, as a link to it would break if the folder of the run is moved."""
    copy = Path(run.dir, log.name)
    text = "".join(traceback.format_exception(error)) if error is not None else ""
    copy.write_bytes(log.read_bytes() + text.encode(errors="backslashreplace"))
    run.save(copy, base_path=run.dir, policy="now", glob=False)
