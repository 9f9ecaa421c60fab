"""A cell: one fully described training run, and the id that follows from the description."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from normbench.config.files import as_typed, default_choices, default_global_batch, target_of
from normbench.config.plan import Plan, plans
from normbench.config.start import Start
from normbench.errors import BadInput

GROUPS = ("norm", "model", "data", "reg", "recipe", "task")  # whose options are part of the id
KEYS = ("batch", "workers", "global_batch", "protocol", "seed", "precision")  # the rest of the id
#: Options that say where files are: they change no number and are no part of the id.
PATHS = frozenset({"root", "beton", "download"})
#: Options that are part of the id in another place, or none of it.
LEFT_OUT = PATHS | {"_target_", "global_batch"}

#: Options by the names that they have in the ids of finished runs.
OLD_NAMES = {"mixup_and_cutmix": "together"}

Accelerator = Literal["auto", "cpu", "gpu"]
Loader = Literal["auto", "memory", "ffcv", "torch"]
Impl = Literal["auto", "eager", "compile", "triton"]
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


OVERLAY = "pretrained_cfg_overlay"  # of a network of timm; its `file` has weights


@dataclass(frozen=True)
class Choice:
    """The yaml chosen in a group, by its name, and its resolved options."""

    name: str
    options: Mapping[str, Any]
    changed: Mapping[str, Any]  # those that differ from the yaml
    unverified: tuple[str, ...] = ()  # those whose value no source gives
    code: str = ""  # of a yaml of the user's own: `user_code`

    def with_options(self, **options: Any) -> "Choice":
        """Return this choice with other values of some options."""
        changed = {**self.changed, **options}
        return replace(self, options={**self.options, **options}, changed=changed)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Name and options that change numbers, and the code of a yaml of the user's own."""
        # Not `_target_`: a class may move to another module. No null and no {}: an option that is
        # added later, null or empty by default, leaves the ids of finished runs alone.
        options = {
            OLD_NAMES.get(key, key): value
            for key, value in self.options.items()
            if key not in LEFT_OUT and value is not None and value != {}
        }
        arguments = options.get("arguments")
        overlay = arguments.get(OVERLAY) if isinstance(arguments, Mapping) else None
        if isinstance(overlay, Mapping) and "file" in overlay:
            weights = {**overlay, "file": _describe_file(str(overlay["file"]))}
            options["arguments"] = {**arguments, OVERLAY: weights}  # type: ignore[dict-item]
        if self._is_known_by_folder:
            options["root"] = str(Path(str(self.options["root"])).expanduser().resolve())
        name = options.pop("name", None)
        if name is not None and "/" not in self.name:  # timm/resnet50 has it already
            options["option name"] = name
        code = {"code": self.code} if self.code else {}
        return {"name": self.name, **options, **code}

    @property
    def _is_known_by_folder(self) -> bool:
        """The data set has no official name and checksum, so its folder identifies it."""
        if "root" not in self.options:
            return False
        nameless = self.options.get("name", "") is None
        return nameless or self.options.get("verify") is False


@dataclass(frozen=True)
class Hardware:
    """conf/trainer: how fast a run is, never what it computes."""

    accelerator: Accelerator
    devices: int  # at most; each has a process of its own
    per_forward: int | None  # workers in one forward pass, at most
    threads: int
    chunk: int | None
    log_every: int
    readers: int | None  # processes or threads that read images for each device
    channels_last: bool
    impl: Impl
    cuda_graph: bool

    def plans(self, workers: int) -> list[Plan]:
        """Return the plans of a run with `workers` workers, the fastest first."""
        return plans(workers, self.devices, self.per_forward)


@dataclass(frozen=True)
class Checkpointing:
    """conf/checkpoint: which states of a training are written."""

    keep: bool
    every: float | None  # seconds
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class Probing:
    """conf/probe: what is measured in the network during training."""

    kinds: tuple[str, ...]
    every: int  # epochs
    images: int


