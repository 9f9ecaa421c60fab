"""Results of runs: the row, and how rows are written and read. Standard library only.

A finished run leaves `<runs>/<sweep>/<run id>/` with

    row.json       the typed row, written last and atomically
    history.csv    the training curve (`normbench.records.history`)
    test_hits.bin  test images that it classified correctly (`normbench.records.hits`)
    log.txt        start and end of the run, warnings and tracebacks between them
    previous.json  the row of the previous training, while force=true trains again
    damaged.json   a damaged row, whose run was trained again
    *.pt           checkpoints

and the files of `normbench.run_files`. A study is the same in one file
(`normbench.records.studies`).

A row is damaged if its file cannot be read, lacks a field or has one of another type, or if it
contradicts itself: status=ok without an accuracy, the id of another folder. `read_row` raises
`DamagedFile`, `read` leaves the row out and warns by `LeftOut` (both of `normbench.errors`).
"""

import glob
import json
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from normbench.errors import DamagedFile, leave_out
from normbench.records.history import parse_curve, read_history
from normbench.records.hits import (
    TEST_HITS,
    decode_hits,
    encode_hits,
    read_packed_hits,
    unpack_hits,
)
from normbench.records.json_fields import JsonFields
from normbench.records.row_checks import SCHEMA, find_contradiction, upgrade
from normbench.records.studies import read_study_lines, study_file, write_study_lines
from normbench.run_files import (
    RunLocked,
    clear_failures,
    is_file_name,
    lock,
    parse_json,
    read_json,
    read_state,
    remove_temporary_files,
    write_json,
)

REPORTS = "reports"  # folder of generated reports beside the sweeps, so no name of a sweep
CHECKPOINT = "checkpoint.pt"  # the latest checkpoint of a run
PREDICTIONS = "predictions.png"  # of test images beside their targets
EPOCH_CHECKPOINT = "epoch-{}.pt"
DAMAGED_CHECKPOINT = "damaged.pt"  # one from which no training can resume

