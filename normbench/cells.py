"""A cell: one fully described training run, and the id that follows from the description.

Checks here need no torch and no data; what needs them is checked in `normbench.check`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from math import isqrt
from pathlib import Path
from typing import Any, Literal, get_args

from normbench.errors import BadInput, choose_from
from normbench.home import usual_choices
from normbench.plan import Plan, layouts

GROUPS = ("norm", "model", "data", "reg", "recipe")
#: Options that say where something lies: they change no number and are no part of the id.
PATHS = frozenset({"root"})

Accelerator = Literal["auto", "cpu", "gpu"]
USUAL_GLOBAL_BATCH = 128  # of conf/protocol/fixed_global_batch.yaml
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclass(frozen=True)
class Choice:
    """A yaml of a group by its name, with its options as resolved."""

    name: str
    options: Mapping[str, Any]
    changed: Mapping[str, Any]  # those that differ from the yaml

    @property
    def identity(self) -> dict[str, Any]:
        """Name and options as far as they change numbers; for code of the user's own, that too."""
        # The name and not `_target_`: a class of ours may move to another module. And no null: an
        # option that comes later, and is null or empty by default, leaves the ids of finished runs
        # alone.
        given = {k: v for k, v in self.options.items() if v is not None}
        kept = {k: v for k, v in given.items() if k not in PATHS | {"_target_"} and v != {}}
        own = kept.pop("name", None)
        if own is not None and "/" not in self.name:  # as typed it is in the name of the choice
            kept["option name"] = own
        return {"name": self.name, **kept, **_own_code(self.options.get("_target_", ""))}


@dataclass(frozen=True)
class Hardware:
    """conf/trainer: what decides how fast, never what is computed."""

    accelerator: Accelerator
    devices: int  # at most so many, each in a process of its own
    per_forward: int | None  # at most so many workers in one forward pass
    threads: int
    chunk: int | None
    log_every: int

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
class Settings:
    """What holds for all cells of a command line."""

    runs: str
    jobs: int | None
    force: bool
    resume: bool
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
    trainer: Hardware
    checkpoint: Saving
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
        return " ".join(
            word
            for group in GROUPS
            for key, value in sorted(getattr(self, group).changed.items())
            if key not in PATHS
            for word in _words(f"{group}.{key}", value)
        )

    @property
    def title(self) -> str:
        """A name for the screen and for W&B: what is asked, as far as it is not the usual."""
        chosen = {group: getattr(self, group).name for group in GROUPS if group != "norm"}
        chosen |= {"protocol": self.protocol}
        unusual = [
            f"{key}={name}" if "/" not in name else f"{key}={name.replace('/', f' {key}.name=', 1)}"
            for key, name in chosen.items()
            if name != usual_choices()[key]
        ]
        plain = [f"batch={self.batch}", f"seed={self.seed}"]
        if self.protocol == "fixed_workers":
            unusual.append(f"workers={self.workers}")
        elif self.global_batch != USUAL_GLOBAL_BATCH:
            unusual.append(f"global_batch={self.global_batch}")
        if self.precision != PRECISIONS[0]:
            unusual.append(f"precision={self.precision}")
        if self.init_from is not None:
            unusual.append(f"init_from={self.init_from}")
        return " ".join([self.norm.name, *plain, *unusual, *self.options.split()])

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
        return {**chosen, **values, "sweep": sweep, "config": self.identity}

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


@dataclass(frozen=True)
class Request:
    """A cell to train under a plan, and where to leave what comes out of it."""

    cell: Cell
    plan: Plan
    folder: Path
    sweep: str
    commit: str
    force: bool
    resume: bool
    computation: str = ""
    init: Path | None = None  # the checkpoint that `cell.init_from` names


def parse(
    config: Mapping[str, Any], choices: Mapping[str, str], defaults: Mapping[str, Mapping[str, Any]]
) -> tuple[Cell, Settings]:
    """The cell that a resolved configuration describes.

    Args:
        config: the configuration; every one of its keys is read here.
        choices: the name chosen in each group.
        defaults: the content of the chosen yaml of each group.

    Raises:
        BadInput: a key is unknown or a value cannot be used; the sentence says what would.
    """
    rest = dict(config)
    groups = {
        group: _choice(group, choices, _take(rest, group) or {}, defaults)
        for group in (*GROUPS, "trainer", "checkpoint", "logger")
    }
    protocol = choices["protocol"]
    batch = whole("batch", _take(rest, "batch"), 1, "images per worker")
    workers, global_batch = lay_out(
        protocol, batch, _take(rest, "workers"), _take(rest, "global_batch")
    )
    trainer = _hardware(groups.pop("trainer").options)
    saving = _saving(groups.pop("checkpoint").options)
    init_from = _begun(_take(rest, "init_from"))
    seed = whole("seed", _take(rest, "seed"), 0, "the seed")
    if seed >= 2**32:
        raise BadInput(f"seed={seed}: numpy takes seeds below 2**32, as seed=0")
    mode = groups["logger"].options.get("mode", "offline")
    one_of("logger.mode", mode, ("auto", "online", "offline", "disabled"))
    precision = one_of("precision", _take(rest, "precision"), PRECISIONS)
    settings = _settings(rest, choices.get("sweeps"))
    for key in rest:
        known = {*config, "protocol", "sweeps"} - rest.keys()
        raise BadInput(f"{key}={rest[key]} is unknown; {choose_from(key, known)}")
    cell = Cell(
        batch=batch, workers=workers, global_batch=global_batch, protocol=protocol, seed=seed,
        precision=precision, init_from=init_from, trainer=trainer, checkpoint=saving, **groups,
    )  # fmt: skip
    return cell, settings