@dataclass(frozen=True)
class Settings:
    """Keys that hold for all cells of a command line."""

    runs: str
    reports: str | None  # None: beside the runs
    jobs: int | None
    force: bool
    resume: bool
    stack_seeds: bool
    sweep: str
    launcher: str = ""  # options of a cluster's launcher as JSON; "" is this machine
    newer_than: str = ""  # rows that finished before do not count: of force=true on a cluster


@dataclass(frozen=True)
class Cell:
    """One run to be: `batch` images per worker, global_batch = batch * workers."""

    norm: Choice
    model: Choice
    data: Choice
    reg: Choice
    recipe: Choice
    task: Choice
    batch: int
    workers: int
    global_batch: int
    protocol: str
    seed: int
    precision: str
    init_from: str | None  # RUN@EPOCH
    init_only: tuple[str, ...] | None  # roles of the parameters that it takes from there; None: all
    loader: Loader  # how images are read, not which
    trainer: Hardware
    checkpoint: Checkpointing
    probe: Probing
    logger: Choice
    start: Start | None = None  # the run in init_from, if the command line describes it
    command_seeds: int = 1  # seeds of this cell in its command line

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that is meant to change the numbers of a run."""
        choices = {group: getattr(self, group).identity for group in GROUPS}
        if self.task.name == default_choices()["task"]:  # runs of older versions have no task
            del choices["task"]
        start = {"init_from": self.init_from, "init_only": self.init_only and [*self.init_only]}
        typed = {key: value for key, value in start.items() if value is not None}
        return choices | {key: getattr(self, key) for key in KEYS} | typed

    @cached_property
    def id(self) -> str:
        """The first twelve hexadecimal digits of the identity's hash."""
        return _digest(self.identity)

    @cached_property
    def computation(self) -> str:
        """A hash that cells share if they differ at most in how a global batch is divided.

        Networks without batch statistics compute the same in all these cells, because the learning
        rate follows the global batch.
        """
        division = ("batch", "workers", "protocol")
        return _digest({k: v for k, v in self.identity.items() if k not in division})

    @property
    def options(self) -> str:
        """Options of GROUPS that differ from their yaml, as words of a command line."""
        words = [
            word
            for group in GROUPS
            for key, value in sorted(getattr(self, group).changed.items())
            if key not in LEFT_OUT
            for word in _words(f"{group}.{key}", value)
        ]
        if self.init_from is not None:
            words.append(f"init_from={self.init_from}")
        if self.init_only is not None:
            words.append(f"init_only={format_value([*self.init_only])}")
        return " ".join(words)

    @property
    def title(self) -> str:
        """A name for the screen and for W&B: normalizer, batch, seed, and what is not default."""
        fields = {group: getattr(self, group).name for group in GROUPS}
        fields |= {key: getattr(self, key) for key in KEYS}
        return title_of({**fields, "options": self.options})

    @property
    def unverified(self) -> list[str]:
        """Options of a paper's protocol whose values no source gives, with our values."""
        return [
            f"{group}.{key}={format_value(getattr(self, group).options[key])}"
            for group in GROUPS
            for key in getattr(self, group).unverified
        ]

    def with_readers(self, number: int) -> "Cell":
        """Return this cell with `number` readers, unless the command line gives them."""
        if self.trainer.readers is not None:
            return self
        return replace(self, trainer=replace(self.trainer, readers=number))

    def description(self, sweep: str) -> dict[str, Any]:
        """Return the fields of a row that are known before the run."""
        names = {group: getattr(self, group).name for group in GROUPS}
        return {
            **names, "id": self.id, **{key: getattr(self, key) for key in KEYS},
            "options": self.options, "sweep": sweep, "config": self.identity,
            "unverified": self.unverified, "command_seeds": self.command_seeds,
            "start": {} if self.start is None else dict(self.start.differs),
        }  # fmt: skip

    def with_devices(self, devices: int) -> "Cell":
        """Return this cell on exactly `devices` devices.

        Raises:
            BadInput: the workers cannot be divided evenly among them.
        """
        if self.workers % devices:
            raise BadInput(
                f"{devices} processes were started for one run, and the {self.workers} workers of "
                f"{self.title} do not fall evenly on them; a divisor of {self.workers} works"
            )
        return replace(self, trainer=replace(self.trainer, devices=devices))

    def with_accelerator(self, accelerator: Accelerator) -> "Cell":
        """Return this cell with `accelerator`, unless the command line gives it."""
        if self.trainer.accelerator != "auto":
            return self
        return replace(self, trainer=replace(self.trainer, accelerator=accelerator))


