"""Steps a second and memory of networks that differ in their normalizer, as in tables 4 and 5 of
Brock, De and Smith 2021.

A step of training is forward, backward and SGD with momentum on images that lie on the device; one
of inference a forward pass in evaluation. All networks are timed in turn, round by round, so that a
noisy moment meets all of them, and compared by medians. A network that does not fit the memory is
OOM, and one that refuses its maps n/a, with the reason.
"""

import time
from collections.abc import Callable, Mapping, Sequence
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

from normbench.errors import Impossible
from normbench.measurements.memory import peak
from normbench.norms.workers import set_workers

Mode = Literal["training", "inference"]
Status = Literal["ok", "OOM", "n/a"]
Step = Callable[[], object]

SECONDS = 0.2  # of a measurement at least


@dataclass(frozen=True)
class Entry:
    """What takes part.

    Args:
        build: gives the network, on the device of the images.
        images: (N, C, H, W), those of one worker.
        context: what a forward pass happens in, such as autocast.
    """

    build: Callable[[], nn.Module]
    images: Tensor
    context: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class Speed:
    """One network at one batch. Numbers are None unless the status is ok."""

    network: str
    batch: int
    mode: Mode
    status: Status
    reason: str = ""
    steps_per_second: float | None = None  # median of the rounds
    lower: float | None = None  # quartiles
    upper: float | None = None
    memory: int | None = None  # bytes at most, weights, gradients and momentum included


def speeds(entries: Mapping[str, Entry], classes: int, mode: Mode, repeats: int = 7) -> list[Speed]:
    """Time all networks in turn; while one of them is at work no other is in memory.

    Args:
        entries: by their names.
        classes: of the networks.
        mode: what is timed.
        repeats: rounds.
    """
    found: dict[str, Speed] = {}
    taken: dict[str, list[float]] = {}
    for name, entry in entries.items():
        batch = len(entry.images)
        try:
            memory = peak(partial(_twice, entry, classes, mode), entry.images.device)
        except Impossible as reason:
            found[name] = Speed(name, batch, mode, "n/a", str(reason))
        except RuntimeError as error:
            found[name] = _out_of_memory(error, name, batch, mode)
        else:
            found[name] = Speed(name, batch, mode, "ok", memory=memory)
            taken[name] = []
    for _ in range(repeats):
        for name in [*taken]:
            try:
                taken[name].append(_measured(entries[name], classes, mode))
            except RuntimeError as error:  # somebody else on the device has taken the memory
                found[name] = _out_of_memory(error, name, found[name].batch, mode)
                del taken[name]
    for name, per_second in taken.items():
        lower, middle, upper = _quartiles(per_second)
        found[name] = replace(found[name], steps_per_second=middle, lower=lower, upper=upper)
    return [found[name] for name in entries]


def _twice(entry: Entry, classes: int, mode: Mode) -> None:
    """From the building of the network on; the momentum is there from the first step on."""
    step = _step(entry, classes, mode)
    step()
    step()


def _measured(entry: Entry, classes: int, mode: Mode) -> float:
    """Steps a second."""
    step = _step(entry, classes, mode)
    step()  # what is done once belongs to no step
    number = max(1, ceil(SECONDS / _seconds(step, 1, entry.images.device)))
    return number / _seconds(step, number, entry.images.device)


def _step(entry: Entry, classes: int, mode: Mode) -> Step:
    network, images = entry.build(), entry.images
    set_workers(network, 1)
    if mode == "inference":
        network.eval()

        def infer() -> None:
            with torch.inference_mode(), entry.context():
                network(images)

        return infer
    network.train()
    labels = torch.arange(len(images), device=images.device) % classes
    optimizer = SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def train() -> None:
        optimizer.zero_grad()
        with entry.context():
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()

    return train


def _seconds(step: Step, times: int, device: torch.device) -> float:
    """That so many steps take."""
    _wait(device)
    started = time.perf_counter()
    for _ in range(times):
        step()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _quartiles(values: Sequence[float]) -> list[float]:
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3


def _out_of_memory(error: RuntimeError, name: str, batch: int, mode: Mode) -> Speed:
    """Raises `error` again if it says something else."""
    if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return Speed(name, batch, mode, "OOM", "it does not fit the memory")
