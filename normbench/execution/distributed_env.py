"""The place of this process among those that torchrun or srun has started for one run.

Each of them is a rank with a device of its own, on whatever node; its place stands in the
environment. One command line then is one run: rank 0 leads it, and the others train along.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from normbench.errors import BadInput

#: Ports for the meetings of runs in jobs of Slurm, a number that follows from the job's.
_PORTS = range(20_000, 30_000)


@dataclass(frozen=True)
class Place:
    """One of `world` processes, `local` of `locals` on node `node` of `nodes`."""

    rank: int
    world: int
    local: int
    locals: int
    node: int
    nodes: int
    address: str
    port: str
    name: str
    by_agent: bool  # torchrun's agent already serves at that port

    @property
    def environment(self) -> dict[str, str]:
        """The same in torchrun's words."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local),
            "LOCAL_WORLD_SIZE": str(self.locals),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RUN_ID": self.name,
            "TORCHELASTIC_USE_AGENT_STORE": str(self.by_agent),
        }


def place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Where this process stands; None if it stands alone.

    Raises:
        BadInput: Slurm does not say on which nodes the processes are.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return _of_torchrun(environment)
    if "SLURM_STEP_ID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return _of_slurm(environment)
    return None


def job(environment: Mapping[str, str] = os.environ) -> str | None:
    """The number of the job of Slurm that this process belongs to; None: of none."""
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID")


def _of_torchrun(environment: Mapping[str, str]) -> Place | None:
    def number(name: str) -> int:
        return int(environment[name])

    if number("WORLD_SIZE") == 1:
        return None
    return Place(
        rank=number("RANK"),
        world=number("WORLD_SIZE"),
        local=number("LOCAL_RANK"),
        locals=number("LOCAL_WORLD_SIZE"),
        node=number("GROUP_RANK"),
        nodes=number("GROUP_WORLD_SIZE"),
        address=environment["MASTER_ADDR"],
        port=environment["MASTER_PORT"],
        name=environment["TORCHELASTIC_RUN_ID"],
        by_agent=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _of_slurm(environment: Mapping[str, str]) -> Place:
    world = int(environment["SLURM_STEP_NUM_TASKS"])
    nodes = int(environment["SLURM_STEP_NUM_NODES"])
    if world % nodes:
        raise BadInput(f"{world} tasks on {nodes} nodes: every node needs as many, as in -N2 -n8")
    nodelist = environment["SLURM_STEP_NODELIST"]
    try:
        found = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadInput(f"scontrol does not say which nodes {nodelist} are: {error}") from error
    job, step = int(environment["SLURM_JOB_ID"]), environment["SLURM_STEP_ID"]
    return Place(
        rank=int(environment["SLURM_PROCID"]),
        world=world,
        local=int(environment["SLURM_LOCALID"]),
        locals=world // nodes,
        node=int(environment["SLURM_NODEID"]),
        nodes=nodes,
        address=found.stdout.split()[0],
        # Two steps of a job may run beside each other, and each needs two ports.
        port=str(_PORTS[(2 * job + 14 * int(step)) % len(_PORTS)]),
        name=f"{job}.{step}",
        by_agent=False,
    )
