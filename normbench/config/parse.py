"""Parse a resolved configuration into a cell, or refuse it with one sentence.

Checks that need torch or data are in `normbench.execution.preflight`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from normbench.config.bounds import BOUNDS, MOST_SECONDS, require_whole
from normbench.config.cells import (
    GROUPS,
    PATHS,
    PRECISIONS,
    Accelerator,
    Cell,
    Checkpointing,
    Choice,
    Hardware,
    Impl,
    Loader,
    Probing,
    Settings,
    user_code,
)
from normbench.config.files import expand, training_probes
from normbench.config.plan import divisors
from normbench.config.start import split_start
from normbench.config.wandb_options import check_logger
from normbench.errors import BadInput, choose_from, require_one_of
from normbench.results import REPORTS

#: Keys whose plain numbers need no composition of their own: they choose no file.
NUMBERS = ("batch", "workers", "global_batch", "seed")
NULLABLE = ("per_forward", "chunk", "readers")


def parse(
    config: Mapping[str, Any],
    choices: Mapping[str, str],
    defaults: Mapping[str, Mapping[str, Any]],
    unverified: Mapping[str, frozenset[str]] | None = None,
) -> tuple[Cell, Settings]:
    """Return the cell that a resolved configuration describes, and the command line's settings.

    Args:
        config: the configuration; an unknown key is an error.
        choices: the name chosen in each group.
        defaults: the content of the chosen yaml of each group.
        unverified: options of that yaml whose values no source gives, of each group.

    Raises:
        BadInput: a key is unknown or a value cannot be used; the sentence says what would.
    """
    rest = dict(config)
    # Each step takes its keys out of `rest`; a key that is left at the end is unknown.
    groups: dict[str, Any] = {
        group: _choice(
            group, choices, _take(rest, group) or {}, defaults, (unverified or {}).get(group, ())
        )
        for group in (*GROUPS, "trainer", "checkpoint", "probe", "logger")
    }
    protocol = choices["protocol"]
    typed = {key: _take(rest, key) for key in NUMBERS}
    numbers = parse_numbers(protocol, typed, groups["task"])
    trainer = _parse_trainer(groups.pop("trainer").options)
    checkpoint = _parse_checkpoint(groups.pop("checkpoint").options)
    probe = _parse_probe(groups.pop("probe").options)
    init_from = _take(rest, "init_from")
    if init_from is not None:
        init_from = "@".join(split_start(init_from))
    init_only = _parse_init_only(_take(rest, "init_only"), init_from)
    loader: Any = require_one_of("loader", _take(rest, "loader"), get_args(Loader))
    check_logger(groups["logger"].options)
    precision = require_one_of("precision", _take(rest, "precision"), PRECISIONS)
    settings = _parse_settings(rest, choices.get("sweeps"))
    if "sweeps" in rest:
        raise BadInput(
            f"sweeps={choices.get('sweeps')}: the first line of its file must be "
            "`# @package _global_`, so that it sets keys of the command line"
        )
    for key in rest:
        known = {*config, "protocol", "sweeps"} - rest.keys()
        raise BadInput(f"{key}={rest[key]} is unknown; {choose_from(key, known)}")
    cell = Cell(
        **numbers, protocol=protocol, precision=precision, init_from=init_from,
        init_only=init_only, loader=loader, trainer=trainer, checkpoint=checkpoint, probe=probe,
        command_seeds=1, **groups,
    )  # fmt: skip
    return cell, settings


def parse_numbers(protocol: str, numbers: Mapping[str, Any], task: Choice) -> dict[str, Any]:
    """Return the plain numbers of a cell, of which `protocol` leaves one to follow from others.

    Args:
        protocol: that the command line chose.
        numbers: its `NUMBERS`.
        task: whose global batch is taken if none is typed.

    Raises:
        BadInput: a number cannot be used.
    """
    batch = require_whole("batch", numbers["batch"])
    workers, typed = numbers["workers"], numbers["global_batch"]
    if protocol == "fixed_global_batch" and typed is None:
        typed = require_whole("task.global_batch", task.options.get("global_batch"))
    workers, global_batch = derive_workers(protocol, batch, workers, typed)
    seed = require_whole("seed", numbers["seed"])
    return {"batch": batch, "workers": workers, "global_batch": global_batch, "seed": seed}


def derive_workers(protocol: str, batch: int, workers: Any, global_batch: Any) -> tuple[int, int]:
    """Return workers and global batch; the protocol fixes one and the other follows.

    Raises:
        BadInput: the other one is given, or `batch` does not divide the global batch.
    """
    if protocol == "fixed_workers" and global_batch is not None:
        raise BadInput(
            f"global_batch={global_batch}: under protocol=fixed_workers it follows from batch * "
            f"workers; protocol=fixed_global_batch global_batch={global_batch} fixes it"
        )
    if protocol == "fixed_workers":
        count = require_whole("workers", workers)
        return count, batch * count
    if workers is not None:
        raise BadInput(
            f"workers={workers}: under protocol={protocol} the workers follow from global_batch / "
            f"batch; protocol=fixed_workers workers={workers} fixes them"
        )
    total = require_whole("global_batch", global_batch)
    if total % batch:
        near = [max(d for d in divisors(total) if d < batch)]
        near += [d for d in reversed(divisors(total)) if d > batch]
        working = " or ".join(f"batch={d}" for d in near[:2])
        raise BadInput(
            f"batch={batch} does not divide the global batch of {total} images; {working} does, or "
            f"choose global_batch={max(1, round(total / batch)) * batch} or protocol=fixed_workers"
        )
    return total // batch, total


def _take(rest: dict[str, Any], key: str) -> Any:
    """Remove `key` from `rest` and return its value."""
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
    if not isinstance(options, Mapping):
        raise BadInput(f"{group}={options}: {group} takes the name of a yaml file")
    default, options = defaults[group], {str(key): value for key, value in options.items()}
    for key in options:
        if key not in default:
            known = [option for option in default if option != "_target_"]
            raise BadInput(f"{group}.{key} is unknown; {choose_from(key, known)}")
    if missing := sorted(default.keys() - options.keys()):
        option = f"{group}.{missing[0]}"
        raise BadInput(
            f"{option} is missing from the configuration; ~{option} deleted it, and null or "
            "another value works where the option allows it"
        )
    target = options.get("_target_")
    if target != default.get("_target_") and "${" not in str(default.get("_target_")):
        raise BadInput(
            f"{group}._target_={target}: another class needs another name; write a "
            f"yaml of your own, as mine/{group}/own.yaml, and add --config-dir mine {group}=own"
        )
    values = {key: _as_type_of(default[key], value) for key, value in options.items()}
    changed = {key: value for key, value in values.items() if value != default[key]}
    for key in PATHS & values.keys():  # of a data set
        if isinstance(folder := values[key], str):
            expand(f"{group}.{key}", folder)
    name = choices[group]
    code = user_code(group, name, target) if group in GROUPS else ""
    if "name" in changed:  # model=timm model.name=resnet50 is timm/resnet50
        name = f"{name}/{changed.pop('name')}"
    # A value of the user's own is no longer the yaml's unverified one.
    return Choice(name, values, changed, tuple(sorted(set(unverified) - changed.keys())), code)


def _as_type_of(default: Any, value: Any) -> Any:
    """Return a number in the type of the yaml's, so that 0 and 0.0 describe the same run."""
    if isinstance(value, bool) or isinstance(default, bool):
        return value
    if isinstance(default, float) and isinstance(value, int):
        return float(value)
    if isinstance(default, int) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _parse_trainer(options: Mapping[str, Any]) -> Hardware:
    for name in BOUNDS:
        group, _, key = name.partition(".")
        if group == "trainer" and not (key in NULLABLE and options[key] is None):
            require_whole(name, options[key])
    for key in ("channels_last", "cuda_graph"):
        _require_bool(f"trainer.{key}", options[key])
    require_one_of("trainer.accelerator", options["accelerator"], get_args(Accelerator))
    require_one_of("trainer.impl", options["impl"], get_args(Impl))
    return Hardware(**options)


