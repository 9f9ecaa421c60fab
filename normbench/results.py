"""Results of runs: the row, and how rows are written and read. Standard library only.

A finished run leaves `<runs>/<sweep>/<run id>/` with

    row.json       the typed row, written last and atomically
    history.csv    the training curve (`normbench.history`)
    log.txt        everything that the run printed
    previous.json  the row of the previous training, while force=true trains again
    *.pt           checkpoints

and the files of `normbench.run_files`. A study is the same in one file, rows.jsonl.gz: one JSON
object for each run with its row and its history.
"""

import glob
import gzip
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from normbench.errors import BadInput
from normbench.history import read_history
from normbench.run_files import clear_failures, write_file, write_json

SCHEMA = 2
CHECKPOINT = "checkpoint.pt"  # the latest checkpoint of a run
EPOCH_CHECKPOINT = "epoch-{}.pt"
STUDY = "rows.jsonl.gz"  # rows and histories of a study in one file

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
    seed: int
    precision: str
    options: str  # options that differ from their yaml, as typed: "norm.groups=8 recipe.lr=0.1"
    config: dict[str, Any]  # every scientific option with its value
    unverified: list[str] = field(default_factory=list)  # options whose value no source gives

    # Outcome.
    status: Status
    reason: str = ""  # why diverged, impossible or oom, in one sentence
    train_loss: float | None = None  # mean of the last epoch or last tenth of steps, the shorter
    train_top1: float | None = None
    val_top1: float | None = None  # after the last epoch
    test_top1: float | None = None
    test_top5: float | None = None
    test_loss: float | None = None

    # Network and data.
    params: int | None = None
    macs: int | None = None  # multiply-adds of convolutions and linear layers, one image, forward
    groups: list[int] = field(default_factory=list)  # group counts in use
    sn_ratios: dict[str, float] = field(default_factory=dict)  # learned by SN, mean over layers
    coverage: str = ""  # which activations and convolutions the normalizer reached
    batch_independent: bool = False
    data_limits: str = ""  # what results on this data set cannot show

    # Execution; no part of the id.
    seconds: float | None = None  # training and evaluation
    images_per_second: float | None = None  # training steps only
    peak_memory: int | None = None  # allocated on the GPU; on a CPU, of the whole process
    device_memory: int | None = None
    devices: str = ""
    plan: str = ""
    threads: int = 0
    channels_last: bool = False
    impl: str = ""  # eager, lean, compile or triton
    cuda_graphs: bool = False  # each step was replayed as a CUDA graph
    loader: str = ""  # memory, torch or ffcv
    stacked_seeds: int = 1  # seeds of the cell trained as one vmapped network
    resumed: int = 0  # how many times training resumed from a checkpoint
    computation: str = ""  # key of the computation; equal keys give equal numbers; "": unknown
    shared_with: str | None = None  # id of the run whose result this row reuses
    wandb: str = ""  # address of the W&B run, or its folder relative to the runs
    finished: str = ""  # UTC, ISO 8601
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    kind: Literal["run", "probe"] = "run"
    probe: str = ""  # kind of the probe, if this row is one
    probed_run: str = ""  # id of the run whose network was probed
    schema: int = SCHEMA

    @property
    def outcome(self) -> str:
        """The test accuracy in words, or the reason why there is none."""
        if self.reason or self.test_top1 is None:
            return self.reason
        return f"test {self.test_top1:.1f} %"

    @property
    def final(self) -> bool:
        """Return whether the run need not be tried again; oom is, on a device with more memory."""
        return self.status != "oom"


#: Fields renamed since schema 1, and their old names.
_RENAMED = {
    "stacked_seeds": "together",
    "cuda_graphs": "graphs",
    "device_memory": "memory",
    "data_limits": "limits",
    "sn_ratios": "ratios",
    "probed_run": "of",
}
_REQUIRED = {f.name for f in fields(Row) if f.default is MISSING and f.default_factory is MISSING}

#: Sort key of rows.
row_order = attrgetter("norm", "batch", "seed", "id")


def write(folder: Path, row: Row) -> None:
    """Write the row of a finished run and remove its state."""
    # The row first: a run with both files counts as finished, a run with neither would be lost.
    write_json(folder / "row.json", asdict(row))
    (folder / "state.json").unlink(missing_ok=True)
    clear_failures(folder)


def set_aside(folder: Path) -> None:
    """Rename row.json to previous.json while the run is trained again."""
    if (folder / "row.json").exists():
        (folder / "row.json").replace(folder / "previous.json")


def read_row(path: Path | str) -> Row:
    """Read a row.json.

    Raises:
        BadInput: the file is damaged or of an unknown schema; the message names it and the remedy.
    """
    remedy = "move it away and the run will be trained again"
    with open(path, "rb") as file:  # noqa: PTH123 (of ten thousand files, Path.open takes 0.1 s)
        try:
            raw = json.load(file)
        except ValueError as error:
            raise BadInput(f"{path} is not JSON: {error}; {remedy}") from None
    return _parse_row(raw, str(path), remedy)


