"""The row: what a run leaves behind, and the only thing that reports ever read.

A run owns the folder `<root>/<sweep>/<run id>/`. In it lie

    row.json      the typed record, written last and atomically: the run is finished
    state.json    the state of a run that is not: running, failed or interrupted
    history.csv   the training curve
    log.txt       everything that the run printed
    probes/       what was seen inside its network (`normbench.probed`)
    previous.json the row of an older run, while force=true trains again
    lock          held by the process that trains it
    *.pt          checkpoints

Beside the sweeps lies an index of all rows once there are many, `normbench.index`: with it only new
ones are opened. It may be deleted at any time.
"""

import gc
import json
import marshal
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from normbench import run_files
from normbench.errors import BadInput
from normbench.index import SHARE, Layout, Value, indexed
from normbench.run_files import replaced

SCHEMA = 1
CHECKPOINT = "checkpoint.pt"  # the last one of a run
KEPT = "epoch-{}.pt"  # after an epoch
INDEX = ".index.sqlite"  # of all rows, in the folder of the sweeps
MANY = 500  # rows from which on an index is worth its file

Status = Literal["ok", "diverged", "impossible", "oom"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run. Accuracies are percentages, sizes bytes, times seconds; None means not measured."""

    # What was asked: all that the id is a hash of, and the sweep that asked first.
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
    unverified: list[str] = field(default_factory=list)  # of these, values that no source gives

    # How it ended.
    status: Status
    reason: str = ""  # why diverged, impossible or oom, in one sentence
    train_loss: float | None = None  # means of the last epoch or tenth of the steps, the shorter
    train_top1: float | None = None
    val_top1: float | None = None  # after the last epoch
    test_top1: float | None = None
    test_top5: float | None = None
    test_loss: float | None = None

    # What the network was.
    params: int | None = None
    macs: int | None = None  # convolutions and linear layers, one image, forward
    groups: list[int] = field(default_factory=list)  # group counts in use
    ratios: dict[str, float] = field(default_factory=dict)  # of sn, learned: means over its layers
    coverage: str = ""  # what of the network the normalizer reached
    batch_independent: bool = False
    limits: str = ""  # what numbers on this data set cannot show

    # What it took. Recorded, and no part of the id.
    seconds: float | None = None  # training and evaluation
    images_per_second: float | None = None  # training steps alone
    peak_memory: int | None = None  # allocated on the GPU; of the whole process on the CPU
    memory: int | None = None  # of the device
    devices: str = ""
    plan: str = ""
    threads: int = 0
    channels_last: bool = False
    impl: str = ""  # how layers were computed: eager, lean, compile or triton
    graphs: bool = False  # the passes of a step were replayed as one CUDA graph
    loader: str = ""  # memory, torch or ffcv: how the images came
    together: int = 1  # seeds of its cell that were trained as one network
    resumed: int = 0  # how often it went on from a checkpoint
    computation: str = ""  # runs with the same one compute the same, if it is known at all
    shared_with: str | None = None  # id of the run whose computation this row reuses
    wandb: str = ""  # address of its W&B run, or its folder below that of all runs
    finished: str = ""  # UTC, ISO 8601
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    kind: Literal["run", "probe"] = "run"
    probe: str = ""  # of kind probe: what was looked at, in the network of the run `of`
    of: str = ""
    schema: int = SCHEMA

    @property
    def final(self) -> bool:
        """Whether the run is over for good; one that did not fit is tried where more memory is."""
        return self.status != "oom"


#: What rows are sorted by.
order = attrgetter("norm", "batch", "seed", "id")

_NAMES = {f.name for f in fields(Row)}
_REQUIRED = {f.name for f in fields(Row) if f.default is MISSING and f.default_factory is MISSING}


def write(folder: Path, row: Row) -> None:
    """Finish a run: its row appears in one piece, then its state goes."""
    folder.mkdir(parents=True, exist_ok=True)
    # In this order: between the two a run is finished and still has a state, which is harmless.
    replaced(folder / "row.json", asdict(row))
    (folder / "state.json").unlink(missing_ok=True)
    run_files.forget_failures(folder)


def write_probe(path: Path, row: Row) -> None:
    """The row of what was seen in a run, which is no row among those of runs."""
    replaced(path, asdict(row))


def set_aside(folder: Path) -> None:
    """Keep the row of an older run where it is no row any more, until the new one is there."""
    if (folder / "row.json").exists():
        (folder / "row.json").replace(folder / "previous.json")


def load(path: Path) -> Row:
    """The row in `path`.

    Raises:
        BadInput: the file is no row of this schema; the sentence names it and the remedy.
    """
    try:
        raw = json.loads(path.read_bytes())
        if isinstance(raw, dict) and "compiled" in raw:  # rows of before there were other words
            raw["impl"] = "compile" if raw.pop("compiled") else "eager"
        problem = _problem(raw)
    except ValueError as error:
        problem = f"is not JSON: {error}"
    if problem:
        raise BadInput(f"{path} {problem}; move it away and the run will be trained again")
    return _made(raw) if len(raw) == len(_NAMES) else Row(**raw)


def _made(whole: dict[str, Any]) -> Row:
    """A row of all its fields; `__init__` takes longer than reading them, and rows are many."""
    row = object.__new__(Row)
    object.__setattr__(row, "__dict__", whole)
    return row


def read(root: Path | str = "runs", run: str = "*") -> list[Row]:
    """All rows below `root`, one a run id: the one finished last if several sweeps trained it.

    Args:
        root: folder of the sweeps.
        run: id of the only run that is wanted; "*" for all.
    """
    with only_adding():
        latest: dict[str, Row] = {}
        for row in _indexed(Path(root)) if run == "*" else map(load, _rows(root, run)):
            if row.id not in latest or latest[row.id].finished <= row.finished:
                latest[row.id] = row
        return sorted(latest.values(), key=order)


def _indexed(root: Path) -> Iterator[Row]:
    """All rows below `root`; of many those alone are opened that are new since the last time."""
    stamps = _stamps(root)
    if len(stamps) < MANY:
        yield from (load(root / path) for path in stamps)
        return
    known: dict[bytes, str] = {}
    texts, rows = indexed(
        root / INDEX, _LAYOUT, stamps, lambda path: _kept(load(root / path), known)
    )
    # With a place for what is a row's own: so copies of it need not grow.
    places = dict.fromkeys(_OWN)
    shared = {number: {**places, **json.loads(text)} for number, text in texts.items()}
    for line in rows:
        yield _row(shared[line[SHARE]], line)


def _kept(row: Row, known: dict[bytes, str]) -> tuple[str, list[Value]]:
    """A row for the index: as JSON what other seeds of its cell share with it, and its own.

    `known` are texts that there were before.
    """
    config = {**row.config, "seed": None} if row.config.get("seed") == row.seed else row.config
    fields_ = {**vars(row), "config": config, "ratios": json.dumps(row.ratios)}
    shared = {name: fields_[name] for name in _LAYOUT.shared}
    content = marshal.dumps(shared, 2)  # a fifth of the time; of equal content equal bytes
    text = known.get(content) or known.setdefault(content, json.dumps(shared))
    return text, [fields_[name] for name in _LAYOUT.own]


def _row(shared: dict[str, Any], line: Sequence[Value]) -> Row:
    """The row again; rows of one cell have the same objects in their configurations."""
    found = shared.copy()
    found.update(zip(_LAYOUT.own, line, strict=False))
    found["ratios"] = json.loads(found["ratios"]) if found["ratios"] != "{}" else {}
    if shared["config"].get("seed", "") is None:
        found["config"] = {**shared["config"], "seed": found["seed"]}
    return _made(found)


@contextmanager
def only_adding() -> Iterator[None]:
    """No search for garbage where objects are only made: of many rows it is a third of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            if not gc.get_freeze_count():
                gc.freeze()  # and back: what was made counts as old at once, without a search
                gc.unfreeze()
            gc.enable()


def files(root: Path) -> Iterator[Path]:
    """Every row below `root`, its curve, and the folder of its probes, whether there or not."""
    for path in _rows(root):
        yield path
        yield path.with_name("history.csv")
        yield path.with_name("probes")


def _rows(root: Path | str, run: str = "*") -> list[Path]:
    if run == "*":
        return [Path(root, path) for path in _stamps(root)]
    found = [Path(root, sweep, run, "row.json") for sweep in _folders(root)]
    return [path for path in found if path.exists()]


def _stamps(root: Path | str) -> dict[str, int]:
    """The path of every row below `root`, from there, and what changes when it is written."""
    # Of tens of thousands: twice as fast as a pattern, which looks into every folder of a run, and
    # twice as fast again as with objects for paths.
    found = {}
    for sweep in _folders(root):
        folder = os.open(f"{root}/{sweep}", os.O_RDONLY)
        try:
            with os.scandir(folder) as entries:
                runs = sorted(entry.name for entry in entries)
            for run in runs:
                path = f"{run}/row.json"
                try:
                    stat = os.stat(path, dir_fd=folder)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                found[f"{sweep}/{path}"] = hash((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        finally:
            os.close(folder)
    return found


def _folders(root: Path | str) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def require_rows(root: Path) -> None:
    """Refuse a folder without finished runs, or one that is not the root of all sweeps.

    Raises:
        BadInput: there is no row where those of sweeps are.
    """
    if not root.is_dir():
        raise BadInput(f"runs={root} is no folder; `python -m normbench` trains into runs/")
    if any(root.glob("*/*/row.json")):
        return
    if any(root.glob("*/row.json")):
        raise BadInput(
            f"runs={root} is the folder of one sweep; name the root of all, as runs={root.parent}"
        )
    raise BadInput(f"runs={root} holds no finished run; `python -m normbench` trains")


def writable(root: Path, name: str, remedy: str) -> Path:
    """`root`, made if need be.

    Raises:
        BadInput: no file can be written there; the sentence has its `name` and the `remedy`.
    """
    probe = root / f".writable.{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(f"{name} cannot be written ({error.strerror}); {remedy}") from None
    return root


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"norm": {"name": "bn", "eps": 1}} as {"norm": "bn", "norm.eps": 1}."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif key == "name" and prefix:
            found[prefix.removesuffix(".")] = value
        else:
            found[f"{prefix}{key}"] = value
    return found


def _problem(raw: Any) -> str:
    """Why `raw` is no row, or nothing."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        return f"has no row of schema {SCHEMA}"
    if unknown := sorted(raw.keys() - _NAMES):
        return f"has keys that no row has: {', '.join(unknown)}"
    # What came later has a default, and older rows lack it.
    if missing := sorted(_REQUIRED - raw.keys()):
        return f"lacks {', '.join(missing)}"
    # Of thousands of rows nearly all have the same types in the same places.
    kind = (*raw, *map(type, raw.values()), *(str(raw.get(name)) for name in _WORDS))
    if kind in _known:
        return ""
    wrong = [name for name in sorted(raw) if not _fits(name, raw[name])]
    if wrong:
        return f"has values of the wrong type: {', '.join(wrong)}"
    _known.add(kind)
    return ""


def _fits(name: str, value: Any) -> bool:
    types_, words = _ALLOWED[name]
    return type(value) in types_ and (not words or value in words)


def _allowed(hint: Any) -> tuple[frozenset[type], frozenset[str]]:
    """The types that a value may have, and the words if these are all that it can be."""
    if get_origin(hint) is Literal:
        return frozenset({type(word) for word in get_args(hint)}), frozenset(get_args(hint))
    if isinstance(hint, types.UnionType):
        return frozenset().union(*(_allowed(each)[0] for each in get_args(hint))), frozenset()
    plain = get_origin(hint) or hint
    # A whole number is a float too; True is no number.
    return frozenset({float, int} if plain is float else {plain}), frozenset()


_ALLOWED = {name: _allowed(hint) for name, hint in get_type_hints(Row).items()}
_WORDS = [name for name, (_, words) in _ALLOWED.items() if words]
_known: set[tuple[Any, ...]] = set()  # names and types of rows that were right
_OWN = (
    "id", "seed", "reason", "train_loss", "train_top1", "val_top1", "test_top1", "test_top5",
    "test_loss", "ratios", "seconds", "images_per_second", "peak_memory", "computation",
    "shared_with", "wandb", "finished",
)  # fmt: skip
_LAYOUT = Layout(_OWN, sorted(_NAMES - {*_OWN}), f"rows of schema {SCHEMA}, 3")
