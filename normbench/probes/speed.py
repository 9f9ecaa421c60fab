"""Steps a second and memory of networks that differ in their normalizer, as in tables 4 and 5 of
Brock, De and Smith 2021.

A step of training is forward, backward and SGD with momentum on images that lie on the device; one
of inference a forward pass in evaluation. All networks are timed in turn, round by round, so that a
noisy moment meets all of them, and compared by medians. A network that does not fit the memory is
OOM, and one that refuses its maps n/a, with the reason.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import quantiles
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from normbench.errors import Impossible
from normbench.norms.workers import set_workers
from normbench.probes.memory import peak

Mode = Literal["training", "inference"]
Status = Literal["ok", "OOM", "n/a"]
Step = Callable[[], object]

SECONDS = 0.2  # of a measurement at least


@dataclass(frozen=True)
class Speed:
    """One network at one batch. Times are None unless the status is ok."""

    network: str
    batch: int
    mode: Mode
    status: Status
    reason: str = ""
    steps_per_second: float | None = None  # median
    lower: float | None = None  # quartiles
    upper: float | None = None
    memory: int | None = None  # bytes at most, beside weights, gradients and optimizer before


def speeds(
    networks: Mapping[str, Callable[[], nn.Module]],
    images: Tensor,
    classes: int,
    mode: Mode,
    repeats: int = 7,
) -> list[Speed]:
    """Time all networks on one batch.

    Args:
        networks: what builds each of them, on the device of the images.
        images: (N, C, H, W), the images of one worker.
        classes: of the networks.
        mode: what is timed.
        repeats: rounds.
    """
    batch = len(images)
    found: dict[str, Speed] = {}
    ready: dict[str, tuple[Step, int]] = {}
    taken: dict[str, list[float]] = {}
    for name, build in networks.items():
        try:
            step = _step(build(), images, classes, mode)
            step()  # what is done once belongs to no step
            memory = peak(step, images.device)
            ready[name] = step, max(1, ceil(SECONDS / _seconds(step, 1, images.device)))
        except Impossible as reason:
            found[name] = Speed(name, batch, mode, "n/a", str(reason))
        except RuntimeError as error:
            if not _is_oom(error):
                raise
            found[name] = Speed(name, batch, mode, "OOM", "it does not fit the memory")
            _forget(images.device)
        else:
            found[name] = Speed(name, batch, mode, "ok", memory=memory)
            taken[name] = []
    for _ in range(repeats):
        for name, (step, number) in ready.items():
            taken[name].append(number / _seconds(step, number, images.device))
    for name, per_second in taken.items():
        lower, middle, upper = _quartiles(per_second)
        found[name] = replace(found[name], steps_per_second=middle, lower=lower, upper=upper)
    return [found[name] for name in networks]


def _step(network: nn.Module, images: Tensor, classes: int, mode: Mode) -> Step:
    set_workers(network, 1)
    if mode == "inference":
        network.eval()

        def infer() -> None:
            with torch.inference_mode():
                network(images)

        return infer
    network.train()
    labels = torch.arange(len(images), device=images.device) % classes
    optimizer = SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def train() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
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


def _forget(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _quartiles(values: Sequence[float]) -> list[float]:
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3


def _is_oom(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
