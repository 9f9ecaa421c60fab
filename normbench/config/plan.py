"""Distribute the workers of an experiment over devices and forward passes.

    W = devices * per_forward * accumulation         in letters: W = D * P * A

Image k of a global batch belongs to worker k mod W. Device d takes the images k with k mod D = d,
in the order of DistributedSampler; pass a takes every A-th of those; in a pass, image i belongs to
worker i mod P of the pass. So every plan gives each worker the same images.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isqrt
from pathlib import Path

from normbench.errors import BadInput


@dataclass(frozen=True)
class Plan:
    """W workers: D devices with P workers in each of A forward passes per optimizer step."""

    devices: int
    per_forward: int
    accumulation: int

    def __post_init__(self) -> None:
        if min(self.devices, self.per_forward, self.accumulation) < 1:
            raise ValueError(f"{self}: every factor is at least 1")

    @property
    def workers(self) -> int:
        return self.devices * self.per_forward * self.accumulation

    def share(self, device: int, turn: int) -> slice:
        """Return the images of a global batch that `device` takes in forward pass `turn`."""
        return slice(device + self.devices * turn, None, self.devices * self.accumulation)

    def __str__(self) -> str:
        return (
            f"{self.workers} workers: devices={self.devices} per_forward={self.per_forward} "
            f"accumulation={self.accumulation}"
        )


def plans(workers: int, devices: int = 1, per_forward: int | None = None) -> list[Plan]:
    """Return the plans of `workers`, the fastest first: fewer passes need more memory.

    Args:
        workers: W of the experiment.
        devices: upper limit; used is the largest number below that divides `workers`.
        per_forward: upper limit of workers in one forward pass; None: no limit.
    """
    used = next(size for size in divisors(workers) if size <= devices)
    share = workers // used
    limit = share if per_forward is None else per_forward
    return [Plan(used, size, share // size) for size in divisors(share) if size <= limit]


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, the largest first."""
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)}, reverse=True)


CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return the CPU cores of this process: those it may run on, or fewer if a container has less.

    A limit as of `docker --cpus=2` is a share of the time of all cores (cgroups, version 2).
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_LIMIT.read_text().split()
        return max(1, min(cores, ceil(int(quota) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # none, or "max"
        return cores


def share_of_cores(processes: int) -> int:
    """Return the CPU cores for each of `processes` parallel processes, at least 1."""
    return max(1, usable_cores() // processes)


def read_number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the whole number in an environment variable of torchrun or Slurm.

    Raises:
        BadInput: it is none, or missing without a `default`.
    """
    text = environment.get(name, "" if default is None else str(default))
    if not re.fullmatch("[0-9]{1,9}", text):
        value = f"{name}={text} is no whole number" if name in environment else f"{name} is missing"
        raise BadInput(
            f"{value} in the environment of this process; start it by torchrun or srun, or unset "
            "TORCHELASTIC_RUN_ID and SLURM_STEP_ID"
        )
    return int(text)


def own_cores(environment: Mapping[str, str] = os.environ) -> int:
    """Return the CPU cores of this process, one of the ranks of a run on this machine."""
    local_ranks = read_number(environment, "LOCAL_WORLD_SIZE", 1)
    if "SLURM_CPUS_PER_TASK" in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        # srun gives each task cores of its own; a task may have several ranks.
        nodes = read_number(environment, "SLURM_STEP_NUM_NODES", 1)
        tasks = max(1, read_number(environment, "SLURM_STEP_NUM_TASKS") // max(1, nodes))
        of_task = read_number(environment, "SLURM_CPUS_PER_TASK")
        cores = min(usable_cores(), of_task)
        return max(1, cores // max(1, local_ranks // tasks))
    return share_of_cores(max(1, local_ranks))