Status = Literal["ok", "diverged", "impossible", "oom"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Result of one run. Accuracies in percent, sizes in bytes, times in seconds; None: unknown."""

    # The cell and its seed: everything that the id is a hash of, and the sweep that ran it first.
    id: str
    sweep: str
    norm: str
    batch: int  # images per worker
    workers: int
    global_batch: int
    protocol: str
    model: str
    data: str
    reg: str
    recipe: str
    task: str = "classify"
    seed: int
    command_seeds: int | None = None  # seeds of the cell in the command that trained it
    precision: str
    options: str  # options that differ from their yaml, as typed: "norm.groups=8 recipe.lr=0.1"
    config: dict[str, Any]  # every scientific option with its value
    unverified: list[str] = field(default_factory=list)  # options whose value no source gives
    start: dict[str, Any] = field(default_factory=dict)  # how the run of init_from differs

    # Outcome.
    status: Status
    reason: str = ""  # why diverged, impossible or oom, in one sentence
    train_loss: float | None = None  # mean of the last epoch or last tenth of steps, the shorter
    train_top1: float | None = None
    val_top1: float | None = None  # after the last epoch
    test_top1: float | None = None
    test_top5: float | None = None
    test_loss: float | None = None
    test_images: int | None = None  # which of them were classified correctly: test_hits.bin

    # Of another task than classification: its main metric, as test_miou, and all of them.
    metric: str = "test_top1"
    metrics: dict[str, float] = field(default_factory=dict)

    # Under recipe.example_weight: alpha of the evaluations, the usual and best ones, and gains.
    example_weighing: dict[str, float] = field(default_factory=dict)

    # Network and data.
    params: int | None = None
    macs: int | None = None  # multiply-adds of convolutions and linear layers, one image, forward
    inference_params: int | None = None  # with constants folded into convolutions
    inference_operations: int | None = None  # of all kinds, one image; a multiply-add is two
    groups: list[int] = field(default_factory=list)  # group counts in use
    sn_ratios: dict[str, float] = field(default_factory=dict)  # learned by SN, mean over layers
    coverage: str = ""  # which activations and convolutions the normalizer reached
    batch_independent: bool = False
    data_limits: str = ""  # what results on this data set cannot show

    # Execution; no part of the id.
    seconds: float | None = None  # training and evaluation; before an interruption steps alone
    images_per_second: float | None = None  # training steps only
    peak_memory: int | None = None  # allocated on the GPU; on a CPU, of the whole process
    device_memory: int | None = None
    devices: str = ""
    cpu: str = ""  # name, family, model; results repeat bit for bit only on the same one
    plan: str = ""
    threads: int = 0
    channels_last: bool = False
    impl: str = ""  # eager, compile or triton
    cuda_graphs: bool = False  # each step was replayed as a CUDA graph
    loader: str = ""  # memory, torch or ffcv
    stacked_seeds: int = 1  # seeds of the cell trained as one vmapped network
    resumed: int = 0  # how many times training resumed from a checkpoint
    computation: str = ""  # key of the computation; equal keys give equal numbers; "": unknown
    shared_with: str | None = None  # id of the run whose result this row reuses
    wandb: str = ""  # address of the W&B run, or its folder relative to the runs
    wandb_failure: str = ""  # why W&B lacks records of the run, or is offline
    finished: str = ""  # UTC, ISO 8601
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    kind: Literal["run", "probe"] = "run"
    probe: str = ""  # kind of the probe, if this row is one
    probed_run: str = ""  # id of the run whose network was probed
    schema: int = SCHEMA

    @property
    def outcome(self) -> str:
        """The main metric in words, or the reason why there is none."""
        if self.reason or self.result is None:
            return self.reason
        if self.metric == "test_top1":
            return f"test {self.result:.1f} %"
        return f"{self.metric.replace('_', ' ')} {self.result:.4g}"

    @property
    def result(self) -> float | None:
        """The main metric of the task on the test images."""
        return self.test_top1 if self.metric == "test_top1" else self.metrics.get(self.metric)

    @property
    def final(self) -> bool:
        """Return whether the run need not be tried again; oom is, on a device with more memory."""
        return self.status != "oom"


_REMEDY = "the command of this run trains it again and keeps this file beside the new one"

#: Sort key of rows.
row_order = attrgetter("norm", "batch", "seed", "id")


def write(folder: Path, row: Row, obsolete: Sequence[str] = ()) -> None:
    """Write the row of a finished run, and remove its state and files that are `obsolete` now."""
    # The row first: a run with both files counts as finished, a run with neither would be lost.
    write_json(folder / "row.json", asdict(row))
    clear_failures(folder)
    # The state last: where it is left beside a row, so may be the others.
    for name in (*obsolete, "state.json"):
        (folder / name).unlink(missing_ok=True)


def clean_up(folder: Path) -> None:
    """Remove what a process has left in the folder of a run that was killed after the row."""
    if not os.path.lexists(folder / "state.json"):
        return
    with suppress(RunLocked, OSError), lock(folder):
        state = read_state(folder)
        remove_temporary_files(folder)
        for name in (*obsolete_files(keeps=state.get("keeps", True)), "state.json"):
            (folder / name).unlink(missing_ok=True)


def obsolete_files(*, keeps: bool) -> list[str]:
    """Return the files that a row makes obsolete, if the run `keeps` its last checkpoint or not."""
    return ["previous.json"] if keeps else ["previous.json", CHECKPOINT]


def set_aside(folder: Path) -> None:
    """Rename row.json to previous.json while the run is trained again.

    A damaged one becomes damaged.json and stays.
    """
    row, path = find_row(folder), folder / "row.json"
    if os.path.lexists(path):
        path.replace(folder / ("damaged.json" if row is None else "previous.json"))


def read_row(path: Path | str) -> Row:
    """Read a row.json.

    Raises:
        FileNotFoundError: there is no file.
        DamagedFile: it is damaged; the message says what is wrong, and the remedy.
    """
    try:
        return _parse_row(read_json(path))
    except FileNotFoundError:
        if not os.path.islink(path):  # noqa: PTH114 (path may be a text)
            raise
        raise DamagedFile(f"{path} is a link to nothing; {_REMEDY}") from None
    except DamagedFile as damage:  # of the file
        raise DamagedFile(f"{damage}; {_REMEDY}") from None
    except ValueError as problem:  # of the row in it
        raise DamagedFile(f"{path} {problem}; {_REMEDY}") from None


def read_run(folder: Path | str) -> Row:
    """Read the row in the folder of a run, <runs>/<sweep>/<run id>.

    The folder gives the name of the sweep, so that a user may rename it.

    Raises:
        FileNotFoundError: the run has no row.
        DamagedFile: as `read_row`, or the row is that of another run.
    """
    row = read_row(f"{folder}/row.json")
    sweep, run = str(folder).rsplit("/", 2)[-2:]
    if run != row.id:
        raise DamagedFile(
            f"{folder}/row.json is the row of {row.id!r}; move it to the folder of that name"
        )
    return row if sweep == row.sweep else replace(row, sweep=sweep)


def find_row(folder: Path | str) -> Row | None:
    """Return the row in the folder of a run; None without one. A damaged one is left out, too."""
    try:
        return read_run(folder)
    except FileNotFoundError:
        return None
    except DamagedFile as damage:
        leave_out(damage)
        return None


def read(root: Path | str = "runs", run: str = "*", sweep: str = "*") -> list[Row]:
    """Read all rows below `root`, sorted by norm, batch, seed and id.

    A run id that several sweeps trained gives one row, the one that finished last. A damaged row is
    left out with a warning of the category `LeftOut`, as is a damaged line of a study.

    Args:
        root: folder of all sweeps, or a study: its folder or its rows.jsonl.gz.
        run: id of one run; "*" reads all.
        sweep: name of one sweep; "*" reads all.

    Raises:
        BadInput: the file of a study cannot be read at all.
    """
    if study := study_file(root):
        lines, damages = _read_study(study, study.stat().st_mtime_ns)
        rows = [row for row, *_ in lines.values()]
        for damage in damages:
            leave_out(damage)
    else:
        paths = row_files(root, run, sweep)
        found = (find_row(path.removesuffix("/row.json")) for path in paths)
        rows = [row for row in found if row is not None]
    rows.sort(key=attrgetter("finished"))
    latest = {row.id: row for row in rows if run in ("*", row.id) and sweep in ("*", row.sweep)}
    return sorted(latest.values(), key=row_order)


def row_files(root: Path | str, run: str = "*", sweep: str = "*") -> list[str]:
    """Return the paths of every row.json of a run below `root`, sorted."""
    paths = sorted(glob.glob(f"{glob.escape(str(root))}/{sweep}/{run}/row.json"))  # noqa: PTH207
    return [path for path in paths if Path(path).parts[-3] != REPORTS]


def write_study(path: Path, rows: Iterable[tuple[Path, Row]]) -> None:
    """Write rows, and histories and test hits of their runs, as the file of a study.

    Each row comes with the root below which it was read, of runs or of a study. A row that reuses
    the result of another one in the file shares its history and hits.
    """
    ordered = sorted(rows, key=lambda each: row_order(each[1]))
    parts = {row.id: _parts(root, row) for root, row in ordered}
    shared = {row.id: parts[row.id] for _, row in ordered if row.shared_with is None}
    lines = [
        {"row": asdict(row)}
        | ({} if parts[row.id] == shared.get(str(row.shared_with)) else parts[row.id])
        for _, row in ordered
    ]
    write_study_lines(path, [json.dumps(line, allow_nan=False) for line in lines])


@lru_cache(maxsize=4)
def _read_study(
    path: Path, _modified: int
) -> tuple[dict[str, tuple[Row, list[dict[str, float]], bytes | None]], list[DamagedFile]]:
    """Return row, history and test hits of each run by id, and what is wrong with other lines."""
    runs, copies, damages = {}, [], []
    for number, line in enumerate(read_study_lines(path), 1):
        try:
            run = parse_json(line)
            row = _parse_row(run["row"])
            if not (is_file_name(row.id) and is_file_name(row.sweep)):
                raise ValueError("has an id or a sweep that is no name")
            if "history" in run or row.shared_with is None:
                runs[row.id] = row, parse_curve(run["history"]), decode_hits(run.get("test_hits"))
            else:
                copies.append(row)
        except (KeyError, TypeError, ValueError, RecursionError) as problem:
            damages.append(DamagedFile(f"{path} line {number} is damaged: {problem}; restore it"))
    for row in copies:
        # Of a damaged line nothing is left to share.
        _, history, hits = runs.get(str(row.shared_with), (None, [], None))
        runs[row.id] = row, history, hits
    return runs, damages


def read_run_history(root: Path, row: Row) -> list[dict[str, float]]:
    """Return the history of `row`, a row of `read(root)`; [] if it has none.

    Raises:
        DamagedFile: its history.csv is damaged.
    """
    if study := study_file(root):
        return _read_study(study, study.stat().st_mtime_ns)[0][row.id][1]
    try:
        return read_history(root / row.sweep / row.id, complete=True)
    except FileNotFoundError:
        return []


def find_test_hits(root: Path, row: Row) -> int | None:
    """Return which test images the run of `row`, a row of `read(root)`, classified correctly.

    They are bits, of which that of the last image is the lowest. None if the run has not kept them;
    damaged ones are left out, too.
    """
    if row.test_images is None:
        return None
    try:
        if study := study_file(root):
            content = _read_study(study, study.stat().st_mtime_ns)[0][row.id][2]
        else:
            content = read_packed_hits(root / row.sweep / row.id)
        if content is not None:
            return unpack_hits(content, row.test_images, row.test_top1)
    except ValueError as problem:
        path = study_file(root) or root / row.sweep / row.id / TEST_HITS
        leave_out(
            DamagedFile(f"{path}: the bits of {row.id} {problem}; force=true trains it again")
        )
    except DamagedFile as damage:
        leave_out(damage)
    return None


def _parts(root: Path, row: Row) -> dict[str, Any]:
    """Return what the line of a study has besides the row: history and test hits of the run."""
    try:
        history = read_run_history(root, row)
    except DamagedFile as damage:
        leave_out(damage)
        history = []
    # JSON has no infinite loss. A curve has a gap there, as in a figure.
    finite = [{k: v for k, v in record.items() if math.isfinite(v)} for record in history]
    parts: dict[str, Any] = {"history": finite}
    if (hits := find_test_hits(root, row)) is not None:
        parts["test_hits"] = encode_hits(hits, row.test_images or 0)
    return parts


def _parse_row(raw: Any) -> Row:
    """Return the row in the JSON value `raw`, whatever its schema.

    Raises:
        ValueError: it is no row; the message is the end of a sentence about its file.
    """
    if isinstance(raw, dict) and raw.get("schema") == 1:
        upgrade(raw)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise ValueError(f"has no row of schema {SCHEMA}")
    if problem := _FIELDS.problem(raw) or find_contradiction(raw):
        raise ValueError(problem)
    # Not __init__: of ten thousand frozen rows it takes 0.2 s.
    row = Row.__new__(Row)
    if len(raw) < len(_FIELDS.types):
        row.__dict__.update(_FIELDS.defaults(raw.keys()))
    row.__dict__.update(raw)
    return row


_FIELDS = JsonFields(Row)