def read(root: Path | str = "runs", run: str = "*") -> list[Row]:
    """Read all rows below `root`, sorted by norm, batch, seed and id.

    A run id that several sweeps trained gives one row, the one that finished last.

    Args:
        root: folder of all sweeps, or a study: its folder or its rows.jsonl.gz.
        run: id of one run; "*" reads all.
    """
    if study := study_file(root):
        rows = [row for row, _ in _read_study(study, study.stat().st_mtime_ns).values()]
    else:
        rows = [read_row(path) for path in row_files(root, run)]
    rows.sort(key=attrgetter("finished"))
    latest = {row.id: row for row in rows if run in ("*", row.id)}
    return sorted(latest.values(), key=row_order)


def row_files(root: Path | str, run: str = "*") -> list[str]:
    """Return the paths of every row.json below `root`, sorted."""
    return sorted(glob.glob(f"{glob.escape(str(root))}/*/{run}/row.json"))  # noqa: PTH207


def require_rows(root: Path) -> None:
    """Check that `root` holds finished runs.

    Raises:
        BadInput: it does not, or it is the folder of a single sweep.
    """
    if study_file(root):
        return
    if not root.is_dir():
        raise BadInput(f"runs={root} is no folder; `python -m normbench` trains into runs/")
    if any(root.glob("*/*/row.json")):
        return
    if any(root.glob("*/row.json")):
        raise BadInput(
            f"runs={root} is the folder of one sweep; use the folder of all sweeps, "
            f"as runs={root.parent}"
        )
    raise BadInput(f"runs={root} holds no finished run; `python -m normbench` trains")


def study_file(root: Path | str) -> Path | None:
    """Return the file of a study if `root` is one or is its folder, else None."""
    path = Path(root)
    if path.name.endswith(".jsonl.gz"):
        if not path.is_file():
            raise BadInput(f"runs={path} does not exist")
        return path
    return path / STUDY if (path / STUDY).is_file() else None


def write_study(path: Path, root: Path, rows: Sequence[Row]) -> None:
    """Write `rows` and the histories of their runs below `root` as one compressed file."""
    lines = [
        json.dumps({"row": asdict(row), "history": read_run_history(root, row)}, allow_nan=False)
        for row in rows
    ]
    # mtime=0: the same rows give the same bytes.
    write_file(path, gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


@lru_cache(maxsize=4)
def _read_study(path: Path, _modified: int) -> dict[str, tuple[Row, list[dict[str, float]]]]:
    runs = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                run = json.loads(line)
                row = _parse_row(run["row"], f"{path} line {number}", "restore the file")
                runs[row.id] = row, run["history"]
    except (EOFError, OSError, KeyError, ValueError) as error:
        raise BadInput(f"{path} is damaged ({error}); restore the file") from error
    return runs


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten {"norm": {"name": "bn", "eps": 1}} to {"norm": "bn", "norm.eps": 1}."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif key == "name" and prefix:
            flat[prefix.removesuffix(".")] = value
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read_run_history(root: Path, row: Row) -> list[dict[str, float]]:
    """Return the history of `row`, a row of `read(root)`; [] if it has none."""
    if study := study_file(root):
        return _read_study(study, study.stat().st_mtime_ns)[row.id][1]
    folder = root / row.sweep / row.id
    return list(read_history(folder)) if (folder / "history.csv").exists() else []


def _parse_row(raw: Any, place: str, remedy: str) -> Row:
    """Return the row in the JSON value `raw`, whatever its schema."""
    raw = _upgrade(raw)
    if problem := _problem(raw):
        raise BadInput(f"{place} {problem}; {remedy}")
    if len(raw) < len(_TYPES):
        return Row(**raw)
    # Not __init__: of ten thousand frozen rows it takes 0.2 s.
    row = Row.__new__(Row)
    row.__dict__.update(raw)
    return row


def _upgrade(raw: Any) -> Any:
    """Rename the fields of a row of schema 1."""
    if not isinstance(raw, dict) or raw.get("schema") != 1:
        return raw
    raw["schema"] = SCHEMA
    for new, old in _RENAMED.items():
        if old in raw:
            raw[new] = raw.pop(old)
    if "compiled" in raw:  # before there was `impl`
        raw["impl"] = "compile" if raw.pop("compiled") else "eager"
    return raw


def _problem(raw: Any) -> str:
    """Return why `raw` is no row, or ""."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        return f"has no row of schema {SCHEMA}"
    if unknown := sorted(raw.keys() - _TYPES.keys()):
        return f"has unknown keys: {', '.join(unknown)}"
    # Fields added later have defaults, which older rows get.
    if missing := sorted(_REQUIRED - raw.keys()):
        return f"lacks {', '.join(missing)}"
    wrong = [name for name, value in raw.items() if type(value) not in _TYPES[name]]
    wrong += [name for name, words in _WORDS.items() if name in raw and raw[name] not in words]
    return f"has values of the wrong type: {', '.join(sorted(set(wrong)))}" if wrong else ""


def _types(hint: Any) -> frozenset[type]:
    """Return the types of values that a field with this annotation may have."""
    if get_origin(hint) is Literal:
        return frozenset(map(type, get_args(hint)))
    if isinstance(hint, types.UnionType):
        return frozenset().union(*map(_types, get_args(hint)))
    plain = get_origin(hint) or hint
    # JSON writes 1.0 as 1 in places; True is no number.
    return frozenset({float, int} if plain is float else {plain})


_HINTS = get_type_hints(Row)
_TYPES = {name: _types(hint) for name, hint in _HINTS.items()}
_WORDS = {name: get_args(hint) for name, hint in _HINTS.items() if get_origin(hint) is Literal}
