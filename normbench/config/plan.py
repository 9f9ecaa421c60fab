"""How the workers of an experiment are laid on its hardware.

    W = devices * per_forward * accumulation         in letters: W = D * P * A

Image k of a global batch belongs to worker k mod W. Device d takes the images k with k mod D = d,
the order of DistributedSampler; of those, pass a of A takes every A-th; in a pass, image i belongs
to its worker i mod P. Every plan so gives each worker the same images.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """W workers on D devices, P in one forward pass, in A passes for one optimizer step."""

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
        """Which images of a global batch `device` sees in forward pass `turn` of a step."""
        return slice(device + self.devices * turn, None, self.devices * self.accumulation)

    def __str__(self) -> str:
        return (
            f"{self.workers} workers: devices={self.devices} per_forward={self.per_forward} "
            f"accumulation={self.accumulation}"
        )


def automatic(workers: int, devices: int = 1) -> Plan:
    """The plan of fewest passes: all workers of a device in one forward pass.

    Raises:
        ValueError: the workers do not fall evenly on the devices.
    """
    if workers % devices:
        raise ValueError(f"{workers} workers do not fall evenly on {devices} devices")
    return Plan(devices, workers // devices, 1)


def layouts(workers: int, devices: int = 1, per_forward: int | None = None) -> list[Plan]:
    """The plans of `workers`, the fastest first: fewer passes are faster and need more memory.

    Args:
        workers: W of the experiment.
        devices: the most to use; used are as many as divide the workers.
        per_forward: the most workers in one forward pass; None: no limit.
    """
    used = _largest_divisor(workers, devices)
    share = workers // used
    most = share if per_forward is None else min(per_forward, share)
    sizes = [size for size in range(most, 0, -1) if share % size == 0]
    return [Plan(used, size, share // size) for size in sizes]


def _largest_divisor(number: int, most: int) -> int:
    return next(divisor for divisor in range(min(number, most), 0, -1) if number % divisor == 0)


def share_of_cores(processes: int) -> int:
    """CPU cores for each of so many processes beside each other, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def own_cores(environment: Mapping[str, str] = os.environ) -> int:
    """CPU cores for this process, beside the other ranks of its run on this machine."""
    here = int(environment.get("LOCAL_WORLD_SIZE", 1))
    if "SLURM_CPUS_PER_TASK" in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        # srun has given each of its tasks, which are some or all of the ranks, cores of its own.
        nodes = int(environment.get("SLURM_STEP_NUM_NODES", 1))
        tasks = max(1, int(environment["SLURM_STEP_NUM_TASKS"]) // nodes)
        cores = min(len(os.sched_getaffinity(0)), int(environment["SLURM_CPUS_PER_TASK"]))
        return max(1, cores // max(1, here // tasks))
    return share_of_cores(here)