def title_of(fields: Mapping[str, Any]) -> str:
    """Return the title of a cell, or of its row, from the `fields` that both have."""
    usual = default_choices(fields["task"])
    words = [
        as_typed(key, fields[key])
        for key in ("task", *GROUPS[1:-1], "protocol")
        if fields[key] != usual[key]
    ]
    if fields["protocol"] == "fixed_workers":
        words.append(f"workers={fields['workers']}")
    elif fields["global_batch"] != default_global_batch(fields["task"]):
        words.append(f"global_batch={fields['global_batch']}")
    if fields["precision"] != PRECISIONS[0]:
        words.append(f"precision={fields['precision']}")
    head = [fields["norm"], f"batch={fields['batch']}", f"seed={fields['seed']}"]
    return " ".join([*head, *words, *fields["options"].split()])


def _digest(description: Mapping[str, Any]) -> str:
    # Sorted keys and no spaces, so that the order of words does not matter.
    canonical = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _describe_file(name: str) -> str:
    """Return a hash of a file of weights, which identifies it anywhere; its name if missing."""
    try:
        status = os.stat(name)  # noqa: PTH116 (Path.stat raises for a name with a null byte)
        return _hash_file(name, status.st_size, status.st_mtime_ns)
    except (OSError, ValueError):
        return name


@cache
def _hash_file(name: str, _size: int, _changed: int) -> str:
    with open(name, "rb") as file:  # noqa: PTH123
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"


def user_code(group: str, name: str, target: Any) -> str:
    """Return what a yaml of the user's own targets, with a hash of its file if it is not ours.

    A result of the old code must not stand for the new. normbench's own yamls have "": their
    classes may move to another module, and normbench's commit is in the row.

    Raises:
        BadInput: `target` is no name.
    """
    if not isinstance(target, str | None):
        raise BadInput(f"{group}={name}: its _target_ is {target}, and must be module.Class")
    if target is None or target == target_of(group, name):
        return ""
    if target.startswith("normbench.") or "." not in target:
        return target
    try:
        spec = find_spec(target.rpartition(".")[0])
    except Exception:  # find_spec imports packages, whose code can fail in any way
        spec = None  # the preflight reports it, with the traceback
    origin = spec.origin if spec is not None else None
    if origin is None or not Path(origin).is_file():
        return target
    return f"{target} {hashlib.sha256(Path(origin).read_bytes()).hexdigest()[:12]}"


def _words(key: str, value: Any) -> list[str]:
    """Return an option as it is typed; entries of a mapping are added to it one by one."""
    if isinstance(value, Mapping):
        return [f"+{key}.{inner}={format_value(each)}" for inner, each in sorted(value.items())]
    return [f"{key}={format_value(value)}"]


def _quoted(value: Any) -> str:
    """Return an entry of a mapping as it is typed: in quotes if Hydra would read its characters."""
    text = format_value(value)
    special = isinstance(value, str) and re.search(r"[=,:{}\[\]]", value)
    return f'"{text}"' if special else text


def format_value(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, list):
        return f"[{','.join(map(format_value, value))}]"  # no space: options are separated by one
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_quoted(each)}' for key, each in value.items())}}}"
    if value is None:
        return "null"
    if isinstance(value, str) and "(" in value:  # a formula, which Hydra reads in quotes alone
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)
