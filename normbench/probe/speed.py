"""Steps per second and memory of normalizers (Brock, De and Smith 2021, tables 4 and 5).

A training step is forward, backward and SGD with momentum on images that are on the device; an
inference step is a forward pass in evaluation. The networks take turns, round by round, so that a
noisy moment affects all of them, and medians are compared. A network that does not fit the memory
is OOM, one that refuses its maps n/a, with the reason.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import quantiles
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from normbench.config.cells import Cell
from normbench.errors import BadInput, Impossible, choose_from, counted
from normbench.execution.preflight import require_compiler
from normbench.measurements.memory import peak_memory
from normbench.norms.implementation import set_implementation
from normbench.norms.workers import set_workers
from normbench.probe.networks import ProbedNetwork, compose_cells, initial_networks
from normbench.probe.output import print_table, write_results
from normbench.probe.request import ProbeRequest
from normbench.run_files import Record
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context, use_full_precision, weight_dtype

Mode = Literal["training", "inference"]
Status = Literal["ok", "OOM", "n/a"]
Step = Callable[[], object]

HEAD = ("network", "batch", "mode", "steps/s", "quartiles", "images/s", "over bn", "memory MB",
        "over bn")  # fmt: skip
SECONDS = 0.2  # the least duration of a measurement


@dataclass(frozen=True)
class TimedNetwork:
    """A network to time.

    Args:
        build: returns the network, on the device of the images.
        images: (N, C, H, W), those of one worker.
        context: around every forward pass, such as autocast.
    """

    build: Callable[[], nn.Module]
    images: Tensor
    context: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class Speed:
    """Speed of one network at one batch. Numbers are None unless the status is ok."""

    network: str
    batch: int
    mode: Mode
    status: Status
    reason: str = ""
    steps_per_second: float | None = None  # median over the rounds
    lower: float | None = None  # quartiles
    upper: float | None = None
    memory: int | None = None  # peak bytes, with weights, gradients and momentum


def measure_speeds(
    networks: Mapping[str, TimedNetwork], classes: int, mode: Mode, repeats: int = 7
) -> list[Speed]:
    """Time all networks in turn; only the one that runs is in memory.

    Args:
        networks: by their names.
        classes: of the networks.
        mode: training or inference steps.
        repeats: rounds.
    """
    speeds: dict[str, Speed] = {}
    rates: dict[str, list[float]] = {}
    for name, network in networks.items():
        batch = len(network.images)
        try:
            memory = peak_memory(partial(_two_steps, network, classes, mode), network.images.device)
        except Impossible as reason:
            speeds[name] = Speed(name, batch, mode, "n/a", str(reason))
        except RuntimeError as error:
            speeds[name] = _out_of_memory(error, name, batch, mode)
        else:
            speeds[name] = Speed(name, batch, mode, "ok", memory=memory)
            rates[name] = []
    for _ in range(repeats):
        for name in [*rates]:
            try:
                rates[name].append(_steps_per_second(networks[name], classes, mode))
            except RuntimeError as error:  # another process on the device has taken the memory
                speeds[name] = _out_of_memory(error, name, speeds[name].batch, mode)
                del rates[name]
    for name, per_second in rates.items():
        lower, median, upper = _quartiles(per_second)
        speeds[name] = replace(speeds[name], steps_per_second=median, lower=lower, upper=upper)
    return [speeds[name] for name in networks]


def _two_steps(network: TimedNetwork, classes: int, mode: Mode) -> None:
    """Build the network and run two steps: the momentum exists from the first step on."""
    step = _build_step(network, classes, mode)
    step()
    step()


def _steps_per_second(network: TimedNetwork, classes: int, mode: Mode) -> float:
    step = _build_step(network, classes, mode)
    step()  # the first one sets up buffers
    number = max(1, ceil(SECONDS / _seconds(step, 1, network.images.device)))
    return number / _seconds(step, number, network.images.device)


def _build_step(timed: TimedNetwork, classes: int, mode: Mode) -> Step:
    network, images = timed.build(), timed.images
    set_workers(network, 1)
    if mode == "inference":
        network.eval()

        def infer() -> None:
            with torch.inference_mode(), timed.context():
                network(images)

        return infer
    network.train()
    labels = torch.arange(len(images), device=images.device) % classes
    optimizer = SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def train() -> None:
        optimizer.zero_grad()
        with timed.context():
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()

    return train


def _seconds(step: Step, times: int, device: torch.device) -> float:
    """Return the duration of `times` steps."""
    _synchronize(device)
    started = time.perf_counter()
    for _ in range(times):
        step()
    _synchronize(device)
    return time.perf_counter() - started


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _quartiles(values: Sequence[float]) -> list[float]:
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3


def _out_of_memory(error: RuntimeError, name: str, batch: int, mode: Mode) -> Speed:
    """Return the result of a network that does not fit; raise any other `error` again."""
    if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return Speed(name, batch, mode, "OOM", "it does not fit the memory")


def run(request: ProbeRequest) -> None:
    """Time the requested networks, and bn in each architecture; print and write the speeds."""
    repeats = counted("repeats", request.option("repeats", "7"), 7)
    modes = _parse_modes(request.option("mode", "training,inference"))
    cells = [cell for _, words in request.networks for cell in _with_bn(words)]
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
        for mode in modes:
            print(f"batch {batch}, {mode}: {len(networks)} networks", file=sys.stderr, flush=True)
            speeds = measure_speeds(timed, data.classes, mode, repeats)
            records += _compare_with_bn(networks, speeds)
    print_table([[r["network"], r["batch"], r["mode"], *_entries(r)] for r in records], HEAD)
    refusals = {str(r["network"]): str(r["reason"]) for r in records if r["status"] == "n/a"}
    print("\n".join(f"{name}: {reason}" for name, reason in refusals.items()))
    write_results(request, records)


def _timed_network(network: ProbedNetwork, images: Tensor) -> TimedNetwork:
    """Return a network with the precision and the memory format of its cell."""
    cell, device = network.cell, network.device
    impl, graphs = cell.trainer.impl, str(cell.trainer.cuda_graph).lower()
    if impl == "compile" or cell.precision == "16-mixed" or cell.trainer.cuda_graph:
        raise BadInput(
            f"trainer.impl={impl} precision={cell.precision} trainer.cuda_graph={graphs}: speeds "
            "are of eager, lean or triton networks, in 32-true, 64-true or bf16-mixed"
        )
    require_compiler(cell)
    channels_last = cell.trainer.channels_last
    layout = torch.channels_last if channels_last else torch.contiguous_format
    on_device = images.to(device, weight_dtype(cell)).to(memory_format=layout)

    def build() -> nn.Module:
        module = network.build().to(memory_format=layout)
        set_implementation(module, "eager" if cell.trainer.impl == "auto" else cell.trainer.impl)
        return module

    return TimedNetwork(build, on_device, partial(autocast_context, cell, device))


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
    of_bn = {
        _architecture(network.cell): speed
        for network, speed in zip(networks, speeds, strict=True)
        if _is_bn(network.cell) and speed.status == "ok"
    }
    for network, speed in zip(networks, speeds, strict=True):
        bn = of_bn.get(_architecture(network.cell))
        rate, memory = speed.steps_per_second, speed.memory
        record: Record = {**vars(speed), "ratio": None, "memory_ratio": None}
        record["images_per_second"] = None if rate is None else rate * speed.batch
        if bn is not None and rate and memory:
            assert bn.steps_per_second
            assert bn.memory
            record["ratio"] = rate / bn.steps_per_second
            record["memory_ratio"] = memory / bn.memory
        yield record


def _architecture(cell: Cell) -> str:
    """Return a key of all that a network and its bn have in common."""
    return repr((cell.model.identity, cell.precision, cell.trainer, cell.seed))


def _parse_modes(word: str) -> list[Mode]:
    modes: tuple[Mode, ...] = ("training", "inference")
    for each in word.split(","):
        if each not in modes:
            raise BadInput(f"mode={word}: {choose_from(each, modes)}")
    return [mode for mode in modes if mode in word.split(",")]


def _entries(record: Record) -> list[str]:
    """Return the numbers of a record as entries of the printed table."""
    if record["status"] != "ok":
        return [str(record["status"]), "", "", "", "", ""]
    quartiles = f"{record['lower']:.4g} to {record['upper']:.4g}"
    megabytes = float(record["memory"]) / 2**20
    return [
        f"{record['steps_per_second']:.4g}", quartiles, f"{record['images_per_second']:.4g}",
        _ratio(record["ratio"]), f"{megabytes:.3g}", _ratio(record["memory_ratio"]),
    ]  # fmt: skip


def _ratio(value: object) -> str:
    return "" if value is None else f"{value:.2f}"
