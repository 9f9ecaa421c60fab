"""Steps per second and memory of normalizers (Brock, De and Smith 2021, tables 4 and 5).

A training step is forward, backward and SGD with momentum on images that are on the device; an
inference step is a forward pass in evaluation, and a folded one that of the network as it would be
deployed (`normbench.models.fold`). The networks take turns, round by round, so that a noisy moment
affects all of them, and medians are compared. bn is timed at the beginning and at the end of a
round: the ratio of the two says how far ratios can be trusted. A network that does not fit the
memory is OOM, one that refuses its maps n/a, with the reason.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.benchmark import Timer

from normbench.config.cells import Cell
from normbench.errors import BadInput, Impossible, count
from normbench.execution.provenance import processor
from normbench.execution.requirements import require_compiler
from normbench.measurements.memory import peak_memory
from normbench.models.fold import fold
from normbench.models.profile import count_operations
from normbench.norms.implementation import set_implementation
from normbench.norms.workers import set_workers
from normbench.probe.networks import ProbedNetwork, compose_cells, initial_networks
from normbench.probe.output import print_table, write_results
from normbench.probe.request import ProbeRequest
from normbench.records.probes import Record
from normbench.report.measured_times import network_key
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context, use_full_precision, weight_dtype

StepMode = Literal["training", "inference", "folded"]
Step = Callable[[], object]

HEAD = ("network", "batch", "mode", "params", "mult-adds", "steps/s", "quartiles", "images/s",
        "over bn", "bn again", "memory MB", "over bn")  # fmt: skip
SECONDS = 0.2  # the least duration of a measurement


@dataclass(frozen=True)
class TimedNetwork:
    """A network to time."""

    build: Callable[[], nn.Module]  # returns it on the device of the images
    images: Tensor  # (N, C, H, W), those of one worker
    train_loss: Callable[[nn.Module], Tensor]  # returns the loss of the network on the images
    context: Callable[[], AbstractContextManager[object]] = nullcontext  # of every forward pass


@dataclass(frozen=True)
class Speed:
    """Speed of one network at one batch. Numbers are None unless the status is ok."""

    network: str
    batch: int
    mode: StepMode
    status: Literal["ok", "OOM", "n/a"]
    reason: str = ""
    steps_per_second: float | None = None  # median over the rounds
    lower: float | None = None  # quartiles
    upper: float | None = None
    again: float | None = None  # of a reference: its second measurement over its first
    memory: int | None = None  # peak bytes, with weights, gradients and momentum
    params: int | None = None  # of the network that is timed
    operations: int | None = None  # of all kinds, of an evaluation of one image


def measure_speeds(
    networks: Mapping[str, TimedNetwork],
    mode: StepMode,
    repeats: int,
    references: Sequence[str] = (),
) -> list[Speed]:
    """Time `networks` in turn, for `repeats` rounds; only the one that runs is in memory.

    A round begins and ends with those of `references`.
    """
    speeds: dict[str, Speed] = {}
    rates: dict[str, list[float]] = {}
    for name, network in networks.items():
        batch = len(network.images)
        try:
            speeds[name] = replace(_measure_sizes(network, mode), network=name)
        except Impossible as reason:
            speeds[name] = Speed(name, batch, mode, "n/a", str(reason))
        except RuntimeError as error:
            speeds[name] = _out_of_memory(error, name, batch, mode)
        else:
            rates[name] = []
    for _ in range(repeats):
        others = [name for name in rates if name not in references]
        for name in [name for name in (*references, *others, *references) if name in rates]:
            if name not in rates:  # it did not fit at the beginning of the round
                continue
            try:
                built = _build_network(networks[name], mode)
                step = _make_step(built, networks[name], mode)
                rates[name].append(_steps_per_second(step))
            except RuntimeError as error:  # another process on the device has taken the memory
                speeds[name] = _out_of_memory(error, name, speeds[name].batch, mode)
                del rates[name]
    for name, per_second in rates.items():
        lower, median, upper = np.quantile(per_second, (0.25, 0.5, 0.75)).tolist()
        again = None
        if name in references:
            again = float(np.median(np.divide(per_second[1::2], per_second[::2])))
        speeds[name] = replace(
            speeds[name], steps_per_second=median, lower=lower, upper=upper, again=again
        )
    return [speeds[name] for name in networks]


def _measure_sizes(timed: TimedNetwork, mode: StepMode) -> Speed:
    """Return peak memory, parameters and operations of a network."""
    network = _build_network(timed, mode)
    on_meta = copy.deepcopy(network).to("meta").eval()
    tensors = [*network.parameters(), *network.buffers()]
    weights = sum(each.numel() * each.element_size() for each in tensors)
    step = _make_step(network, timed, mode)

    def two_steps() -> None:
        step()
        step()  # the momentum exists from the first step on

    return Speed(
        network="",
        batch=len(timed.images),
        mode=mode,
        status="ok",
        params=sum(parameter.numel() for parameter in network.parameters()),
        operations=count_operations(on_meta, _image_shape(timed)),
        # With the weights, but without the memory to build and fold the network.
        memory=weights + peak_memory(two_steps, timed.images.device),
    )


def _image_shape(timed: TimedNetwork) -> tuple[int, int, int]:
    _, channels, height, width = timed.images.shape
    return channels, height, width


def _steps_per_second(step: Step) -> float:
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    step()  # the first one sets up buffers
    return 1 / timer.blocked_autorange(min_run_time=SECONDS).mean


def _build_network(timed: TimedNetwork, mode: StepMode) -> nn.Module:
    network = timed.build()
    set_workers(network, 1)  # the images are those of one worker
    if mode == "folded":
        return fold(network, _image_shape(timed))
    return network.train(mode == "training")


def _make_step(network: nn.Module, timed: TimedNetwork, mode: StepMode) -> Step:
    images = timed.images
    if mode != "training":

        def infer() -> None:
            with torch.inference_mode(), timed.context():
                network(images)

        return infer
    optimizer = SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def train() -> None:
        optimizer.zero_grad()
        with timed.context():
            loss = timed.train_loss(network)
        loss.backward()
        optimizer.step()

    return train


def _out_of_memory(error: RuntimeError, name: str, batch: int, mode: StepMode) -> Speed:
    """Return the result of a network that does not fit; raise any other `error` again."""
    if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
        raise error
    if torch.cuda.is_available():
        # The allocator keeps what the failed network had, and the next one needs it.
        torch.cuda.empty_cache()
    return Speed(name, batch, mode, "OOM", "it does not fit the memory")


def run(request: ProbeRequest) -> None:
    """Time the requested networks, and bn in each architecture; print and write the speeds."""
    described = [cell for _, words in request.networks for cell in _with_bn(words)]
    cells = [*{(cell.id, cell.trainer): cell for cell in described}.values()]
    if len({repr(cell.data.identity) for cell in cells}) > 1:
        raise BadInput("data: speeds are compared on images of one size; give one data set")
    data = Experiment(cells[0]).data
    torch.set_num_threads(cells[0].trainer.threads)  # as in a run
    use_full_precision()
    records: list[Record] = []
    for batch in sorted({cell.batch for cell in cells}):
        networks = initial_networks([("", [cell for cell in cells if cell.batch == batch])])
        images = torch.randn(batch, *data.image_shape)
        timed = {network.label: _timed_network(network, images) for network in networks}
        if len(timed) < len(networks):
            raise BadInput(
                "two networks differ only in options of trainer, which their labels leave out; "
                "measure them by two commands, with name=STEM in one of them"
            )
        for mode in request.options.mode:
            print(
                f"batch {batch}, {mode}: {count(len(networks), 'network')}",
                file=sys.stderr,
                flush=True,
            )
            references = [network.label for network in networks if _is_bn(network.cell)]
            speeds = measure_speeds(timed, mode, request.options.repeats, references)
            records += _compare_with_bn(networks, speeds)
    print_table([[r["network"], r["batch"], r["mode"], *_entries(r)] for r in records], HEAD)
    refusals = {f"{r['network']}: {r['reason']}": None for r in records if r["status"] == "n/a"}
    print("\n".join(refusals))
    write_results(request, records)


def _timed_network(network: ProbedNetwork, images: Tensor) -> TimedNetwork:
    """Return a network with the precision and the memory format of its cell."""
    cell, device = network.cell, network.device
    impl, graphs = cell.trainer.impl, str(cell.trainer.cuda_graph).lower()
    if impl == "compile" or cell.precision == "16-mixed" or cell.trainer.cuda_graph:
        raise BadInput(
            f"trainer.impl={impl} precision={cell.precision} trainer.cuda_graph={graphs}: speeds "
            "are of eager or triton networks, in 32-true, 64-true or bf16-mixed"
        )
    require_compiler(cell)
    channels_last = cell.trainer.channels_last
    layout = torch.channels_last if channels_last else torch.contiguous_format
    on_device = images.to(device, weight_dtype(cell)).to(memory_format=layout)

    def build() -> nn.Module:
        module = network.build().to(memory_format=layout)
        # auto compiles long trainings alone, and this is none.
        set_implementation(module, "eager" if cell.trainer.impl == "auto" else cell.trainer.impl)
        return module

    experiment = Experiment(cell)
    task = experiment.task
    targets = [each.to(device) for each in task.example_targets(len(images), experiment.data)]

    def train_loss(network: nn.Module) -> Tensor:
        output = task.run_training_pass(network, on_device, targets)
        return task.loss(output, targets, experiment.reg, workers=1)

    return TimedNetwork(build, on_device, train_loss, partial(autocast_context, cell, device))


def _with_bn(words: Sequence[str]) -> list[Cell]:
    """Return the cells of some words, and first those of bn, unless bn is among them."""
    cells = compose_cells(words)
    if any(_is_bn(cell) for cell in cells):
        return cells
    others = [word for word in words if not word.startswith(("norm=", "norm."))]
    return [*compose_cells([*others, "norm=bn"]), *cells]


def _is_bn(cell: Cell) -> bool:
    return cell.norm.name == "bn" and not cell.norm.changed


def _compare_with_bn(
    networks: Sequence[ProbedNetwork], speeds: Sequence[Speed]
) -> Iterator[Record]:
    """Yield records with the ratios of each network to bn in the same architecture."""
    pairs = [*zip(networks, speeds, strict=True)]
    of_bn: dict[str, Record] = {
        _architecture(network.cell): vars(speed)
        for network, speed in pairs
        if _is_bn(network.cell) and speed.status == "ok"
    }
    for network, speed in pairs:
        record: Record = {
            **vars(speed), "ratio": None, "bn_again": None, "memory_ratio": None,
            "images_per_second": None, "key": network_key(network.cell.identity),
            "device": _device_name(network.device),
        }  # fmt: skip
        del record["again"]
        if speed.status == "ok":
            record["images_per_second"] = record["steps_per_second"] * speed.batch
            if bn := of_bn.get(_architecture(network.cell)):
                record["ratio"] = record["steps_per_second"] / bn["steps_per_second"]
                record["bn_again"] = bn["again"]
                record["memory_ratio"] = record["memory"] / bn["memory"]
        yield record


def _device_name(device: torch.device) -> str:
    return processor() if device.type == "cpu" else torch.cuda.get_device_name(device)


def _architecture(cell: Cell) -> str:
    """Return a key of all that a network and its bn have in common."""
    # The trainer is part of the key, so networks are compared with bn on the same hardware.
    task = cell.task.identity
    return repr((cell.model.identity, task, cell.precision, cell.trainer, cell.seed))


def _entries(record: Record) -> list[str]:
    """Return the numbers of a record as entries of the printed table."""
    if record["status"] != "ok":
        return ["", "", record["status"], "", "", "", "", "", ""]
    ratio, bn_again, memory_ratio = (
        "" if record[key] is None else f"{record[key]:.2f}"
        for key in ("ratio", "bn_again", "memory_ratio")
    )
    lower, upper = without_exponent(record["lower"]), without_exponent(record["upper"])
    return [
        f"{record['params']:,}",
        f"{record['operations'] // 2:,}",
        without_exponent(record["steps_per_second"]),
        f"{lower} to {upper}",
        without_exponent(record["images_per_second"]),
        ratio,
        bn_again,
        without_exponent(record["memory"] / 2**20, 3),
        memory_ratio,
    ]


def without_exponent(number: float, digits: int = 4) -> str:
    """Return a number with so many significant digits or all before the point, never as 1e+04."""
    text = f"{number:.{digits}g}"
    return f"{number:.0f}" if "e+" in text else text