def _parse_settings(rest: dict[str, Any], sweep: str | None) -> Settings:
    """Remove the keys of `Settings` from `rest` and return them."""
    runs, reports, jobs = (_take(rest, key) for key in ("runs", "reports", "jobs"))
    if not isinstance(runs, str) or not runs:
        raise BadInput(f"runs={runs}: it names the root folder of all runs, as in runs=runs")
    if reports is not None:
        if not isinstance(reports, str) or not reports:
            raise BadInput(f"reports={reports}: it names a folder, as in reports=tables")
        reports = str(expand("reports", reports))
    if jobs is not None:
        require_whole("jobs", jobs)
    force, resume, stack_seeds = (
        _require_bool(key, _take(rest, key)) for key in ("force", "resume", "stack_seeds")
    )
    root = str(expand("runs", runs))
    if sweep == REPORTS:
        raise BadInput(
            f"sweeps={sweep}: its runs would be in the folder of reports, {root}/{sweep}; give the "
            "file of the sweep another name"
        )
    return Settings(root, reports, jobs, force, resume, stack_seeds, sweep or "default")


def _require_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name}={value}: it is true or false")
    return value


def _parse_checkpoint(options: Mapping[str, Any]) -> Checkpointing:
    keep = _require_bool("checkpoint.keep", options["keep"])
    every, epochs = options["every"], options["epochs"]
    number = isinstance(every, int | float) and not isinstance(every, bool)
    if every is not None and not (number and 0 <= every <= MOST_SECONDS):  # nan is neither
        raise BadInput(
            f"checkpoint.every={every}: seconds between two checkpoints, 0 for one after every "
            f"chunk of steps, or null; at most {MOST_SECONDS:,}"
        )
    if not isinstance(epochs, list):
        raise BadInput(f"checkpoint.epochs={epochs}: a list of epochs, as [30,60,90]")
    for epoch in epochs:
        require_whole("checkpoint.epochs", epoch)
    return Checkpointing(keep, every, tuple(epochs))


def _parse_probe(options: Mapping[str, Any]) -> Probing:
    kinds = options["kinds"]
    if not isinstance(kinds, list):
        raise BadInput(f"probe.kinds={kinds}: a list, as [{','.join(training_probes())}]")
    for kind in kinds:
        require_one_of("probe.kinds", kind, training_probes())
    return Probing(
        tuple(kinds),
        require_whole("probe.every", options["every"]),
        require_whole("probe.images", options["images"]),
    )


def _parse_init_only(value: Any, init_from: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise BadInput(f"init_only={value} is no list of parameters' roles; use [ratio] or null")
    if init_from is None:
        raise BadInput(
            f"init_only=[{','.join(map(str, value))}] needs init_from; add "
            "init_from=0123456789ab@30, or use init_only=null"
        )
    return tuple(map(str, value))
