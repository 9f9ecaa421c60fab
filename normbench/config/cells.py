"""A cell: one fully described training run, and the id that follows from the description."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from normbench.config.files import default_choices
from normbench.config.plan import Plan, layouts
from normbench.errors import BadInput

GROUPS = ("norm", "model", "data", "reg", "recipe")
#: Options that say where something lies or how it gets there: they change no number and are no part
#: of the id.
PATHS = frozenset({"root", "beton", "download"})

Accelerator = Literal["auto", "cpu", "gpu"]
Loader = Literal["auto", "memory", "ffcv", "torch"]
Impl = Literal["auto", "eager", "lean", "compile", "triton"]
USUAL_GLOBAL_BATCH = 128  # of conf/protocol/fixed_global_batch.yaml
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclass(frozen=True)
class Choice:
    """A yaml of a group by its name, with its options as resolved."""

    name: str
    options: Mapping[str, Any]
    changed: Mapping[str, Any]  # those that differ from the yaml
    unverified: tuple[str, ...] = ()  # those of a value that no source gives

    @property
    def identity(self) -> dict[str, Any]:
        """Name and options as far as they change numbers; for code of the user's own, that too."""
        # The name and not `_target_`: a class of ours may move to another module. And no null: an
        # option that comes later, and is null or empty by default, leaves the ids of finished runs
        # alone.
        given = {k: v for k, v in self.options.items() if v is not None}
        kept = {k: v for k, v in given.items() if k not in PATHS | {"_target_"} and v != {}}
        if self._of_a_users_own:
            kept["root"] = str(Path(str(self.options["root"])).expanduser().resolve())
        own = kept.pop("name", None)
        if own is not None and "/" not in self.name:  # as typed it is in the name of the choice
            kept["option name"] = own
        return {"name": self.name, **kept, **_own_code(self.options.get("_target_", ""))}

    @property
    def _of_a_users_own(self) -> bool:
        """Whether it is the folder that says which images there are, and not a well-known name."""
        if "root" not in self.options:
            return False
        nameless = self.options.get("name", "") is None
        return nameless or self.options.get("verify") is False


@dataclass(frozen=True)
class Hardware:
    """conf/trainer: what decides how fast, never what is computed."""

    accelerator: Accelerator
    devices: int  # at most so many, each in a process of its own
    per_forward: int | None  # at most so many workers in one forward pass
    threads: int
    chunk: int | None
    log_every: int
    readers: int | None  # processes or threads that read images beside each of its processes
    channels_last: bool
    impl: Impl
    graphs: bool

    def layouts(self, workers: int) -> list[Plan]:
        """The plans of a run with `workers`, the fastest first."""
        return layouts(workers, self.devices, self.per_forward)


@dataclass(frozen=True)
class Saving:
    """conf/checkpoint: which states of a training are written."""

    keep: bool
    every: float | None
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class Probing:
    """conf/probe: what is looked at in the network while it is trained."""

    kinds: tuple[str, ...]
    every: int  # epochs
    images: int


@dataclass(frozen=True)
class Settings:
    """What holds for all cells of a command line."""

    runs: str
    jobs: int | None
    force: bool
    resume: bool
    seeds_together: bool
    sweep: str
    launcher: str = ""  # options of Hydra's launcher for a cluster, as JSON; empty: this machine