def lay_out(protocol: str, batch: int, workers: Any, global_batch: Any) -> tuple[int, int]:
    """Workers and global batch, one of which is given and the other follows.

    Raises:
        BadInput: the wrong one is given, or `batch` does not divide the global batch.
    """
    if protocol == "fixed_workers" and global_batch is not None:
        raise BadInput(
            f"global_batch={global_batch}: under protocol=fixed_workers it follows from batch * "
            f"workers; protocol=fixed_global_batch global_batch={global_batch} fixes it"
        )
    if protocol == "fixed_workers":
        count = whole("workers", workers, 1, "under protocol=fixed_workers the number of workers")
        return count, batch * count
    if workers is not None:
        raise BadInput(
            f"workers={workers}: under protocol={protocol} the workers follow from global_batch / "
            f"batch; protocol=fixed_workers workers={workers} fixes them"
        )
    total = whole("global_batch", global_batch, 1, "images of an optimizer step")
    if total % batch:
        below = [d for d in range(1, isqrt(total) + 1) if total % d == 0]
        divisors = {*below, *(total // d for d in below)}
        near = sorted(sorted(divisors, key=lambda d: abs(d - batch))[:2])
        raise BadInput(
            f"batch={batch} does not divide the global batch of {total} images; "
            f"{' or '.join(f'batch={d}' for d in near)} does, or choose global_batch={batch * 8} "
            "or protocol=fixed_workers"
        )
    return total // batch, total


def whole(name: str, value: Any, least: int, meaning: str) -> int:
    """`value` if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(
            f"{name}={value}: {meaning} must be a whole number of at least {least}, "
            f"as in {name}={8 if least else 0}"
        )
    return value


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    """`value` if it is one of `known`."""
    if value not in known:
        raise BadInput(f"{name}={value} is unknown; {choose_from(str(value), known)}")
    return str(value)


def _take(rest: dict[str, Any], key: str) -> Any:
    """The value of `key`, which `rest` has no longer."""
    if key not in rest:
        raise BadInput(f"{key} is missing from the configuration; ~{key} took it away")
    return rest.pop(key)


def _choice(
    group: str,
    choices: Mapping[str, str],
    options: Mapping[str, Any],
    defaults: Mapping[str, Mapping[str, Any]],
) -> Choice:
    if group not in defaults:
        raise BadInput(f"{group} takes the name of one yaml file; several make a grid with -m")
    own = defaults[group]
    for key in options:
        if key not in own:
            known = [option for option in own if option != "_target_"]
            raise BadInput(f"{group}.{key} is unknown; {choose_from(key, known)}")
    alike = {key: _alike(value, own[key]) for key, value in options.items()}
    changed = {key: value for key, value in alike.items() if value != own[key]}
    name = choices[group]
    if "name" in changed:  # model=timm model.name=resnet50 is timm/resnet50
        name = f"{name}/{changed.pop('name')}"
    return Choice(name, alike, changed)


def _alike(value: Any, usual: Any) -> Any:
    """A number of the type that its yaml has, so that 0 and 0.0 describe the same run."""
    if isinstance(value, bool) or isinstance(usual, bool):
        return value
    if isinstance(usual, float) and isinstance(value, int):
        return float(value)
    if isinstance(usual, int) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _hardware(options: Mapping[str, Any]) -> Hardware:
    accelerator = one_of("trainer.accelerator", options["accelerator"], get_args(Accelerator))
    chunk, per_forward = options["chunk"], options["per_forward"]
    if chunk is not None:
        whole("trainer.chunk", chunk, 1, "optimizer steps of a chunk")
    if per_forward is not None:
        whole("trainer.per_forward", per_forward, 1, "workers in one forward pass at most")
    return Hardware(
        accelerator,  # type: ignore[arg-type]
        whole("trainer.devices", options["devices"], 1, "devices of a run at most"),
        per_forward,
        whole("trainer.threads", options["threads"], 1, "CPU threads of a run"),
        chunk,
        whole("trainer.log_every", options["log_every"], 1, "steps between two records"),
    )


def _settings(rest: dict[str, Any], sweep: str | None) -> Settings:
    """Takes the keys of `Settings` out of `rest`."""
    runs, jobs = (_take(rest, key) for key in ("runs", "jobs"))
    if not isinstance(runs, str) or not runs:
        raise BadInput(f"runs={runs}: it names the root folder of all runs, as in runs=runs")
    if jobs is not None:
        whole("jobs", jobs, 1, "runs beside each other")
    force, resume = (_switch(key, _take(rest, key)) for key in ("force", "resume"))
    return Settings(str(Path(runs).expanduser()), jobs, force, resume, sweep or "default")


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name}={value}: it is true or false")
    return value


def _saving(options: Mapping[str, Any]) -> Saving:
    keep = _switch("checkpoint.keep", options["keep"])
    every, epochs = options["every"], options["epochs"]
    if every is not None and (isinstance(every, bool) or not isinstance(every, int | float)):
        raise BadInput(f"checkpoint.every={every}: seconds between two checkpoints, or null")
    if not isinstance(epochs, list):
        raise BadInput(f"checkpoint.epochs={epochs}: a list of epochs, as [30,60,90]")
    for epoch in epochs:
        whole("checkpoint.epochs", epoch, 1, "an epoch after which a checkpoint is kept")
    return Saving(keep, every, tuple(epochs))


def _begun(value: Any) -> str | None:
    if value is None:
        return None
    run, _, epoch = str(value).partition("@")
    if not re.fullmatch("[0-9a-f]{12}", run) or not re.fullmatch("[1-9][0-9]*|last", epoch):
        raise BadInput(
            f"init_from={value}: it is RUN@EPOCH, the twelve digits of a run's id and an epoch of "
            "its checkpoint.epochs or last, as init_from=0123456789ab@30"
        )
    return str(value)


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
