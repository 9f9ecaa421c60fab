"""From a resolved configuration to the cell that it describes, or one sentence why there is none.

Checks here need no torch and no data; what needs them is checked in
`normbench.execution.preflight`.
"""

import re
from collections.abc import Iterable, Mapping
from math import isqrt
from pathlib import Path
from typing import Any, get_args

from normbench.config.cells import (
    GROUPS,
    PRECISIONS,
    Accelerator,
    Cell,
    Choice,
    Hardware,
    Impl,
    Loader,
    Probing,
    Saving,
    Settings,
)
from normbench.config.files import training_probes
from normbench.errors import BadInput, choose_from


def parse(
    config: Mapping[str, Any],
    choices: Mapping[str, str],
    defaults: Mapping[str, Mapping[str, Any]],
    unverified: Mapping[str, frozenset[str]] | None = None,
) -> tuple[Cell, Settings]:
    """The cell that a resolved configuration describes.

    Args:
        config: the configuration; every one of its keys is read here.
        choices: the name chosen in each group.
        defaults: the content of the chosen yaml of each group.
        unverified: of each group, options of that yaml whose value no source gives.

    Raises:
        BadInput: a key is unknown or a value cannot be used; the sentence says what would.
    """
    rest = dict(config)
    groups = {
        group: _choice(
            group, choices, _take(rest, group) or {}, defaults, (unverified or {}).get(group, ())
        )
        for group in (*GROUPS, "trainer", "checkpoint", "probe", "logger")
    }
    protocol = choices["protocol"]
    batch = whole("batch", _take(rest, "batch"), 1, "images per worker")
    workers, global_batch = lay_out(
        protocol, batch, _take(rest, "workers"), _take(rest, "global_batch")
    )
    trainer = _hardware(groups.pop("trainer").options)
    saving = _saving(groups.pop("checkpoint").options)
    probing = _probing(groups.pop("probe").options)
    init_from = _begun(_take(rest, "init_from"))
    loader: Any = one_of("loader", _take(rest, "loader"), get_args(Loader))
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
        precision=precision, init_from=init_from, loader=loader, trainer=trainer, checkpoint=saving,
        probe=probing, **groups,
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
    unverified: Iterable[str],
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
    return Choice(name, alike, changed, tuple(sorted(set(unverified) - changed.keys())))


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
    chunk, per_forward, readers = (options[key] for key in ("chunk", "per_forward", "readers"))
    if chunk is not None:
        whole("trainer.chunk", chunk, 1, "optimizer steps of a chunk")
    if per_forward is not None:
        whole("trainer.per_forward", per_forward, 1, "workers in one forward pass at most")
    if readers is not None:
        whole("trainer.readers", readers, 0, "processes that read images")
    return Hardware(
        accelerator,  # type: ignore[arg-type]
        whole("trainer.devices", options["devices"], 1, "devices of a run at most"),
        per_forward,
        whole("trainer.threads", options["threads"], 1, "CPU threads of a run"),
        chunk,
        whole("trainer.log_every", options["log_every"], 1, "steps between two records"),
        readers,
        _switch("trainer.channels_last", options["channels_last"]),
        one_of("trainer.impl", options["impl"], get_args(Impl)),  # type: ignore[arg-type]
        _switch("trainer.graphs", options["graphs"]),
    )


def _settings(rest: dict[str, Any], sweep: str | None) -> Settings:
    """Takes the keys of `Settings` out of `rest`."""
    runs, jobs = (_take(rest, key) for key in ("runs", "jobs"))
    if not isinstance(runs, str) or not runs:
        raise BadInput(f"runs={runs}: it names the root folder of all runs, as in runs=runs")
    if jobs is not None:
        whole("jobs", jobs, 1, "runs beside each other")
    force, resume, together = (
        _switch(key, _take(rest, key)) for key in ("force", "resume", "seeds_together")
    )
    root = str(Path(runs).expanduser())
    return Settings(root, jobs, force, resume, together, sweep or "default")


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name}={value}: it is true or false")
    return value


def _saving(options: Mapping[str, Any]) -> Saving:
    keep = _switch("checkpoint.keep", options["keep"])
    every, epochs = options["every"], options["epochs"]
    number = isinstance(every, int | float) and not isinstance(every, bool)
    if every is not None and (not number or every < 0):
        raise BadInput(
            f"checkpoint.every={every}: seconds between two checkpoints, 0 for one after every "
            "chunk of steps, or null"
        )
    if not isinstance(epochs, list):
        raise BadInput(f"checkpoint.epochs={epochs}: a list of epochs, as [30,60,90]")
    for epoch in epochs:
        whole("checkpoint.epochs", epoch, 1, "an epoch after which a checkpoint is kept")
    return Saving(keep, every, tuple(epochs))


def _probing(options: Mapping[str, Any]) -> Probing:
    kinds = options["kinds"]
    if not isinstance(kinds, list):
        raise BadInput(f"probe.kinds={kinds}: a list, as [{','.join(training_probes())}]")
    for kind in kinds:
        one_of("probe.kinds", kind, training_probes())
    return Probing(
        tuple(kinds),
        whole("probe.every", options["every"], 1, "epochs between two measurements"),
        whole("probe.images", options["images"], 2, "training images that probes measure"),
    )


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