@dataclass(frozen=True)
class Cell:
    """One run to be. `batch` images per worker, `global_batch` = batch * workers."""

    norm: Choice
    model: Choice
    data: Choice
    reg: Choice
    recipe: Choice
    batch: int
    workers: int
    global_batch: int
    protocol: str
    seed: int
    precision: str
    init_from: str | None
    loader: Loader  # how images come; which they are it does not change
    trainer: Hardware
    checkpoint: Saving
    probe: Probing
    logger: Choice

    @property
    def identity(self) -> dict[str, Any]:
        """All that changes the numbers of a run on purpose."""
        plain = ("batch", "workers", "global_batch", "protocol", "seed", "precision")
        chosen = {group: getattr(self, group).identity for group in GROUPS}
        begun = {} if self.init_from is None else {"init_from": self.init_from}
        return chosen | {name: getattr(self, name) for name in plain} | begun

    @cached_property
    def id(self) -> str:
        """Twelve digits of the hash of the identity: enough for millions of runs."""
        return _digest(self.identity)

    @cached_property
    def computation(self) -> str:
        """The same for all cells that differ in how the images of a step are divided at most.

        Where a network is worker-independent, these compute the same: the learning rate follows
        the global batch, whatever the protocol.
        """
        divided = ("batch", "workers", "protocol")
        return _digest({k: v for k, v in self.identity.items() if k not in divided})

    @property
    def options(self) -> str:
        """Scientific options that differ from their yaml, as one would type them."""
        words = [
            word
            for group in GROUPS
            for key, value in sorted(getattr(self, group).changed.items())
            if key not in PATHS
            for word in _words(f"{group}.{key}", value)
        ]
        begun = [] if self.init_from is None else [f"init_from={self.init_from}"]
        return " ".join(words + begun)

    @property
    def title(self) -> str:
        """A name for the screen and for W&B: what is asked, as far as it is not the usual."""
        chosen = {group: getattr(self, group).name for group in GROUPS if group != "norm"}
        chosen |= {"protocol": self.protocol}
        unusual = [
            f"{key}={name}" if "/" not in name else f"{key}={name.replace('/', f' {key}.name=', 1)}"
            for key, name in chosen.items()
            if name != default_choices()[key]
        ]
        plain = [f"batch={self.batch}", f"seed={self.seed}"]
        if self.protocol == "fixed_workers":
            unusual.append(f"workers={self.workers}")
        elif self.global_batch != USUAL_GLOBAL_BATCH:
            unusual.append(f"global_batch={self.global_batch}")
        if self.precision != PRECISIONS[0]:
            unusual.append(f"precision={self.precision}")
        return " ".join([self.norm.name, *plain, *unusual, *self.options.split()])

    @property
    def unverified(self) -> list[str]:
        """Options whose values are ours although a paper's protocol is meant, with their values."""
        return [
            f"{group}.{key}={_typed(getattr(self, group).options[key])}"
            for group in GROUPS
            for key in getattr(self, group).unverified
        ]

    def with_readers(self, number: int) -> "Cell":
        """The same with so many readers, if the command line leaves them open."""
        if self.trainer.readers is not None:
            return self
        return replace(self, trainer=replace(self.trainer, readers=number))

    def asked(self, sweep: str) -> dict[str, Any]:
        """The part of a row that says what was asked."""
        plain = (
            "id",
            "batch",
            "workers",
            "global_batch",
            "protocol",
            "seed",
            "precision",
            "options",
        )
        chosen = {group: getattr(self, group).name for group in GROUPS}
        values = {name: getattr(self, name) for name in plain}
        more = {"sweep": sweep, "config": self.identity, "unverified": self.unverified}
        return {**chosen, **values, **more}

    def among(self, devices: int) -> "Cell":
        """This cell on that many devices.

        Raises:
            BadInput: its workers do not fall evenly on them.
        """
        if self.workers % devices:
            raise BadInput(
                f"{devices} processes were started for one run, and the {self.workers} workers of "
                f"{self.title} do not fall evenly on them; as many as divide {self.workers} work"
            )
        return replace(self, trainer=replace(self.trainer, devices=devices))

    def on(self, accelerator: Accelerator) -> "Cell":
        """This cell with `accelerator` where it left the choice open."""
        if self.trainer.accelerator != "auto":
            return self
        return replace(self, trainer=replace(self.trainer, accelerator=accelerator))


def _digest(description: Mapping[str, Any]) -> str:
    # Sorted keys and no spaces: the same description gives the same text, however it was typed.
    canonical = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _own_code(target: str) -> dict[str, str]:
    """The class outside normbench that a yaml names, with a hash of its file.

    Code of ours has its commit in the row; code of a user's own changes from run to run, and a
    result of the old code must not answer for the new.
    """
    if target.startswith("normbench.") or "." not in target:
        return {}
    try:
        found = find_spec(target.rpartition(".")[0])
    except (ImportError, ValueError):
        found = None  # the check of all cells says so, with the trace
    origin = found.origin if found is not None else None
    if origin is None or not Path(origin).is_file():
        return {"code": target}
    return {"code": f"{target} {hashlib.sha256(Path(origin).read_bytes()).hexdigest()[:12]}"}


def _words(key: str, value: Any) -> list[str]:
    """An option as one would type it; what is inside of another is added to it."""
    if isinstance(value, Mapping):
        return [f"+{key}.{inner}={_typed(given)}" for inner, given in sorted(value.items())]
    return [f"{key}={_typed(value)}"]


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_typed, value))}]"  # no space: options are separated by one
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
